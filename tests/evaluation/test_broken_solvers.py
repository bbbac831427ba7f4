"""Solvers that each break one promise fail exactly the check of that promise."""

import itertools
import os
import random
import time

import numpy as np
import pytest

from shardgym.errors import InfeasiblePlanError, NoFeasiblePlanError
from shardgym.evaluation.conformance import check_solver
from shardgym.evaluation.solver import make_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask


class Sound:
    """First device with room, largest table first, and nothing else: the base of all that follows."""

    def solve(self, task, cost, seed=0):
        return ShardingPlan.of(task, self.shards(task))

    def shards(self, task, ignore_memory=False):
        room = list(task.topology.memory_bytes)
        if task.total_bytes > sum(room) or any(table.embedding_dim % 4 for table in task.tables):
            raise NoFeasiblePlanError("no plan is feasible")
        for table in sorted(task.tables, key=task.table_bytes, reverse=True):
            fits = [d for d in range(task.num_devices) if room[d] >= task.table_bytes(table)]
            device = 0 if ignore_memory else fits[0]
            room[device] -= task.table_bytes(table)
            yield Shard.whole(table, device)


class ReturnsList(Sound):
    def solve(self, task, cost, seed=0):
        return list(self.shards(task))


class Crashes(Sound):
    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost, seed)
        raise ZeroDivisionError("after a good start") if plan else AssertionError


class CrashesOnOneTable(Sound):
    def solve(self, task, cost, seed=0):
        if task.num_tables == 1 and not task.tables[0].embedding_dim % 4:
            raise IndexError("no second table")
        return super().solve(task, cost, seed)


class GivesUpWhereItIsTight(Sound):
    def solve(self, task, cost, seed=0):
        if task.total_bytes == sum(task.topology.memory_bytes):
            raise NoFeasiblePlanError("a piece is too large")
        return super().solve(task, cost, seed)


class LosesATable(Sound):
    def solve(self, task, cost, seed=0):
        return ShardingPlan.of(task, list(self.shards(task))[1:])


class PlansForAnotherTask(Sound):
    def solve(self, task, cost, seed=0):
        other = ShardingTask(task.tables, task.topology, task.batch_size + 1)
        return ShardingPlan.of(other, self.shards(task))


class CutsThinColumns(Sound):
    def solve(self, task, cost, seed=0):
        first, *rest = self.shards(task)
        width = first.columns[1]
        cut = [Shard(first.table, first.rows, edges, first.devices) for edges in ((0, 2), (2, width))]
        return ShardingPlan.of(task, [*cut, *rest])


class IgnoresMemory(Sound):
    def solve(self, task, cost, seed=0):
        return ShardingPlan.of(task, self.shards(task, ignore_memory=True))


class ForgetsOptimizerState(Sound):
    """Packs by bytes of the weights alone."""

    def shards(self, task, ignore_memory=False):
        list(super().shards(task))
        room = list(task.topology.memory_bytes)
        for table in sorted(task.tables, key=task.table_bytes, reverse=True):
            size = table.num_embeddings * table.embedding_dim * {"fp32": 4, "fp16": 2}[task.precision]
            device = next(d for d in range(task.num_devices) if room[d] >= size)
            room[device] -= size
            yield Shard.whole(table, device)


class IgnoresItsSeed(Sound):
    """Cuts its widest table at other columns whenever it is called, which is feasible."""

    calls = itertools.count()

    def solve(self, task, cost, seed=0):
        shards = list(self.shards(task))
        whole = shards.pop(max(range(len(shards)), key=lambda n: shards[n].num_columns))
        cut = 4 * (next(self.calls) % (whole.num_columns // 4))
        pieces = [(start, end) for start, end in ((0, cut), (cut, whole.num_columns)) if start < end]
        return ShardingPlan.of(task, [*shards, *(Shard(whole.table, whole.rows, p, whole.devices) for p in pieces)])


class RemembersItsLastCall(Sound):
    """Deterministic from a fresh start only."""

    def __init__(self):
        self.calls = 0

    def solve(self, task, cost, seed=0):
        self.calls += 1
        whole, *rest = self.shards(task)
        if self.calls % 4 != 2 or whole.num_columns < 8:
            return ShardingPlan.of(task, [whole, *rest])
        pieces = (0, 4), (4, whole.num_columns)
        halves = [Shard(whole.table, whole.rows, piece, whole.devices) for piece in pieces]
        return ShardingPlan.of(task, [*rest, *halves])


class FailsOnOddSeeds(Sound):
    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost, seed)
        if seed % 2:
            raise NoFeasiblePlanError("bad luck")
        return plan


class ChangesTheTask(Sound):
    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost, seed)
        object.__setattr__(task, "batch_size", 1)
        return plan


class ChangesATable(Sound):
    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost, seed)
        object.__setattr__(task.tables[0], "pooling_factor", 99.0)
        return plan


class RaisesTheWrongError(Sound):
    def solve(self, task, cost, seed=0):
        try:
            return super().solve(task, cost, seed)
        except NoFeasiblePlanError as error:
            raise RuntimeError(str(error)) from None


class ValidatesItsPlan(Sound):
    def solve(self, task, cost, seed=0):
        try:
            return super().solve(task, cost, seed)
        except NoFeasiblePlanError as error:
            raise InfeasiblePlanError([str(error)]) from None


class ReturnsABogusPlan(Sound):
    def solve(self, task, cost, seed=0):
        try:
            return super().solve(task, cost, seed)
        except NoFeasiblePlanError:
            return ShardingPlan.table_wise(task, [0] * task.num_tables)


