"""No plan costs less than the lower bound: all of small tasks, random ones with cuts, and what solvers find."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardgym
from shardgym import (
    EmbeddingTable,
    Shard,
    ShardingPlan,
    ShardingTask,
    Topology,
    ZipfIds,
    load_suite,
    lower_bound,
    make_cost,
)
from shardgym.bounds import rating_bound
from shardgym.costs.roofline import DEVICES
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.solver import make_solver

ROOFLINE = make_cost("roofline")
RATING = make_cost("torchrec_rating")


@st.composite
def small_tasks(draw):
    """One to five tables of up to 64 columns on one to four devices, in one fast domain or several."""
    devices = draw(st.integers(1, 4))
    tables = tuple(
        EmbeddingTable(
            f"t{n}",
            num_embeddings=draw(st.sampled_from([1, 30, 4000, 10**6, 10**8])),
            embedding_dim=4 * draw(st.integers(1, 16)),
            pooling_factor=draw(st.sampled_from([0.0, 0.3, 1.0, 20.0, 300.0])),
            ids=ZipfIds(draw(st.sampled_from([0.0, 1.2]))),
        )
        for n in range(draw(st.integers(1, 5)))
    )
    return ShardingTask(
        tables,
        Topology(
            num_devices=devices,
            memory_bytes=2**50,
            device=draw(st.sampled_from(["cpu-core", "h100"])),
            fast_domain_size=draw(st.integers(1, devices)),
            inter_bandwidth=draw(st.sampled_from([1e8, 4e9, 1e11])),
        ),
        batch_size=draw(st.sampled_from([1, 500, 65536])),
        precision=draw(st.sampled_from(["fp32", "fp16"])),
        optimizer=draw(st.sampled_from(["exact_sgd", "rowwise_adagrad", "adam"])),
    )


def random_plan(task, rng, row_cuts):
    """Cut every table by columns into random pieces, each of these by rows, and place each piece anywhere."""
    shards = []
    for table in task.tables:
        for columns in pieces(table.embedding_dim // 4, rng):
            rows = pieces(table.num_embeddings, rng) if row_cuts else [(0, table.num_embeddings)]
            for part in rows:
                device = int(rng.integers(task.num_devices))
                shards.append(Shard(table.name, part, (4 * columns[0], 4 * columns[1]), device))
    return ShardingPlan.of(task, shards)


def pieces(length, rng):
    ends = np.unique([0, length, *rng.integers(0, length + 1, rng.integers(0, 4))]).tolist()
    return list(itertools.pairwise(ends))


def is_kept(bound, task, plans):
    costs = [cost.total_ms for cost in ROOFLINE.evaluate(task, plans)]
    return min(costs) >= bound.total_ms


@settings(max_examples=60, deadline=None, derandomize=True)
@given(small_tasks(), st.booleans(), st.integers(0, 2**32 - 1))
def test_no_random_plan_beats_the_bound(task, row_cuts, seed):
    rng = np.random.default_rng(seed)
    assert is_kept(
        lower_bound(task, ROOFLINE, row_cuts=row_cuts), task, [random_plan(task, rng, row_cuts) for _ in range(15)]
    )


@settings(max_examples=40, deadline=None, derandomize=True)
@given(small_tasks(), st.booleans(), st.integers(0, 2**32 - 1))
def test_no_random_plan_is_rated_below_the_bound(task, row_cuts, seed):
    rng = np.random.default_rng(seed)
    plans = [random_plan(task, rng, row_cuts) for _ in range(10)]
    bound = lower_bound(task, RATING, row_cuts=row_cuts)
    assert bound.total_ms <= min(cost.total_ms for cost in RATING.evaluate(task, plans))
    assert bound.total_ms <= lower_bound(task, RATING, row_cuts=False).total_ms


def test_the_rating_is_bounded_by_the_even_share_or_by_a_table_that_must_be_cut():
    """Round numbers: 128 columns and two ids take 1.6 + 102.4 + 51.2 ms three times, 51.2 ms twice."""
    plain = make_cost("torchrec_rating", hbm_mem_bw=1e3, intra_host_bw=1e3, inter_host_bw=1e3)
    tables = tuple(EmbeddingTable(f"t{n}", 1000, 128, 2.0) for n in range(4))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=2**40), batch_size=100)
    (cost,) = plain.evaluate(task, [ShardingPlan.table_wise(task, range(4))])
    assert cost.total_ms == pytest.approx(3 * 155.2 + 2 * 51.2)
    assert lower_bound(task, plain, row_cuts=False).total_ms == pytest.approx(cost.total_ms, rel=1e-8)
    alone = dataclasses.replace(task, tables=tables[:1])
    halves = [Shard("t0", (0, 1000), columns, device) for device, columns in enumerate([(0, 64), (64, 128)])]
    quarter = 32 * 4 * 100 / 1e3
    least = 3 * 1.75 * (1.6 + 2 * quarter + quarter) + 2 * quarter  # four pieces of 32 columns, one on each device
    (cut,) = plain.evaluate(alone, [ShardingPlan.of(alone, halves)])
    bound = lower_bound(alone, plain, row_cuts=False)
    assert bound.total_ms == pytest.approx(least, rel=1e-8)
    assert bound.total_ms < cut.total_ms
    assert bound.argument == "work"


def test_even_rows_are_bounded_between_no_rows_and_any():
    task = load_suite("published-v1")[1]
    bounds = [rating_bound(task, RATING.constants, cuts) for cuts in ("any", "even", "none")]
    assert bounds == sorted(bounds)
    (all_rows,) = RATING.evaluate(task, [by_rows(task)])
    assert bounds[1] <= all_rows.total_ms


def by_rows(task):
    """Cut all tables evenly by rows over all devices."""
    shards = []
    for table in task.tables:
        block = -(-table.num_embeddings // task.num_devices)
        edges = [*range(0, table.num_embeddings, block), table.num_embeddings]
        shards += [
            Shard(table.name, rows, (0, table.embedding_dim), device)
            for device, rows in enumerate(itertools.pairwise(edges))
        ]
    return ShardingPlan.of(task, shards)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(small_tasks(), st.sampled_from([1.02, 1.5, 10.0]))
def test_no_solver_beats_the_bound(task, room):
    share = int(room * task.total_bytes / task.num_devices) + 1
    memory = tuple(share * (2 + device % 2) // 2 for device in range(task.num_devices))
    task = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=memory))
    plans = []
    for solver in (make_solver("neuroshard_plus", queries=4), make_solver("lookup_greedy")):
        try:
            plans.append(solver.solve(task, ROOFLINE))
        except NoFeasiblePlanError:
            continue
    bounds = [lower_bound(task, ROOFLINE, row_cuts=row_cuts) for row_cuts in (True, False)]
    assert bounds[0].total_ms <= bounds[1].total_ms
    assert not plans or is_kept(bounds[1], task, plans)


def halves(shares):
    """Four tables of two units of columns on two devices: 0, 1 or 2 units of each on the first."""
    return itertools.product(range(3), repeat=shares)


def even_task(rows=2000, pooling=10.0):
    tables = tuple(EmbeddingTable(f"t{n}", rows * (n + 1), 8, pooling) for n in range(4))
    return ShardingTask(tables, Topology(num_devices=2, memory_bytes=2**40), batch_size=2048)


def column_plan(task, units_on_first):
    shards = []
    for table, units in zip(task.tables, units_on_first, strict=True):
        for device, columns in enumerate([(0, 4 * units), (4 * units, 8)]):
            if columns[0] < columns[1]:
                shards.append(Shard(table.name, (0, table.num_embeddings), columns, device))
    return ShardingPlan.of(task, shards)


def test_the_bound_is_close_to_the_optimum_of_a_task_that_is_tried_out():
    task = even_task()
    best = min(cost.total_ms for cost in ROOFLINE.evaluate(task, [column_plan(task, units) for units in halves(4)]))
    bound = lower_bound(task, ROOFLINE, row_cuts=False)
    assert bound.total_ms <= best <= 1.05 * bound.total_ms


def test_equal_tables_one_on_each_device_are_optimal():
    """Tables that cannot be cut; the bound is the cost up to rounding, and each argument gives the same."""
    tables = tuple(EmbeddingTable(f"t{n}", 5000, 4, 8.0) for n in range(4))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=2**40), batch_size=2048)
    (cost,) = ROOFLINE.evaluate(task, [ShardingPlan.table_wise(task, range(4))])
    bound = lower_bound(task, ROOFLINE, row_cuts=False)
    assert bound.total_ms == pytest.approx(cost.total_ms, rel=1e-8)
    assert bound.total_ms <= cost.total_ms
    assert bound.pieces_ms == pytest.approx(bound.work_ms)
    assert bound.exchange_ms == pytest.approx(cost.per_device[0, 2])


def test_a_table_too_many_shares_a_device():
    """Five equal tables of four columns on four devices: two of them are on the same."""
    tables = tuple(EmbeddingTable(f"t{n}", 5000, 4, 8.0) for n in range(5))
    task = ShardingTask(tables, Topology(num_devices=4, memory_bytes=2**40, intra_latency_ms=0.0), batch_size=2048)
    bound = lower_bound(task, ROOFLINE, row_cuts=False)
    (cost,) = ROOFLINE.evaluate(task, [ShardingPlan.table_wise(task, [0, 1, 2, 3, 0])])
    assert bound.argument == "pieces"
    assert bound.pieces_ms == pytest.approx(cost.per_device[0].sum() - cost.per_device[0, 1])
    assert lower_bound(task, ROOFLINE).argument == "work"


def test_small_devices_leave_the_work_to_the_large_one():
    """The second device has room for half of one table, so the first must carry three and a half."""
    task = even_task(rows=100)
    tables = tuple(dataclasses.replace(table, num_embeddings=1000) for table in task.tables)
    topology = dataclasses.replace(task.topology, memory_bytes=(2**30, 16_000))
    task = dataclasses.replace(task, tables=tables, topology=topology)
    bound = lower_bound(task, ROOFLINE, row_cuts=False)
    assert bound.argument == "memory"
    plan = column_plan(task, [2, 2, 2, 1])
    (cost,) = ROOFLINE.evaluate(task, [plan])
    assert cost.feasible
    assert bound.total_ms <= cost.total_ms <= 1.1 * bound.total_ms


def test_even_memory_adds_nothing():
    assert lower_bound(even_task(), ROOFLINE).memory_ms == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_shard_takes_longer_the_more_rows_and_columns_it_has(device):
    """What the argument takes for granted of the constants: reads from the cache are not slower than from memory."""
    constants = DEVICES[device]
    assert constants.cache_bandwidth >= constants.memory_bandwidth
    assert constants.table_ms > 0


@pytest.mark.parametrize(
    ("name", "reason"), [("simulator", "it is learned"), ("evaluation_toys:CountCost", "what its times are made of")]
)
def test_a_cost_without_a_proof_is_refused(name, reason):
    with pytest.raises(
        InputError, match=rf"no lower bound is known for cost .*{reason}.*'roofline' and 'torchrec_rating' have one"
    ):
        lower_bound(even_task(), make_cost(name))


def test_tasks_without_a_feasible_plan_have_no_bound():
    task = even_task()
    small = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=(9, 9)))
    with pytest.raises(NoFeasiblePlanError, match="the devices have 18 together"):
        lower_bound(small, ROOFLINE)


def test_what_is_no_task_is_refused():
    with pytest.raises(InputError, match="task: expected a ShardingTask"):
        shardgym.lower_bound("dlrm4-v1", ROOFLINE)
