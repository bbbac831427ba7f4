"""`neuroshard_plus` with rows in the memory of hosts: prices, memory of both, and plans against others."""

import dataclasses
import itertools

import numpy as np
import pytest

from neuroshard.plus import solver as solver_module
from neuroshard.plus.local_search import Allocation
from neuroshard.plus.sharing import SHARED_TYPES, Place, forms_of, places_of
from neuroshard.plus.solver import NeuroShardPlus
from neuroshard.plus.tiers import TieredPricing, TieredShards
from neuroshard.row_splits import splits_of
from neuroshard.shard_table import ShardTable, units_of
from shardgym import (
    EmbeddingTable,
    InfeasiblePlanError,
    NoFeasiblePlanError,
    Shard,
    ShardingTask,
    Topology,
    ZipfIds,
    make_cost,
    make_solver,
)
from shardgym.evaluation.solver import OutOfTime
from shardgym.plans.plan import ShardingPlan

COSTS = {"gpu": make_cost("gpu"), "roofline": make_cost("roofline")}


def tiered_task(
    tables: int = 6, devices: int = 2, fill: float = 3.0, host_share: float = 1.5, order: str | None = "by_frequency",
    width: int = 32, **options,
) -> ShardingTask:  # fmt: skip
    """Devices that have room for a part of the tables, and hosts for all of them."""
    found = tuple(
        EmbeddingTable(f"t{n}", 20_000 * (n + 1), width, 5.0 + n, ZipfIds(0.7 + 0.1 * n, row_order=order))
        for n in range(tables)
    )
    task = ShardingTask(found, Topology.preset("dgx-a100", devices), 4096, **options)
    topology = dataclasses.replace(
        task.topology,
        memory_bytes=(int(task.total_bytes / fill / devices),) * devices,
        host_memory_bytes=int(task.total_bytes * host_share),
    )
    return dataclasses.replace(task, topology=topology)


def total_ms(task: ShardingTask, plan: ShardingPlan, cost=COSTS["gpu"]) -> float:
    (answer,) = cost.evaluate(task, [plan])
    assert answer.feasible, answer.reason
    return answer.total_ms


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize(("order", "row_cuts"), [("by_frequency", True), ("scattered", True), ("by_frequency", False)])
def test_an_allocation_costs_and_takes_what_its_plan_does(name, order, row_cuts):
    """Columns anywhere, beside tables cut by rows with every kernel; devices are full, and no more than that."""
    task, cost = tiered_task(order=order, devices=4), COSTS[name]
    rng, costs = np.random.default_rng(0), cost.additive()
    shards = TieredShards(task, costs, splits_of(task, costs, in_host=True, row_cuts=row_cuts))
    pricing = TieredPricing(shards, costs, alike=not row_cuts)
    forms = forms_of(task, costs, SHARED_TYPES, in_host=True)
    for number in (0, 1, 3, 5):
        of_rows = [form for form in forms[0] if form.kind == "row_wise"]
        beside = pricing.beside(pricing.shared.changed([], [Place(of_rows[number % len(of_rows)], 0)]))
        units = np.zeros((task.num_devices, task.num_tables), dtype=np.int64)
        for table in range(1, task.num_tables):
            cut = int(rng.integers(1, 8))
            first, second = rng.permutation(task.num_devices)[:2]
            units[[first, second], table] = cut, pricing.shards.units[table] - cut
        allocation = Allocation(beside, units)
        plan = beside.plan(units)
        plan.validate(task)
        assert allocation.total_ms == pytest.approx(total_ms(task, plan, cost), rel=1e-6, abs=1e-5)
        (place,) = places_of(task, plan, forms)
        assert place.form.way == of_rows[number % len(of_rows)].way
        moves = np.array([[0, 1, table, units[0, table], -1, 0] for table in np.flatnonzero(units[0])])
        for move, compute in zip(moves, allocation.after(moves)[0], strict=True):
            moved = allocation.moved(move)
            if row_cuts:
                assert compute == pytest.approx(moved.compute, abs=1e-5)
        if not row_cuts:
            for table in task.tables:
                assert len({(s.compute_kernel, s.cache_load_factor) for s in plan.of_table(table.name)}) == 1
    in_host = sum(shard.host_bytes(task) for shard in plan.shards)
    assert in_host > 0


