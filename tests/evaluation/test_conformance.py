"""Solvers that each break one promise fail exactly the check of that promise; registered ones keep all of them."""

import dataclasses
import itertools
import json
import os
import random
import time

import numpy as np
import pytest
from evaluation_toys import INSTALLED

from shardgym import InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask
from shardgym.costs.roofline import RooflineCost
from shardgym.errors import UnknownNameError
from shardgym.evaluation.conformance import check_solver


class Sound:
    """First device with room, largest table first, and nothing else: the base of all that follows."""

    def __init__(self, solve=None):
        self.broken = solve

    def solve(self, task, cost, seed=0):
        return self.broken(self, task, seed) if self.broken else self.plan(task)

    def plan(self, task):
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


def returns_list(sound, task, seed):
    return list(sound.shards(task))


def crashes(sound, task, seed):
    sound.plan(task)
    raise ZeroDivisionError("after a good start")


def loses_a_table(sound, task, seed):
    return ShardingPlan.of(task, list(sound.shards(task))[1:])


def plans_for_another_task(sound, task, seed):
    other = ShardingTask(task.tables, task.topology, task.batch_size + 1)
    return ShardingPlan.of(other, sound.shards(task))


def ignores_memory(sound, task, seed):
    return ShardingPlan.of(task, sound.shards(task, ignore_memory=True))


def forgets_optimizer_state(sound, task, seed):
    sound.plan(task)
    plain = dataclasses.replace(task, optimizer="exact_sgd")
    return ShardingPlan.of(task, sound.shards(plain))


CALLS = itertools.count()


