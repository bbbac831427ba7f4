"""What both searches do beyond the published one: tight memory, time limits, plans to start from, observers."""

import itertools

import numpy as np
import pytest
from plain_search import PlainSearch
from random_tasks import random_task
from sums import table_wise_totals

from neuroshard.packing import pack
from neuroshard.plus.solver import NeuroShardPlus
from neuroshard.shard_table import ShardTable
from neuroshard.solver import NeuroShard
from shardgym import EmbeddingTable, InputError, NoFeasiblePlanError, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.ties import QUANTUM
from shardgym.errors import InfeasiblePlanError
from shardgym.evaluation.solver import Budget, OutOfTime

UNIT = 4 * 100 * 4
BOTH = pytest.mark.parametrize("search", [NeuroShard, NeuroShardPlus])


def crowded(widths: list[int], units: list[int]) -> ShardingTask:
    """Tables of 100 rows; four columns take one unit of memory."""
    tables = tuple(EmbeddingTable(f"t{n}", 100, width, 1.0 + n) for n, width in enumerate(widths))
    topology = Topology(num_devices=len(units), memory_bytes=tuple(UNIT * n for n in units))
    return ShardingTask(tables, topology, batch_size=64)


#: The published search finds no plan for any of these.
HARD = {
    "a table wider than the limit of every value of the grid": crowded([12], [3, 3]),
    "more halvings than levels": crowded([16] * 12, [2] * 24),
    "memory of very different sizes": crowded([32, 16, 12], [1, 1, 13]),
    "compute has to give way to memory": random_task(2, 5, 2, spare=1.03, uneven=True),
}


@pytest.mark.parametrize("name", HARD)
def test_a_plan_is_found_where_the_published_search_finds_none(simulator, name):
    task = HARD[name]
    assert PlainSearch(task, simulator).run()[0] is None
    for solver in (NeuroShard(), NeuroShardPlus(kicks=2)):
        for cost in (simulator, make_cost("roofline")):
            solver.solve(task, cost).validate(task)


def possible_on_two_devices(task: ShardingTask) -> bool:
    """Add up all shares of the first device that halving leads to; exact without optimiser state."""
    shares = {0}
    for table in task.tables:
        pieces = max(2**n for n in range(8) if table.embedding_dim % (4 * 2**n) == 0)
        piece = task.table_bytes(table) // pieces
        shares = {share + piece * n for share in shares for n in range(pieces + 1)}
    first, second = task.topology.memory_bytes
    return any(share <= first and task.total_bytes - share <= second for share in shares)


def packable(task: ShardingTask) -> bool:
    try:
        pack(ShardTable(task))
    except NoFeasiblePlanError:
        return False
    return True


@pytest.mark.parametrize("spare", [1.01, 1.1])
def test_shards_are_packed_whenever_it_is_possible(spare):
    tasks = [random_task(seed, 5, 2, spare=spare, uneven=True) for seed in range(60)]
    possible = [possible_on_two_devices(task) for task in tasks]
    assert {*possible} == {True, False}
    assert [packable(task) for task in tasks] == possible


def test_packing_goes_back_where_largest_first_fails():
    """Only 5 + 4 and 8 + 7 + 6 fill both devices, and no greedy order finds it."""
    task = crowded([32, 28, 24, 20, 16], [9, 21])
    shards = ShardTable(task)
    devices = pack(shards)
    assert sum(map(len, devices)) == 5, "no table had to be halved"
    assert sorted(int(shards.columns[rows].sum()) for rows in devices) == [36, 84]


@pytest.mark.parametrize(
    ("widths", "units", "message"),
    [
        ([16, 4], [2, 2], f"take {5 * UNIT} bytes, but all devices have {4 * UNIT}:"),
        ([12], [2, 2], f"'t0', has {3 * UNIT} bytes, and the largest device {2 * UNIT}"),
        ([6], [4, 4], "table 't0' has 6 columns"),
    ],
)
def test_what_cannot_be_packed_is_refused_with_the_bytes(widths, units, message):
    with pytest.raises(NoFeasiblePlanError, match=message):
        NeuroShard().solve(crowded(widths, units), make_cost("roofline"))