class Prints(Sound):
    def solve(self, task, cost, seed=0):
        print("solving")
        return super().solve(task, cost, seed)


class PrintsBeneathPython(Sound):
    def solve(self, task, cost, seed=0):
        os.write(1, b"solving\n")
        return super().solve(task, cost, seed)


class SeedsNumpy(Sound):
    def solve(self, task, cost, seed=0):
        np.random.seed(seed)
        return super().solve(task, cost, seed)


class DrawsFromRandom(Sound):
    def solve(self, task, cost, seed=0):
        random.random()
        return super().solve(task, cost, seed)


class OverrunsItsLimit(Sound):
    def solve(self, task, cost, seed=0, *, time_limit_s=None):
        time.sleep(0.0 if time_limit_s is None else time_limit_s + 0.5)
        return super().solve(task, cost, seed)


class KeepsItsLimit(Sound):
    def solve(self, task, cost, seed=0, *, time_limit_s=None):
        time.sleep(time_limit_s or 0.0)
        return super().solve(task, cost, seed)


class Hangs(Sound):
    def solve(self, task, cost, seed=0):
        while task.num_devices == 3:
            time.sleep(0.01)
        return super().solve(task, cost, seed)


def failed(report):
    return {row.name: row.detail for row in report.rows if row.ok is False}


@pytest.fixture(autouse=True)
def _keep_random_state():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.mark.parametrize(
    ("solver", "check", "detail"),
    [
        (ReturnsList, "returns_plan", "returned list"),
        (Crashes, "returns_plan", "raised ZeroDivisionError: after a good start"),
        (CrashesOnOneTable, "returns_plan", "'one table': raised IndexError"),
        (GivesUpWhereItIsTight, "returns_plan", "a piece is too large; whole tables in any order fit here"),
        (LosesATable, "plan_is_valid", "are missing"),
        (PlansForAnotherTask, "plan_is_valid", "the plan is for task"),
        (CutsThinColumns, "plan_is_valid", "shard of 2 columns"),
        (IgnoresMemory, "memory_respected", "'memory filled exactly': device 0 holds"),
        (ForgetsOptimizerState, "memory_respected", "'optimiser state fills memory'"),
        (IgnoresItsSeed, "same_seed_same_plan", "another plan when asked again"),
        (RemembersItsLastCall, "same_seed_same_plan", "another plan"),
        (FailsOnOddSeeds, "other_seeds_valid", "NoFeasiblePlanError: bad luck"),
        (ChangesTheTask, "task_unchanged", "the task was changed"),
        (ChangesATable, "task_unchanged", "the task was changed"),
        (RaisesTheWrongError, "infeasible_reported", "no plan is feasible: expected NoFeasiblePlanError, or"),
        (ReturnsABogusPlan, "infeasible_reported", "returned a plan"),
        (Prints, "silent", "printed 'solving"),
        (PrintsBeneathPython, "silent", "printed 'solving"),
        (SeedsNumpy, "global_random_untouched", "changed the state of numpy.random"),
        (DrawsFromRandom, "global_random_untouched", "changed the state of random"),
        (OverrunsItsLimit, "time_limit_kept", "with a limit of 0.01 s"),
    ],
)
def test_a_broken_promise_fails_its_check_and_no_other(solver, check, detail):
    report = check_solver(solver, time_limit_s=0.01, grace_s=0.3)
    assert list(failed(report)) == [check]
    assert detail in failed(report)[check]
    assert not report.ok


@pytest.mark.parametrize("solver", [Sound, Sound(), KeepsItsLimit, ValidatesItsPlan])
def test_a_sound_solver_passes_as_a_class_and_as_an_object(solver):
    report = check_solver(solver, time_limit_s=0.01)
    assert report.ok, report.table()


def test_a_hanging_solver_fails_the_time_check_and_leaves_the_others_undecided():
    report = check_solver(Hangs, hang_s=0.5, time_limit_s=0.1, grace_s=0.1)
    assert list(failed(report)) == ["time_limit_kept"]
    assert "'uneven memory filled exactly': no answer after" in failed(report)["time_limit_kept"]
    assert {row.ok for row in report.rows if row.name != "time_limit_kept"} == {None}
    assert not report.ok


class Warm(Sound):
    """Solves only after it has warmed up."""

    ready = False

    def warm_up(self, task, cost):
        self.ready = True

    def solve(self, task, cost, seed=0):
        if not self.ready:
            raise RuntimeError("cold")
        return super().solve(task, cost)


class FailsToWarm(Sound):
    """Cannot load what it needs."""

    def warm_up(self, task, cost):
        raise OSError("no such weights")


def test_every_solver_warms_up_before_its_first_call():
    """Fresh ones too."""
    assert check_solver(Warm).ok


def test_a_solver_that_cannot_warm_up_fails():
    report = check_solver(FailsToWarm)
    assert not report.ok
    assert any("no such weights" in row.detail for row in report.rows)


class ForgetsItsGroups:
    """Says that plans are for groups of three devices, which no task here has."""

    def solve(self, task, cost, seed=0):
        del seed
        plan = make_solver("size_greedy").solve(task, cost)
        return ShardingPlan.of(task, plan.shards, group_size=3)


def test_groups_that_do_not_divide_the_devices_are_no_plan():
    report = check_solver(ForgetsItsGroups())
    assert "plan_is_valid" in failed(report)
