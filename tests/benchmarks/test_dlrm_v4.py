"""MLPerf's DLRMv4: what is published of its memory and steps comes out of the suite's tasks."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from shardgym import ShardingTask, load_suite, make_cost
from shardgym.plans.feasibility import plan_problems

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.repository

GIB = 2**30


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("dlrm_v4")


def task(number: int) -> ShardingTask:
    return load_suite("dlrm-v4")[number]


def test_rows_alone_run_out_of_memory_in_the_skewed_batch(script: ModuleType) -> None:
    """A copy of what the hottest rank sends takes 81.5 GiB then; a patched quantiser makes none, and all fits."""
    skewed, patched = task(script.SKEWED), task(script.PATCHED)
    rows = script.by_rows(skewed)
    problems = plan_problems(skewed, rows.shards)
    assert len(problems) == 1
    assert problems[0].startswith("device 0 holds")
    assert make_cost("gpu").evaluate(skewed, [rows])[0].reason is not None
    lookups = sum(skewed.shard_lookups(skewed.table(s.table), s.rows).average for s in rows.on(0))
    assert lookups * 512 * 4 / GIB == pytest.approx(81.5, rel=0.002)
    assert not plan_problems(patched, script.by_rows(patched).shards)
    average = task(script.AVERAGE)
    assert 0.8 * 208 < script.hottest_gib(average, script.by_rows(average)) < 238


def test_gains_are_of_the_published_size(script: ModuleType) -> None:
    """Which wire they were measured with is not published: FP32 and FP16 are on both sides of them, or near."""
    gains = {(row["GPUs"], row["what"]): row["ms"] for row in script.gain_rows()}
    assert 0.7 * 135.9 < gains[8, "no repeats, FP32"] < 1.3 * 135.9
    assert gains[16, "no repeats, FP16"] < 290.0 < gains[16, "no repeats, FP32"]
    fp16 = next(row for row in script.gain_rows() if (row["GPUs"], row["what"]) == (8, "FP16, all ids"))
    assert fp16["%"] == pytest.approx(6.0, abs=1.5)