@BOTH
def test_without_any_time_a_valid_plan_comes_back_or_the_initial_one(simulator, search):
    task = random_task(1, 8, 3)
    initial = ShardingPlan.table_wise(task, [0, 1, 2, 0, 1, 2, 0, 1])
    for cost in (simulator, make_cost("roofline")):
        for hard in HARD.values():
            search().solve(hard, cost, time_limit_s=0).validate(hard)
        assert search().solve(task, cost, time_limit_s=0, initial_plan=initial) == initial


@BOTH
@pytest.mark.parametrize("steps", [3, 10, 40])
def test_when_time_runs_out_in_mid_search_the_best_plan_so_far_comes_back(monkeypatch, search, steps):
    left = itertools.chain([True] * steps, itertools.repeat(False))

    def check(self):
        if not next(left):
            raise OutOfTime

    seen = []
    monkeypatch.setattr(Budget, "check", check)
    task = random_task(6, 11, 3)
    plan = search().solve(task, make_cost("roofline"), time_limit_s=1e6, observer=lambda *best: seen.append(best))
    plan.validate(task)
    assert not seen or plan == seen[-1][0]
    assert next(left) is False, "the search ended before its time"


@pytest.mark.parametrize("solver", [NeuroShard(levels=0, grid=1), NeuroShardPlus()], ids=["neuroshard", "plus"])
def test_a_better_initial_plan_is_kept(simulator, solver):
    task = random_task(9, 8, 3)
    placements = list(itertools.product(range(3), repeat=8))
    totals = table_wise_totals(simulator, task, placements)
    optimum = ShardingPlan.table_wise(task, placements[int(np.argmin(totals))])
    (found,) = simulator.evaluate(task, [solver.solve(task, simulator, initial_plan=optimum)])
    assert found.total_ms <= totals.min() * (1 + 1e-9)


@pytest.mark.parametrize(
    ("solver", "model"),
    [(NeuroShard(), "simulator"), (NeuroShardPlus(kicks=5), "simulator"), (NeuroShardPlus(kicks=5), "roofline")],
)
def test_the_observer_sees_every_improvement_and_last_the_plan_that_is_returned(simulator, solver, model):
    cost, task = simulator if model == "simulator" else make_cost("roofline"), random_task(4, 24, 4)
    seen: list[tuple[ShardingPlan, float]] = []
    plan = solver.solve(task, cost, observer=lambda *best: seen.append(best))
    costs = [ms for _, ms in seen]
    assert len(costs) > 1
    assert costs == sorted(set(costs), reverse=True)
    assert seen[-1][0] == plan
    evaluated = cost.evaluate(task, [plan for plan, _ in seen])
    assert costs == pytest.approx([answer.total_ms for answer in evaluated], rel=0, abs=2 * QUANTUM)


def test_a_time_limit_that_is_not_reached_changes_nothing(simulator):
    task = random_task(6, 11, 3)
    search = NeuroShard()
    assert search.solve(task, simulator, time_limit_s=1e6) == search.solve(task, simulator)


def test_forgetting_sets_changes_nothing(simulator, monkeypatch):
    task = random_task(6, 11, 3)
    expected = NeuroShard().solve(task, simulator)
    monkeypatch.setattr("neuroshard.device_sets._MOST_KEPT", 50)
    monkeypatch.setattr("neuroshard.beam._SHARDS_TOGETHER", 50)
    assert NeuroShard().solve(task, simulator) == expected


def test_an_infeasible_initial_plan_or_one_of_another_task_is_refused(simulator):
    task = crowded([16, 16], [4, 4])
    with pytest.raises(InfeasiblePlanError, match="device 0 holds"):
        NeuroShard().solve(task, simulator, initial_plan=ShardingPlan.table_wise(task, [0, 0]))
    with pytest.raises(InputError, match="plan is for task"):
        NeuroShard().solve(task, simulator, initial_plan=ShardingPlan.table_wise(crowded([16], [4]), [0]))