def test_no_split_of_memory_is_much_better():
    """Of three tables on two devices, every place and every one of a few splits is tried."""
    task = tiered_task(tables=3, width=8)
    ways = []
    for of in task.tables:
        rows = of.num_embeddings
        whole = Shard.whole(of, 0)
        found = []
        for cut in (0, rows // 32, rows // 8, rows // 2, rows):
            areas = [((0, cut), "fused"), ((cut, rows), "fused_uvm")]
            found.append([
                dataclasses.replace(whole, rows=area, compute_kernel=kernel)
                for area, kernel in areas
                if area[0] < area[1]
            ])  # fmt: skip
        ways.append(found)
    plans = []
    for chosen, places in itertools.product(itertools.product(*ways), itertools.product(range(2), repeat=3)):
        held = [(shard, device) for split, device in zip(chosen, places, strict=True) for shard in split]
        plans.append(ShardingPlan.of(task, [dataclasses.replace(shard, devices=(d,)) for shard, d in held]))
    least = min(answer.total_ms for answer in COSTS["gpu"].evaluate(task, plans))
    assert total_ms(task, NeuroShardPlus().solve(task, COSTS["gpu"])) < 1.01 * least


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("order", ["by_frequency", "scattered"])
def test_it_is_no_worse_than_recshard(name, order):
    task, cost = tiered_task(tables=8, order=order), COSTS[name]
    plan = NeuroShardPlus().solve(task, cost)
    assert plan.leaves_devices
    assert total_ms(task, plan, cost) < 1.005 * total_ms(task, make_solver("recshard").solve(task, cost), cost)


def test_memory_of_hosts_is_left_alone_where_it_is_not_needed():
    roomy = tiered_task(fill=0.5)
    without = dataclasses.replace(roomy, topology=dataclasses.replace(roomy.topology, host_memory_bytes=0))
    assert NeuroShardPlus().solve(roomy, COSTS["gpu"]).shards == NeuroShardPlus().solve(without, COSTS["gpu"]).shards
    tight = tiered_task(fill=1.05)
    small = dataclasses.replace(tight, topology=dataclasses.replace(tight.topology, host_memory_bytes=0))
    with pytest.raises(NoFeasiblePlanError):
        NeuroShardPlus().solve(small, COSTS["gpu"])
    assert NeuroShardPlus().solve(tight, COSTS["gpu"]).leaves_devices


def test_hosts_have_a_limit_too():
    """Caches keep all rows in the host as well; where it has too little for that, whole tables leave it."""
    cached = NeuroShardPlus().solve(tiered_task(order="scattered", fill=1.5), COSTS["gpu"])
    assert any(shard.cache_load_factor for shard in cached.shards)
    tight = tiered_task(order="scattered", fill=1.5, host_share=0.5)
    plan = NeuroShardPlus().solve(tight, COSTS["gpu"])
    plan.validate(tight)
    with pytest.raises(NoFeasiblePlanError, match=r"^no plan was found: the hosts, with"):
        NeuroShardPlus().solve(tiered_task(order="scattered", fill=1 / 0.6, host_share=0.402), COSTS["gpu"])


def test_rows_of_a_given_plan_that_are_on_hosts_count_as_such():
    task = tiered_task(fill=0.9)
    wholes = [Shard.whole(table, number % 2) for number, table in enumerate(task.tables)]
    given = ShardingPlan.of(task, [dataclasses.replace(shard, compute_kernel="fused_uvm") for shard in wholes])
    given.validate(task)
    assert units_of(ShardTable(task), given) is None
    with pytest.raises(InfeasiblePlanError):
        ShardingPlan.of(task, wholes).validate(task)
    NeuroShardPlus(kicks=0).solve(task, COSTS["gpu"], initial_plan=given).validate(task)


def test_hosts_have_their_half_of_the_time(monkeypatch):
    """The search in devices alone uses up whatever it gets."""
    seconds = []

    def in_devices(search, *arguments, **options):
        seconds.append(search.keywords["budget"].left_s)
        raise OutOfTime

    def in_tiers(search, *arguments, **options):
        seconds.append(search.keywords["budget"].left_s)

    monkeypatch.setattr(NeuroShardPlus, "warm_up", lambda *arguments: None)
    monkeypatch.setattr(solver_module, "_search_in_devices", in_devices)
    monkeypatch.setattr(solver_module, "_search_in_tiers", in_tiers)
    task = tiered_task(fill=0.9)
    NeuroShardPlus().solve(task, COSTS["gpu"], time_limit_s=1000.0)
    assert seconds[0] <= 500 < seconds[1] <= 1000
    NeuroShardPlus().solve(tiered_task(fill=0.5), COSTS["gpu"], time_limit_s=1000.0)
    assert seconds[2] > 500


def test_out_of_time_there_is_a_plan_and_a_given_one_is_never_made_worse():
    task = tiered_task()
    at_once = NeuroShardPlus().solve(task, COSTS["gpu"], time_limit_s=0.0)
    at_once.validate(task)
    given = make_solver("recshard").solve(task, COSTS["gpu"])
    solver = NeuroShardPlus(kicks=0)
    assert total_ms(task, solver.solve(task, COSTS["gpu"], initial_plan=given)) <= total_ms(task, given)
