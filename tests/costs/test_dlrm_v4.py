"""MLPerf's DLRMv4: what is published of its memory and steps comes out of the suite's tasks."""

import dataclasses

import pytest

from neuroshard.plus.sharing import even_rows
from shardgym import ShardingPlan, load_suite, make_cost
from shardgym.plans.feasibility import plan_problems

pytestmark = pytest.mark.repository

GIB = 2**30
#: Tasks of the suite: 32 GPUs, all ids on 8 and on 16.
AVERAGE, SKEWED, PATCHED, ON_8, ON_16 = 9, 10, 11, 0, 4


@pytest.fixture(scope="module")
def suite():
    return load_suite("dlrm-v4")


def by_rows(task):
    """All tables over all ranks, as TorchRec's planner cut them."""
    return ShardingPlan.of(task, [shard for table in task.tables for shard in even_rows(table, task.num_devices)])


def ms(task, wire):
    """Of all tables by rows, whether or not they fit; FP16 by stock quantisers, with weights as they are."""
    tables = tuple(dataclasses.replace(table, precision="fp32") for table in task.tables)
    roomy = task.topology.roomy()
    task = dataclasses.replace(task, tables=tables, precision=wire, step_memory=None, topology=roomy)
    return make_cost("gpu").evaluate(task, [by_rows(task)])[0].total_ms


def test_rows_alone_run_out_of_memory_in_the_skewed_batch(suite):
    """A copy of what the hottest rank sends takes 81.5 GiB then; a patched quantiser makes none, and all fits."""
    average, skewed, patched = (suite[n] for n in (AVERAGE, SKEWED, PATCHED))
    rows = by_rows(skewed)
    (problem,) = plan_problems(skewed, rows.shards)
    assert problem.startswith("device 0 holds")
    assert make_cost("gpu").evaluate(skewed, [rows])[0].reason is not None
    lookups = sum(skewed.shard_lookups(skewed.table(s.table), s.rows).average for s in rows.on(0))
    assert lookups * 512 * 4 / GIB == pytest.approx(81.5, rel=0.002)
    assert not plan_problems(patched, by_rows(patched).shards)
    hottest = max(held.total for held in by_rows(average).memory_per_device(average))
    assert 0.8 * 208 < hottest / GIB < 238


def test_gains_are_of_the_published_size(suite):
    """Which wire they were measured with is not published: FP32 and FP16 are on both sides of them, or near."""
    gains = {
        (gpus, wire): ms(dataclasses.replace(suite[gpus], dedup_ids=False), wire)
        - ms(dataclasses.replace(suite[gpus], dedup_ids=True), wire)
        for gpus, wire in ((ON_8, "fp32"), (ON_16, "fp32"), (ON_16, "fp16"))
    }
    assert 0.7 * 135.9 < gains[ON_8, "fp32"] < 1.3 * 135.9
    assert gains[ON_16, "fp16"] < 290.0 < gains[ON_16, "fp32"]
    assert 100 * (ms(suite[ON_8], "fp32") - ms(suite[ON_8], "fp16")) / 941.6 == pytest.approx(6.0, abs=1.5)
