"""The suites that come with the package: unchanged, and judged by costs that know their devices."""

import functools
import math

import pytest

from shardgym import ShardingPlan, load_suite, make_cost
from shardgym.tasks.suites import suite_names

NAMES = [
    "dlrm-v4", "dlrm4-gpu-v1", "dlrm4-v1", "dlrm4-v2", "dlrm8-gpu-v1", "dlrm8-v1", "dlrm8-v2", "drift-v1",
    "hetero4-v2", "nodes16-v1", "production-v1", "published-v1", "quick-v2", "rows8-v1", "sequence-v1", "tiers-v1",
    "tight4-v2", "tight8-v2", "tiny-v1", "wide8-v2",
]  # fmt: skip


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
    assert len(set(suite.digests)) == len(suite)
    assert suite[len(suite) - 1].name == f"{suite.name}/{len(suite) - 1}"


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
