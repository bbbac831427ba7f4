"""`neuroshard_plus` over tables that devices share: prices, the best of all plans, and what it may choose from."""

import dataclasses
import itertools

import numpy as np
import pytest
from random_tasks import random_task

from neuroshard.plus.choices import shared_on_average
from neuroshard.plus.local_search import Allocation
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import SHARED_TYPES, Place, even_rows, forms_of, places_of, shards_of, takes_rows
from neuroshard.plus.solver import NeuroShardPlus, RowWise
from neuroshard.shard_table import ShardTable
from shardgym import InputError, NoFeasiblePlanError, Shard, ShardingPlan, ShardingTask, Topology, load_suite, make_cost
from shardgym.costs.ties import quantized
from shardgym.evaluation.solver import Budget, OutOfTime
from shardgym.tables.table import EmbeddingTable

COSTS = {
    "roofline": make_cost("roofline"),
    "gpu": make_cost("gpu", hardware="a100"),
    "rating": make_cost("torchrec_rating"),
}


def task_in_domains(seed: int, tables: int = 8, devices: int = 4, domain: int = 2, batch_size: int = 4096):
    task = random_task(seed, tables, devices, 8.0)
    topology = dataclasses.replace(
        task.topology, fast_domain_size=domain, intra_bandwidth=5e9, intra_latency_ms=0.01, inter_latency_ms=0.05
    )
    return dataclasses.replace(task, topology=topology, batch_size=batch_size)


