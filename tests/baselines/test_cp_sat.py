"""`cp_sat` against every plan there is, and the cheapest assignment against every assignment."""

import itertools
import sys

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.links import link_prices, transfer_ms
from shardgym.errors import InputError, MissingDependencyError, NoFeasiblePlanError
from shardgym.solver import make_solver

pytest.importorskip("ortools", reason="needs the extra 'exact'")

from baselines.cp_sat import CpSat, cheapest_assignment

SHAPES = [(3000, 16, 12.0), (9000, 8, 3.0), (500, 32, 20.0), (20_000, 4, 1.0), (4000, 16, 6.0), (800, 64, 2.0)]


def make_task(count, memory_bytes, **links):
    tables = tuple(EmbeddingTable(f"t{n}", *SHAPES[n % 6]) for n in range(count))
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes), **links)
    return ShardingTask(tables, topology, batch_size=512)


def best_table_wise(task, cost):
    placements = itertools.product(range(task.num_devices), repeat=task.num_tables)
    plans = [ShardingPlan.table_wise(task, placement) for placement in placements]
    return min(answer.total_ms for answer in cost.evaluate(task, plans))


TASKS = {
    "room": make_task(6, [2**30] * 2),
    "three devices": make_task(5, [2**30] * 3),
    "tight": make_task(6, [680_000, 660_000]),
    "uneven": make_task(5, [700_000, 300_000, 200_000]),
    "two domains": make_task(5, [2**30] * 4, fast_domain_size=2, inter_bandwidth=2e8),
    "a domain of one": make_task(5, [2**30] * 3, fast_domain_size=2, inter_bandwidth=2e8),
}


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("hardware", ["cpu-core", "rtx-2080-ti"])
def test_an_additive_cost_is_minimised_exactly(name, hardware):
    """The estimate is exact for roofline, with ids hidden or not, so the optimum of the model is that of the cost."""
    task, cost = TASKS[name], make_cost("roofline", hardware=hardware)
    (found,) = cost.evaluate(task, [CpSat().solve(task, cost)])
    assert found.total_ms == pytest.approx(best_table_wise(task, cost), rel=1e-6)


def test_halved_columns_cost_less_where_one_table_is_most_of_the_work():
    tables = (EmbeddingTable("large", 3000, 64, 30.0), EmbeddingTable("small", 100, 8, 1.0))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**30), batch_size=4096)
    cost = make_cost("roofline")
    plan = CpSat(halvings=1).solve(task, cost)
    assert sorted(shard.columns for shard in plan.shards if shard.table == "large") == [(0, 32), (32, 64)]
    assert cost.evaluate(task, [plan])[0].total_ms < best_table_wise(task, cost)


def test_halves_fit_where_whole_tables_do_not():
    tables = (EmbeddingTable("a", 1000, 8), EmbeddingTable("b", 1000, 8), EmbeddingTable("c", 1000, 8))
    task = ShardingTask(tables, Topology(num_devices=2, memory_bytes=48_000), batch_size=64)
    with pytest.raises(NoFeasiblePlanError, match="no plan with tables whole fits into memory"):
        CpSat().solve(task, make_cost("roofline"))
    plan = CpSat(halvings=1).solve(task, make_cost("roofline"))
    plan.validate(task)
    # A plan to start from is better than none, though whole tables do not fit.
    assert CpSat().solve(task, make_cost("roofline"), initial_plan=plan) == plan


def test_the_oracle_chooses_and_improvements_are_told():
    task, cost, told = make_task(12, [2**30] * 3), make_cost("simulator"), []
    worst = ShardingPlan.table_wise(task, [0] * 12)
    plan = CpSat(effort=0.1).solve(task, cost, initial_plan=worst, observer=lambda plan, ms: told.append((ms, plan)))
    costs = [ms for ms, _ in told]
    assert told[0][1] == worst
    assert costs == sorted(costs, reverse=True)
    assert told[-1] == (pytest.approx(cost.evaluate(task, [plan])[0].total_ms), plan)


@pytest.mark.parametrize("limit", [0.0, 0.05])
def test_a_time_limit_ends_with_a_feasible_plan(limit):
    task = make_task(40, [2**30] * 4)
    CpSat(halvings=1).solve(task, make_cost("roofline"), time_limit_s=limit).validate(task)


def test_settings_that_make_no_sense_are_refused():
    for settings in ({"halvings": -1}, {"rounds": 0}, {"effort": 0}, {"effort": "long"}):
        with pytest.raises(InputError, match=next(iter(settings))):
            make_solver("cp_sat", **settings)


def test_without_or_tools_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    monkeypatch.delitem(sys.modules, "ortools.sat.python.cp_model", raising=False)
    with pytest.raises(MissingDependencyError, match=r"cp_sat needs 'ortools'.*pip install 'shardgym\[exact\]'"):
        CpSat()


@pytest.mark.parametrize("memory", [[2**30] * 3, [600_000, 400_000, 400_000], [500_000, 450_000, 400_000]])
def test_the_cheapest_assignment_is_the_best_of_all(memory):
    task = make_task(6, memory)
    costs = np.random.default_rng(0).normal(size=(6, 3)) + np.array([0.0, 0.5, 1.0])
    sizes = [task.table_bytes(table) for table in task.tables]

    def added(devices):
        used = np.bincount(devices, weights=sizes, minlength=3)
        return costs[range(6), devices].sum() if (used <= memory).all() else np.inf

    best = min(itertools.product(range(3), repeat=6), key=lambda devices: added(list(devices)))
    assert cheapest_assignment(task, costs).tolist() == list(best)


def test_assignments_that_cannot_be_are_refused():
    task = make_task(6, [300_000, 300_000])
    with pytest.raises(NoFeasiblePlanError, match="no assignment of whole tables"):
        cheapest_assignment(task, np.ones((6, 2)))
    with pytest.raises(InputError, match=r"costs: expected finite numbers of shape \(6, 2\), got shape \(6, 3\)"):
        cheapest_assignment(task, np.ones((6, 3)))


def test_the_lines_of_the_link_model_are_its_transfer():
    rng = np.random.default_rng(0)
    for devices, domain in [(1, 1), (2, 2), (4, 2), (5, 2), (5, 3), (6, 1), (7, 7)]:
        topology = Topology(
            num_devices=devices, memory_bytes=1, fast_domain_size=domain, intra_latency_ms=0.01, inter_bandwidth=1e9
        )
        prices = link_prices(topology, 1001, 4)
        for widths in rng.integers(0, 200, (20, devices)) * rng.integers(0, 2, (20, devices)):
            inside = np.bincount(prices.domains, weights=widths)[prices.domains]
            others = np.array([inside - widths, widths.sum() - inside])
            lines = prices.latency_ms + np.maximum(prices.sent_ms * widths, prices.received_ms * others)
            np.testing.assert_allclose(lines.max(axis=0), transfer_ms(topology, widths, 1001, 4), rtol=1e-12)
