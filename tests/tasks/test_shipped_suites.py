"""The suites that come with the package: unchanged, as described, and on the test half only."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from shardgym.costs import make_cost
from shardgym.evaluation.solver import make_solver
from shardgym.plans.migration import rebound
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.pools import load_pool
from shardgym.tables.pools.load import model_names
from shardgym.tasks.suites import load_suite, suite_names

NAMES = [
    "dlrm-v4", "dlrm4-gpu-v1", "dlrm4-v1", "dlrm4-v2", "dlrm8-gpu-v1", "dlrm8-v1", "dlrm8-v2", "drift-v1",
    "hetero4-v2", "nodes16-v1", "production-v1", "published-v1", "quick-v1", "rows8-v1", "sequence-v1", "tiers-v1",
    "tight4-v2",
    "tight8-v2", "tiny-v1", "wide8-v2",
]  # fmt: skip
DRAWN = [name for name in NAMES if name not in ("production-v1", "published-v1", "dlrm-v4", "sequence-v1")]
WIDTHS = [4, 8, 16, 32, 64, 128]
GIB = 2**30

#: Devices, fewest and most tables, GiB of all tables at most.
PROTOCOL = {"dlrm4-gpu-v1": (4, 10, 59, 15), "dlrm8-gpu-v1": (8, 20, 119, 31)}


@functools.cache
def shipped(name):
    """Load a suite once: building its tasks takes longer than all that is tested of them."""
    return load_suite(name)


@pytest.fixture(params=NAMES)
def suite(request):
    return shipped(request.param)


def test_the_suites_are_the_known_ones():
    assert suite_names() == NAMES


def test_every_task_is_the_one_that_was_published(suite):
    assert len(list(suite)) == len(suite) == len(suite.digests)
    assert [task.digest for task in suite] == list(suite.digests)


def test_tasks_of_a_suite_differ_and_are_named_by_their_place(suite):
    assert len(set(suite.digests)) == len(suite)
    assert suite[len(suite) - 1].name == f"{suite.name}/{len(suite) - 1}"


def test_tables_of_tiers_exceed_all_devices_and_fit_the_hosts():
    suite = shipped("tiers-v1")
    by_frequency = 0
    for index, task in enumerate(suite):
        times = float(suite.group(index).partition(" ")[0])
        assert task.total_bytes == pytest.approx(times * task.topology.total_memory_bytes, rel=0.01)
        assert task.topology.num_hosts == 1
        assert task.topology.host_memory_bytes == pytest.approx(2 * task.total_bytes, rel=0.01)
        (order,) = {table.ids.row_order for table in task.tables}
        by_frequency += order == "by_frequency"
    assert by_frequency == 40
    plan = make_solver("lookup_greedy").solve(suite[0], make_cost("roofline"))
    assert plan.uses_host_memory
    costs = [make_cost(name).evaluate(suite[0], [plan])[0] for name in ("roofline", "gpu")]
    assert all(cost.feasible for cost in costs)


GPU_JUDGED = ["nodes16-v1", "production-v1", "published-v1", "dlrm-v4", "tiers-v1", "drift-v1"]


@pytest.mark.parametrize("name", [*PROTOCOL, *GPU_JUDGED])
def test_gpu_suites_are_judged_without_a_gpu(name):
    """The judge knows the card of every task, and measures nothing."""
    suite = shipped(name)
    track = suite.track()
    assert (track.judge.cost, track.oracle.cost, len(suite.tracks)) == ("gpu", "roofline", 1)
    judge = make_cost(track.judge.cost, **track.judge.settings)
    cards = {task.topology.device: task for task in suite}
    for task in cards.values():
        (cost,) = judge.score(task, [ShardingPlan.table_wise(task, [0] * task.num_tables)])
        assert (cost.compute, cost.communication) == ("modelled", "modelled")
        assert 0 < cost.total_ms < math.inf


@pytest.mark.parametrize("name", DRAWN)
def test_no_table_of_the_train_half_is_in_a_suite(name):
    train, test = load_pool("synthetic-2021").split()
    used = {table.name for task in shipped(name) for table in task.tables}
    assert used.isdisjoint(table.name for table in train)
    assert used <= {table.name for table in test}


@pytest.mark.parametrize("name", PROTOCOL)
def test_gpu_suites_follow_the_neuroshard_protocol(name):
    suite, (devices, fewest, most, limit) = shipped(name), PROTOCOL[name]
    counts = [task.num_tables for task in suite]
    assert (len(suite), suite.groups) == (600, [f"max_dim={width}" for width in WIDTHS])
    assert (min(counts), max(counts)) == (fewest, most)
    assert sum(counts) / 600 == pytest.approx((fewest + most) / 2, rel=0.05)
    for index, task in enumerate(suite):
        widths = {table.embedding_dim for table in task.tables}
        assert suite.group(index) == f"max_dim={WIDTHS[index % 6]}"
        assert widths <= set(WIDTHS[: index % 6 + 1])
        assert task.topology.memory_bytes == (4 * GIB,) * devices
        assert task.total_bytes <= limit * GIB
        assert (task.batch_size, task.precision, task.optimizer) == (65_536, "fp32", "exact_sgd")


@pytest.mark.parametrize("name", ["dlrm4", "dlrm8"])
def test_cpu_suites_are_the_gpu_suites_divided_by_eight(name):
    for small, large in zip(shipped(f"{name}-v1"), shipped(f"{name}-gpu-v1"), strict=True):
        assert small.batch_size * 8 == large.batch_size
        assert small.topology.total_memory_bytes * 8 == large.topology.total_memory_bytes
        for one, other in zip(small.tables, large.tables, strict=True):
            assert (one.name, one.embedding_dim, one.pooling_factor) == (
                other.name, other.embedding_dim, other.pooling_factor,
            )  # fmt: skip
            assert one.num_embeddings == math.ceil(other.num_embeddings / 8)


def test_quick_can_be_solved_table_wise_and_sometimes_only_by_watching_memory():
    overfull = 0
    for task in shipped("quick-v1"):
        assert greedy_fits(task, watch_memory=True)
        overfull += not greedy_fits(task, watch_memory=False)
    assert 3 <= overfull <= 7


def test_tiny_can_be_enumerated_and_memory_rules_out_plans_of_half_its_tasks():
    tight = 0
    for task in shipped("tiny-v1"):
        plans = [*itertools.product(*(loads(task, table) for table in task.tables))]
        fitting = sum(fits(task, plan) for plan in plans)
        assert 0 < fitting <= len(plans) < 10_000
        tight += fitting < len(plans)
    assert tight == 6


def test_published_has_every_model_on_a_power_of_two_with_head_room():
    suite = shipped("published-v1")
    assert suite.groups == model_names()
    for task in suite:
        assert task.num_devices.bit_count() == 1
        assert task.total_bytes <= 0.8 * task.topology.total_memory_bytes
        narrowest = max(task.block_bytes(table, table.num_embeddings, 4) for table in task.tables)
        assert narrowest <= task.topology.memory_bytes[0]


def test_statistics_drift_and_tables_stay():
    suite = shipped("drift-v1")
    assert (len(suite), len(suite.groups), suite.group(10)) == (50, 5, "4 nodes, drift 1")
    changes, moves = [], []
    for drift in range(5):
        steps = suite[10 * drift : 10 * drift + 10]
        assert {suite.group(10 * drift + n) for n in range(10)} == {suite.group(10 * drift)}
        assert len({task.topology for task in steps}) == 1
        assert steps[0].total_bytes / steps[0].topology.total_memory_bytes == pytest.approx(0.6, rel=0.01)
        for before, after in itertools.pairwise(steps):
            for one, other in zip(before.tables, after.tables, strict=True):
                same = dataclasses.replace(other, pooling_factor=one.pooling_factor, ids=one.ids)
                assert same == one
                assert one.reuse_histogram is None
                assert dataclasses.replace(other.ids, s=one.ids.s) == one.ids
                changes.append(math.log(other.pooling_factor / one.pooling_factor))
                moves.append(other.ids.s - one.ids.s)
    # As the suite file says.
    assert math.sqrt(sum(x * x for x in changes) / len(changes)) == pytest.approx(0.2, rel=0.05)
    assert math.sqrt(sum(x * x for x in moves) / len(moves)) == pytest.approx(0.03, rel=0.05)
    # A plan for one step is one for the last.
    plan = make_solver("lpt").solve(suite[0], make_cost("roofline"))
    rebound(plan, suite[9]).validate(suite[9])


def test_sequences_are_unpooled_skewed_and_leave_room_for_copies():
    suite = shipped("sequence-v1")
    assert (suite.judge, suite.oracle, len(suite)) == ("replay", "roofline", 40)
    seen = set()
    for index, task in enumerate(suite):
        skews = {table.ids.s for table in task.tables}
        nodes = task.num_devices // task.topology.fast_domain_size
        assert suite.group(index) == f"s={skews.pop()}, {nodes} nodes"
        assert not skews
        assert task.topology.fast_domain_size == 8
        assert 6 <= task.num_tables <= 12
        seen.add(round(task.total_bytes / task.topology.total_memory_bytes, 2))
        for table in task.tables:
            assert not table.is_pooled
            assert table.ids.row_order == "by_frequency"
        # What is replayed has to stay in memory.
        assert task.batch_size * sum(table.pooling_factor for table in task.tables) < 2e7
    assert seen == {0.25, 0.5}


def test_production_has_a_thousand_tables_of_1_to_12_terabytes():
    suite = shipped("production-v1")
    sizes = {128: [], 512: [], 1024: []}
    for index, task in enumerate(suite):
        sizes[task.num_devices].append(task.total_bytes / 1e12)
        assert suite.group(index) == f"{task.num_devices} GPUs"
        assert (task.batch_size, task.group_sync_interval) == (512 * task.num_devices, 64)
        assert 900 <= task.num_tables <= 1100
        assert len({table.name.partition("/")[0] for table in task.tables}) >= 4
    assert [np.digitize(found, [1, 2, 4, 7, 12]).tolist() for found in sizes.values()] == [[1, 2, 3, 4], [2], [2]]


def greedy_fits(task, watch_memory):
    """Balance lookups greedily, as the heuristics do, and say whether all devices hold their tables."""
    cost, used = [0.0] * task.num_devices, [0] * task.num_devices
    tables = sorted(task.tables, key=lambda t: t.embedding_dim * t.pooling_factor, reverse=True)
    for table in tables:
        size = task.table_bytes(table)
        open_devices = [
            d for d in range(task.num_devices) if not watch_memory or used[d] + size <= task.topology.memory_bytes[d]
        ]
        if not open_devices:
            return False
        device = min(open_devices, key=lambda d: cost[d])
        cost[device] += table.embedding_dim * table.pooling_factor
        used[device] += size
    return all(u <= m for u, m in zip(used, task.topology.memory_bytes, strict=True))


def loads(task, table):
    """Bytes per device of every way to place a table whole or in two halves on two devices."""
    devices = range(task.num_devices)
    ways = [{d: task.table_bytes(table)} for d in devices]
    if table.embedding_dim % 8 == 0:
        half = task.block_bytes(table, table.num_embeddings, table.embedding_dim // 2)
        ways += [dict.fromkeys(pair, half) for pair in itertools.combinations(devices, 2)]
    return ways


def fits(task, plan):
    return all(sum(way.get(d, 0) for way in plan) <= task.topology.memory_bytes[d] for d in range(task.num_devices))