def total_ms(cost, task, plan):
    return cost.evaluate(task, [plan])[0].total_ms


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", COSTS)
def test_an_allocation_costs_what_its_plan_does(name, seed):
    """Tables in any of the forms, the others by columns; and a plan's places are found again."""
    task, cost = task_in_domains(seed), COSTS[name]
    shards, rng = ShardTable(task), np.random.default_rng(seed)
    pricing = Pricing(shards, cost.additive())
    forms = forms_of(task, cost.additive(), SHARED_TYPES)
    places = []
    for of_table in forms:
        if of_table and rng.random() < 0.7:
            form = of_table[rng.integers(len(of_table))]
            places.append(Place(form, int(rng.integers(task.num_devices // len(form.bytes))) * len(form.bytes)))
    shared = pricing.shared.changed([], places)
    units = np.zeros((task.num_devices, task.num_tables), dtype=np.int64)
    for table in set(range(task.num_tables)) - set(shared.places):
        units[rng.integers(task.num_devices), table] = shards.units[table]
    allocation = Allocation(pricing.beside(shared), units)
    plan = allocation.pricing.plan(allocation.units)
    plan.validate(task)
    used = shared.bytes + shards.bytes[shards.first + units].sum(axis=1)
    assert used.tolist() == plan.bytes_per_device(task)
    assert allocation.total_ms == pytest.approx(total_ms(cost, task, plan), rel=1e-6, abs=1e-5)
    for table, place in shared.places.items():
        assert plan.kind_of(task.tables[table].name, task) == place.form.kind
    assert {place.form.table: place.first for place in places_of(task, plan, forms)} == {
        table: place.first for table, place in shared.places.items()
    }


def every_plan(task: ShardingTask) -> list[ShardingPlan]:
    """All plans of whole tables, halves, rows over all devices or those of a node, and replicas."""
    devices, domain = task.num_devices, task.topology.fast_domain_size
    ways = []
    for table in task.tables:
        width = table.embedding_dim
        found = [[Shard.whole(table, device)] for device in range(devices)]
        found += [
            [Shard(table.name, (0, table.num_embeddings), columns, (device,)) for columns, device in pieces]
            for pair in itertools.combinations(range(devices), 2)
            for pieces in [[((0, width // 2), pair[0]), ((width // 2, width), pair[1])]]
        ]
        found.append(even_rows(table, devices))
        if domain < devices:
            found += [even_rows(table, domain, first) for first in range(0, devices, domain)]
        found.append([Shard.whole(table, *range(devices))])
        ways.append(found)
    return [ShardingPlan.of(task, [s for way in chosen for s in way]) for chosen in itertools.product(*ways)]


#: Rows, columns and ids per sample of tables of which the best plans are of different kinds.
MIXES = {
    "hot": [(4000, 16, 200.0), (3000, 8, 1.0), (50, 16, 4.0)],
    "small": [(40, 16, 2.0), (60, 8, 3.0), (20, 16, 1.0)],
    "wide": [(90_000, 64, 5.0), (40, 8, 20.0), (5000, 16, 30.0)],
}


def mixed_task(name: str, devices: int, domain: int) -> ShardingTask:
    tables = tuple(EmbeddingTable(f"t{n}", *sizes) for n, sizes in enumerate(MIXES[name]))
    topology = Topology(
        devices, 2**30, fast_domain_size=domain, intra_bandwidth=2e9, inter_bandwidth=0.25e9, intra_latency_ms=0.02
    )
    return ShardingTask(tables, topology, batch_size=8192)


@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize(("devices", "domain"), [(2, 2), (4, 2)])
def test_no_plan_of_any_kind_is_better_by_two_percent(name, mix, devices, domain):
    task, cost = mixed_task(mix, devices, domain), COSTS[name]
    least = min(answer.total_ms for answer in cost.evaluate(task, every_plan(task)))
    assert total_ms(cost, task, NeuroShardPlus().solve(task, cost)) <= 1.02 * least


@pytest.mark.parametrize("kinds", [[], *([kind] for kind in SHARED_TYPES)], ids=lambda kinds: "".join(kinds) or "none")
def test_plans_have_the_sharding_types_that_were_asked_for(kinds):
    found = set()
    for seed in range(4):
        task = task_in_domains(seed, tables=6, batch_size=65536)
        for cost in (COSTS["rating"], COSTS["roofline"]):
            plan = NeuroShardPlus(kicks=2, sharding_types=kinds).solve(task, cost)
            found |= {plan.kind_of(table.name, task) for table in task.tables}
    assert found <= {"table_wise", "column_wise", "table_column_wise", *kinds}


def test_row_wise_cuts_a_hot_table_over_all_devices_and_no_other():
    tables = EmbeddingTable("hot", 1001, 64, 300.0), *(EmbeddingTable(f"t{n}", 1000, 128, 1.0) for n in range(8))
    task, cost = ShardingTask(tables, Topology(4, 2**30), batch_size=1200), COSTS["rating"]
    plan = RowWise(kicks=4).solve(task, cost)
    plan.validate(task)
    assert list(plan.of_table("hot")) == even_rows(tables[0], 4)
    assert {shard.num_rows for shard in plan.shards if shard.table != "hot"} == {1000}
    by_columns = NeuroShardPlus(kicks=4, sharding_types=[]).solve(task, cost)
    assert total_ms(cost, task, plan) < 0.8 * total_ms(cost, task, by_columns)


def test_other_sharding_types_are_refused():
    with pytest.raises(InputError, match=r"sharding_types: expected some of row_wise, .*, got 'rows'"):
        NeuroShardPlus(sharding_types=["rows"])
    with pytest.raises(InputError, match="sharding_types"):
        NeuroShardPlus(sharding_types="row_wise")


def test_a_cost_without_replicas_gets_none(simulator):
    task = mixed_task("small", 4, 4)
    assert not NeuroShardPlus(kicks=2).solve(task, simulator).has_replicas
    assert NeuroShardPlus(kicks=2).solve(task, COSTS["rating"]).has_replicas


def test_a_given_plan_with_shared_tables_is_searched_from():
    task, cost = mixed_task("hot", 4, 2), COSTS["rating"]
    tables = task.tables
    given = ShardingPlan.of(task, [*even_rows(tables[0], 4), Shard.whole(tables[1], 0), Shard.whole(tables[2], 0)])
    found = NeuroShardPlus(kicks=0, sharding_types=["row_wise"]).solve(task, cost, initial_plan=given)
    assert total_ms(cost, task, found) <= total_ms(cost, task, given)
    solver = NeuroShardPlus(kicks=0, sharding_types=["row_wise"])
    limited = solver.solve(task, cost, initial_plan=given, time_limit_s=1e-6)
    assert total_ms(cost, task, limited) <= total_ms(cost, task, given)


def test_what_is_shared_on_average_fits_and_heeds_the_clock():
    task, cost = mixed_task("small", 4, 2), COSTS["gpu"]
    forms = forms_of(task, cost.additive(), SHARED_TYPES)
    pricing = Pricing(ShardTable(task), cost.additive())
    ways = shared_on_average(pricing, forms, Budget())
    assert ways
    assert all(shared.places for shared in ways)
    with pytest.raises(OutOfTime):
        shared_on_average(pricing, forms, Budget(0.0))
    tight = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=(2600,) * 4))
    for shared in shared_on_average(Pricing(ShardTable(tight), cost.additive()), forms, Budget()):
        assert (shared.bytes <= 2600).all()
    sums = sum(place.form.vectors.sum(axis=0) for place in ways[-1].places.values())
    assert quantized(ways[-1].sums.sum(axis=0)) == pytest.approx(quantized(sums), rel=1e-9)


def test_pieces_are_those_that_torchrec_takes():
    assert [s.rows for s in even_rows(EmbeddingTable("t", 10, 4), 4)] == [(0, 3), (3, 6), (6, 9), (9, 10)]
    # Ceil(5 / 4) rows each leave nothing for the last device.
    assert len(even_rows(EmbeddingTable("t", 5, 4), 4)) == 3
    assert not takes_rows(EmbeddingTable("t", 5, 4), 4)
    assert not takes_rows(EmbeddingTable("t", 10, 4, pooling="mean"), 4)
    unpooled = ShardingTask((EmbeddingTable("t", 10, 4, pooling="none"),), Topology(2, 2**20), 64)
    assert [form.kind for form in forms_of(unpooled, COSTS["roofline"].additive(), SHARED_TYPES)[0]] == ["row_wise"]
    grid = forms_of(mixed_task("wide", 4, 2), COSTS["roofline"].additive(), ["grid_shard"])[0]
    pieces = shards_of(mixed_task("wide", 4, 2), Place(grid[0], 0))
    assert [(s.rows, s.columns, s.devices) for s in pieces] == [
        ((0, 45_000), (0, 32), (0,)), ((45_000, 90_000), (0, 32), (1,)),
        ((0, 45_000), (32, 64), (2,)), ((45_000, 90_000), (32, 64), (3,)),
    ]  # fmt: skip


def heavy_tables(heavy: int, rows: int, devices: int, memory_bytes: int) -> ShardingTask:
    """Light tables, and narrow ones with many ids, which columns cut into two at most."""
    light = [EmbeddingTable(f"light{n}", 100_000 + n, 32, 2.0) for n in range(24)]
    narrow = [EmbeddingTable(f"narrow{n}", rows + n, 8, 120.0 + n) for n in range(heavy)]
    topology = Topology.preset("dgx-h100", devices, memory_bytes)
    return ShardingTask((*light, *narrow), topology, 65_536)


def test_several_tables_that_columns_hardly_cut_are_shared_at_once():
    """Sharing one of them alone brings nothing, as the next one takes as long."""
    task = heavy_tables(5, 500_000, 16, 2**36)
    plan = NeuroShardPlus(8).solve(task, COSTS["gpu"])
    columns = NeuroShardPlus(8, sharding_types=[]).solve(task, COSTS["gpu"])
    assert total_ms(COSTS["gpu"], task, plan) < 0.6 * total_ms(COSTS["gpu"], task, columns)
    assert {plan.kind_of(f"narrow{n}", task) for n in range(5)} <= {"row_wise", "table_row_wise", "grid_shard"}


def test_where_columns_find_no_room_what_is_heavy_stays_in_its_node():
    """Rows over all devices make room; the rest is shared as where there is room."""
    task = heavy_tables(16, 2_000_000, 64, 2**27)
    table = EmbeddingTable("large", 80_000_000, 8, 1.0)
    task = dataclasses.replace(task, tables=(*task.tables, table))
    with pytest.raises(NoFeasiblePlanError):
        NeuroShardPlus(8, sharding_types=[]).solve(task, COSTS["gpu"])
    plan = NeuroShardPlus(8).solve(task, COSTS["gpu"])
    by_rows = NeuroShardPlus(8, sharding_types=["row_wise"]).solve(task, COSTS["gpu"])
    assert total_ms(COSTS["gpu"], task, plan) < 0.9 * total_ms(COSTS["gpu"], task, by_rows)


def test_equal_tables_beside_many_replicas_are_cut_until_all_devices_are_about_equally_wide():
    """No single cut brings anything, as several devices are the widest."""
    task = load_suite("published-v1")[14]
    plan = NeuroShardPlus().solve(task, COSTS["gpu"])
    replicated = [table for table in task.tables if plan.kind_of(table.name, task) == "data_parallel"]
    assert len(replicated) >= task.num_tables // 4
    kinds = ("table_wise", "column_wise", "table_column_wise")
    by_columns = [s for s in plan.shards if plan.kind_of(s.table, task) in kinds]
    widths = [sum(s.num_columns for s in by_columns if d in s.devices) for d in range(task.num_devices)]
    assert max(widths) <= 1.05 * min(widths)
