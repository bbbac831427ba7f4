"""Plans that are compared: when it ends, what is told apart, levels of costs, fewer rows, and planners' plans."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import numpy as np
import torch
from test_torchrec_compare import check_result
from torch.nn.parallel import DistributedDataParallel
from torchrec_toys import MARKS

from shardgym import (
    EmbeddingTable,
    InputError,
    RangeIds,
    RecordedIds,
    Shard,
    ShardingPlan,
    ShardingTask,
    StepMemory,
    Topology,
    ZipfIds,
)
from shardgym.torchrec import comparing, model_from_task, phases, to_torchrec
from shardgym.torchrec.comparing import MIN_ROUNDS, mean_ratio, measure
from shardgym.torchrec.contenders import Contender, find_contenders, plan_with_fewer_rows, with_fewer_rows
from shardgym.torchrec.phases import Call
from shardgym.torchrec.ranks import World
from shardgym.torchrec.real_steps import Job, TurnOfRank

pytestmark = MARKS


def measured(monkeypatch, spread):
    """Compare plans of which "odd" takes 1.5 times as long, and a share of it in every second round; a turn takes half
    a minute of six.
    """
    tables = (EmbeddingTable("a", 100, 8), EmbeddingTable("b", 50, 16))
    reserved = StepMemory(reserved_bytes=(2**19,))
    task = ShardingTask(tables, Topology(2, (2**20,) * 2), 12, step_memory=reserved)
    contenders = {}
    for name, devices in {"even": (0, 1), "odd": (1, 0)}.items():
        plan = ShardingPlan.table_wise(task, devices)
        contenders[name] = Contender(to_torchrec(plan, task, device_type="cpu"), plan)
    turns = []

    def turn(job, plan, world):
        turns.append(plan is contenders["even"].sharding_plan)
        ms = 10.0 if turns[-1] else 15.0 * (spread if (len(turns) - 1) // 2 % 2 else 1.0)
        return TurnOfRank([ms] * 3, [1.0, 2.0, 0.5, 0.5, 3.0], 1000)

    def gathered(found, own):
        other = TurnOfRank([ms / 2 for ms in own[0].step_ms], [2.0, 1.0, 0.5, 0.75, 2.0], -2000)
        found[:] = [own, (other, 1e9)]

    kept = []
    monkeypatch.setattr(comparing, "run_turn", turn)
    monkeypatch.setattr(comparing, "dist", SimpleNamespace(all_gather_object=gathered))
    monkeypatch.setattr(comparing, "time", SimpleNamespace(monotonic=lambda: 30.0 * len(turns)))
    result = measure(
        Job(task, torch.nn.Module, [], lambda model, batch: ([], None)), contenders,
        World(0, 2, 2, torch.device("cpu")), ["a note"], lambda found: kept.append(len(found.plans[0].round_ms)),
        trained="collections", rows=1.0, within=0.02, minutes=5.5, seed=0,
    )  # fmt: skip
    return result, kept


def test_it_ends_when_all_intervals_are_narrow(monkeypatch):
    result, kept = measured(monkeypatch, spread=1.001)
    check_result(result, 2, MIN_ROUNDS)
    assert (result.ended, result.notes, kept) == ("within", ("a note",), [1, 2, 3, 4])
    even, odd = result.plans
    assert 0 < max(even.predicted_bytes) < 2**19  # without what is reserved
    # The slowest rank counts; a process may give memory back.
    assert (even.round_ms, even.peak_bytes, even.rank_ms) == ((10.0,) * 4, (1000, 0), pytest.approx((10.0, 5.0)))
    assert odd.ratio == pytest.approx(1.5, abs=0.002)
    assert result.sentence().startswith("'even' is faster than 'odd': a step takes 33.")


def test_levels_are_those_at_which_the_cost_takes_what_was_measured(monkeypatch):
    result, _ = measured(monkeypatch, spread=1.0)
    predicted = np.array([plan.predicted_ms for plan in result.plans])
    levels = result.calibration
    assert (levels.cost, levels.device, levels.hardware) == ("roofline", "cpu-core", result.hardware)
    assert levels.compute == pytest.approx(2 * (5 + 3) / predicted[..., [1, 4]].sum())
    expected = predicted[..., 2].min(axis=1) + predicted[..., 3].max(axis=1)
    assert levels.exchange == pytest.approx(2 * 1.25 / expected.sum())
    assert levels.fixed_ms == pytest.approx(12.5 - 5 - 1.25)
    assert result.ids_ms == 2.0
    assert result.plans[0].phases_ms == ((1.0, 2.0, 0.5, 0.5, 3.0), (2.0, 1.0, 0.5, 0.75, 2.0))


def test_it_ends_within_a_round_when_time_is_over_and_then_plans_may_not_be_told_apart(monkeypatch):
    result, kept = measured(monkeypatch, spread=0.3)
    assert (result.ended, kept) == ("minutes", [1, 2, 3, 4, 5, 5])
    check_result(result, 2, 5)
    odd = result.plans[1]  # which had both paces
    assert odd.rank_ms[0] == pytest.approx(np.exp(np.mean(np.log(odd.round_ms))))
    assert result.sentence().startswith("'odd' and 'even' do not differ clearly: the ratio of their steps is ")


class Copied(DistributedDataParallel):
    """What trains tables on all ranks, without a group."""

    def __init__(self):
        torch.nn.Module.__init__(self)
        self.require_backward_grad_sync = True


def test_exchanging_gradients_of_copies_is_no_compute(monkeypatch):
    copied = Copied()

    def taken(calls, device, optimizer):
        return [1.0, 2.0, 3.0, 4.0, 9.0 if copied.require_backward_grad_sync else 5.0]

    monkeypatch.setattr(phases, "_pass", taken)
    call = Call(SimpleNamespace(modules=lambda: [copied]), (), {})
    assert phases.phases_ms([call], torch.device("cpu"), 0.1) == [1.0, 2.0, 3.0, 8.0, 5.0]


def test_an_interval_is_that_of_students_t_of_the_logarithms():
    assert mean_ratio([2.0, 0.5, 1.0]) == (pytest.approx(1.0), None, None)
    value, low, high = mean_ratio([math.exp(x) for x in (1.0, 2.0, 3.0, 4.0)])
    half = 3.1824463 * math.sqrt(5 / 3) / 2  # quantile of t with 3 degrees of freedom, deviation, 4 rounds
    assert math.log(value) == pytest.approx(2.5)
    assert (math.log(low), math.log(high)) == (pytest.approx(2.5 - half), pytest.approx(2.5 + half))


def test_fewer_rows_leave_room_for_what_plans_need():
    tables = (
        EmbeddingTable("a", 1000, 8),
        EmbeddingTable("b", 3, 8),
        EmbeddingTable("c", 1000, 8, ids=RangeIds((0.5, 0.5)), reuse_histogram=(1.0, *[0.0] * 16)),
        EmbeddingTable("d", 1000, 8, ids=ZipfIds(1.0, row_order="blocks", block_rows=100)),
    )
    task = ShardingTask(tables, Topology(4, (2**20,) * 4), 8)
    fewer = with_fewer_rows(task, 500)
    assert with_fewer_rows(task, 1) == task
    assert [table.num_embeddings for table in fewer.tables] == [4, 3, 4, 4]
    assert fewer.table("c").reuse_histogram is None
    rows = [Shard("a", (250 * n, 250 * n + 250), (0, 8), (n,)) for n in range(4)]
    plan = ShardingPlan.of(task, [*rows, *(Shard.whole(table, 1) for table in tables[1:])])
    cut = plan_with_fewer_rows(plan, task, fewer)
    assert isinstance(cut, ShardingPlan)
    cut.validate(fewer)
    assert [shard.rows for shard in cut.of_table("a")] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    recorded = RecordedIds("log.pt", "a", samples=8, batch_size=8, sha256="0" * 64)
    of_log = dataclasses.replace(task, tables=(dataclasses.replace(tables[0], ids=recorded),))
    with pytest.raises(InputError, match="table 'a' cannot be scaled: its ids are recorded"):
        with_fewer_rows(of_log, 2)


def test_the_same_name_in_two_collections_must_mean_the_same_to_torchrecs_planner():
    tables = (EmbeddingTable("x.t", 100, 8, pooling_factor=2.0), EmbeddingTable("y.t", 100, 8))
    task = ShardingTask(tables, Topology(2, (2**20,) * 2), 8)
    given = {"torchrec": "torchrec", "ours": ShardingPlan.table_wise(task, [0, 1])}
    world = World(0, 2, 2, torch.device("cpu"))
    with pytest.raises(InputError, match="plan 'torchrec': tables of several collections are called 't'"):
        find_contenders(given, task, model_from_task(task), world)


def test_torchrec_plans_no_copies_of_unpooled_tables_on_cpus():
    tables = tuple(EmbeddingTable(f"t{n}", 100, 8, pooling_factor=5.0, pooling="none") for n in range(4))
    task = ShardingTask(tables, Topology(2, (2**26,) * 2), 8192)
    given = {"torchrec": "torchrec", "ours": ShardingPlan.table_wise(task, [0, 1, 0, 1])}
    found, _ = find_contenders(given, task, model_from_task(task), World(0, 2, 2, torch.device("cpu")))
    types = {sharding.sharding_type for sharding in found["torchrec"].sharding_plan.plan[""].values()}
    assert types <= {"table_wise", "column_wise", "row_wise"}
