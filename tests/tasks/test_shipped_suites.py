"""The suites that come with the package: unchanged, as described, and on the test half only."""

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest

from shardgym.costs import make_cost
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.pools import load_pool
from shardgym.tasks.suites import load_suite, suite_names

NAMES = [
    "dlrm-v4", "dlrm4-gpu-v1", "dlrm4-v1", "dlrm4-v2", "dlrm8-gpu-v1", "dlrm8-v1", "dlrm8-v2", "drift-v1",
    "hetero4-v2", "nodes16-v1", "production-v1", "published-v1", "quick-v1", "rows8-v1", "sequence-v1", "tiers-v1",
    "tight4-v2",
    "tight8-v2", "tiny-v1", "wide8-v2",
]  # fmt: skip
DRAWN = [name for name in NAMES if name not in ("production-v1", "published-v1", "dlrm-v4", "sequence-v1")]


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


GPU_JUDGED = ["dlrm4-gpu-v1", "nodes16-v1", "production-v1", "published-v1", "dlrm-v4", "tiers-v1", "drift-v1"]


@pytest.mark.parametrize("name", GPU_JUDGED)
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


def test_statistics_drift_and_tables_stay():
    suite = shipped("drift-v1")
    assert (len(suite), len(suite.groups), suite.group(10)) == (50, 5, "4 nodes, drift 1")
    changes, moves = [], []
    for before, after in itertools.pairwise(suite[:10]):
        for one, other in zip(before.tables, after.tables, strict=True):
            assert dataclasses.replace(other, pooling_factor=one.pooling_factor, ids=one.ids) == one
            changes.append(math.log(other.pooling_factor / one.pooling_factor))
            moves.append(other.ids.s - one.ids.s)
    # As the suite file says.
    assert np.std(changes) == pytest.approx(0.2, rel=0.1)
    assert np.std(moves) == pytest.approx(0.03, rel=0.1)