def ignores_its_seed(sound, task, seed):
    """Cuts its widest table at other columns whenever it is called, which is feasible."""
    shards = list(sound.shards(task))
    whole = shards.pop(max(range(len(shards)), key=lambda n: shards[n].num_columns))
    cut = 4 * (next(CALLS) % (whole.num_columns // 4))
    pieces = [(start, end) for start, end in ((0, cut), (cut, whole.num_columns)) if start < end]
    return ShardingPlan.of(task, [*shards, *(Shard(whole.table, whole.rows, p, whole.devices) for p in pieces)])


def fails_on_odd_seeds(sound, task, seed):
    plan = sound.plan(task)
    if seed % 2:
        raise NoFeasiblePlanError("bad luck")
    return plan


def changes_the_task(sound, task, seed):
    plan = sound.plan(task)
    object.__setattr__(task.tables[0], "pooling_factor", 99.0)
    return plan


def raises_the_wrong_error(sound, task, seed):
    try:
        return sound.plan(task)
    except NoFeasiblePlanError as error:
        raise RuntimeError(str(error)) from None


def prints_beneath_python(sound, task, seed):
    os.write(1, b"solving\xff\n")
    return sound.plan(task)


def seeds_numpy(sound, task, seed):
    np.random.seed(seed)
    return sound.plan(task)


class OverrunsItsLimit(Sound):
    def solve(self, task, cost, seed=0, *, time_limit_s=None):
        time.sleep(0.0 if time_limit_s is None else time_limit_s + 0.5)
        return self.plan(task)


class Hangs(Sound):
    def solve(self, task, cost, seed=0):
        while task.num_devices == 3:
            time.sleep(0.01)
        return self.plan(task)


def failed(report):
    return {row.name: row.detail for row in report.rows if row.ok is False}


def test_a_solver_that_cannot_be_made_is_told_with_the_place():
    class Missing:
        def __init__(self):
            raise FileNotFoundError("weights.pt")

    with pytest.raises(
        InputError, match=r"cannot be made: FileNotFoundError: weights\.pt \(test_conformance\.py:\d+\)"
    ):
        check_solver(Missing)


@pytest.fixture(autouse=True)
def _keep_random_state():
    states = random.getstate(), np.random.get_state()
    yield
    random.setstate(states[0])
    np.random.set_state(states[1])


@pytest.mark.parametrize(
    ("solver", "check", "detail"),
    [
        (returns_list, "returns_plan", "returned list, not a ShardingPlan"),
        (crashes, "returns_plan", "raised ZeroDivisionError: after a good start (test_conformance.py:"),
        (loses_a_table, "plan_is_valid", "are missing"),
        (plans_for_another_task, "plan_is_valid", "the plan is for task"),
        (ignores_memory, "memory_respected", "'memory filled exactly': device 0 holds"),
        (forgets_optimizer_state, "memory_respected", "'optimiser state fills memory'"),
        (ignores_its_seed, "same_seed_same_plan", "another plan when asked again"),
        (fails_on_odd_seeds, "other_seeds_valid", "NoFeasiblePlanError: bad luck"),
        (changes_the_task, "task_unchanged", "the task was changed"),
        (raises_the_wrong_error, "infeasible_reported", "no plan is feasible: expected NoFeasiblePlanError or"),
        (prints_beneath_python, "silent", "printed 'solving"),
        (seeds_numpy, "global_random_untouched", "changed the state of numpy.random"),
    ],
)
def test_a_broken_promise_fails_its_check_and_no_other(solver, check, detail):
    report = check_solver(Sound(solver), time_limit_s=0.01, grace_s=0.3)
    assert list(failed(report)) == [check]
    assert detail in failed(report)[check]
    assert not report.ok


@pytest.mark.parametrize("solver", [Sound, Sound()])
def test_a_sound_solver_passes_as_a_class_and_as_an_object(solver):
    report = check_solver(solver, time_limit_s=0.01)
    assert report.ok, report.table()
    data = json.loads(json.dumps(report.to_dict()))
    assert (data["solver"].partition(":")[2], data["oracle"], data["ok"]) == ("Sound", "roofline", True)
    *checks, oracle = report.table().splitlines()[2:]
    assert [line.split()[1] for line in checks] == ["ok"] * len(data["checks"])
    assert oracle == "oracle, the cost that the solver could query: roofline"


def test_a_solver_that_overruns_its_limit_fails():
    report = check_solver(OverrunsItsLimit, time_limit_s=0.01, grace_s=0.3)
    assert list(failed(report)) == ["time_limit_kept"]
    assert "with a limit of 0.01 s" in failed(report)["time_limit_kept"]


def test_a_hanging_solver_fails_the_time_check_and_leaves_the_others_undecided():
    report = check_solver(Hangs, hang_s=1.0, time_limit_s=0.1, grace_s=0.1)
    assert list(failed(report)) == ["time_limit_kept"]
    assert "'uneven memory filled exactly': no answer after" in failed(report)["time_limit_kept"]
    assert {row.ok for row in report.rows if row.name != "time_limit_kept"} == {None}
    assert not report.ok


class Warm(Sound):
    """Solves only after it has warmed up, fresh ones too."""

    ready = False

    def warm_up(self, task, cost):
        self.ready = True

    def solve(self, task, cost, seed=0):
        if not self.ready:
            raise RuntimeError("cold")
        return self.plan(task)


class FailsToWarm(Sound):
    def warm_up(self, task, cost):
        raise OSError("no such weights")


def test_every_solver_warms_up_before_its_first_call():
    assert check_solver(Warm).ok
    report = check_solver(FailsToWarm)
    assert any("no such weights" in detail for detail in failed(report).values())


@pytest.mark.parametrize("name", [name for name in INSTALLED if name != "measured_rerank"])  # it measures every call
def test_registered_solvers_conform(name):
    report = check_solver(name, time_limit_s=0.1, grace_s=60, hang_s=120)
    assert report.ok, "\n" + report.table()


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(UnknownNameError, match="did you mean"):
        check_solver("size_gredy")
    with pytest.raises(InputError, match="has no setting"):
        check_solver("size_greedy", settings={"beam": 3})
    with pytest.raises(InputError, match="got a solver object"):
        check_solver(Sound(), settings={"beam": 3})
    noisy = type("Noisy", (RooflineCost,), {"deterministic": False})
    with pytest.raises(InputError, match="not deterministic"):
        check_solver("random", noisy())
