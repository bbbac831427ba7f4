"""MLPerf's DLRMv4: what is published of its memory and steps comes out of the suite's tasks."""

import pytest

from shardgym import load_suite, make_cost
from shardgym.plans.feasibility import plan_problems

pytestmark = pytest.mark.repository

GIB = 2**30


@pytest.fixture
def dlrm_v4(script):
    return script("dlrm_v4")


def test_rows_alone_run_out_of_memory_in_the_skewed_batch(dlrm_v4):
    """A copy of what the hottest rank sends takes 81.5 GiB then; a patched quantiser makes none, and all fits."""
    suite = load_suite("dlrm-v4")
    skewed, patched, average = (suite[n] for n in (dlrm_v4.SKEWED, dlrm_v4.PATCHED, dlrm_v4.AVERAGE))
    rows = dlrm_v4.by_rows(skewed)
    problems = plan_problems(skewed, rows.shards)
    assert len(problems) == 1
    assert problems[0].startswith("device 0 holds")
    assert make_cost("gpu").evaluate(skewed, [rows])[0].reason is not None
    lookups = sum(skewed.shard_lookups(skewed.table(s.table), s.rows).average for s in rows.on(0))
    assert lookups * 512 * 4 / GIB == pytest.approx(81.5, rel=0.002)
    assert not plan_problems(patched, dlrm_v4.by_rows(patched).shards)
    assert 0.8 * 208 < dlrm_v4.hottest_gib(average, dlrm_v4.by_rows(average)) < 238


def test_gains_are_of_the_published_size(dlrm_v4):
    """Which wire they were measured with is not published: FP32 and FP16 are on both sides of them, or near."""
    rows = {(row["GPUs"], row["what"]): row for row in dlrm_v4.gain_rows()}
    assert 0.7 * 135.9 < rows[8, "no repeats, FP32"]["ms"] < 1.3 * 135.9
    assert rows[16, "no repeats, FP16"]["ms"] < 290.0 < rows[16, "no repeats, FP32"]["ms"]
    assert rows[8, "FP16, all ids"]["%"] == pytest.approx(6.0, abs=1.5)
