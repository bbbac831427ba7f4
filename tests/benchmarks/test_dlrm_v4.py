"""MLPerf's DLRMv4: what is published of its memory and steps comes out of the suite's tasks."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from neuroshard.plus.sharing import even_rows
from shardgym import ShardingTask, load_suite, make_cost, make_solver
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.tables.row_access import access_share, distinct_rows

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.repository

GIB = 2**30
#: Of the ids of a rank's batch.
DISTINCT = {"item_id": 0.024, "artist_id": 0.006, "album_id": 0.015}
#: Times the mean, on the hottest of 32 ranks.
HOTTEST = {"artist_id": 1.3, "album_id": 2.8}


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("dlrm_v4")


def task(number: int) -> ShardingTask:
    return load_suite("dlrm-v4")[number]


def test_tasks_have_the_published_tables_ids_and_devices() -> None:
    suite = load_suite("dlrm-v4")
    found = {(of.num_devices, of.topology.memory_bytes[0] // GIB) for of in suite}
    assert {devices for devices, _ in found} == {8, 16, 32}
    assert {memory for _, memory in found} == {288, 192, 180, 141}
    assert all(of.batch_size == 1024 * of.num_devices for of in suite)
    assert all(not table.is_pooled for of in suite for table in of.tables)
    for of in suite:
        check_possible(of)
    first = suite[0]
    assert sum(table.num_embeddings for table in first.tables) == 293_051_712
    assert sum(table.num_embeddings * table.embedding_dim * 4 for table in first.tables) == 600_169_906_176
    for name, share in DISTINCT.items():
        table = first.table(name)
        assert (table.pooling_factor, table.num_features) == (2664, 2)
        distinct = distinct_rows(table, 8192, served=1 / 8) / (1024 * 2664)
        assert distinct == pytest.approx(share, rel=0.01)
    for name, times in HOTTEST.items():
        table = first.table(name)
        shares = [access_share(table, *shard.rows) for shard in even_rows(table, 32)]
        assert max(shares) * 32 == pytest.approx(times, rel=0.01)


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


def test_the_published_mend_fits_at_the_published_share_in_every_batch(script: ModuleType) -> None:
    for number in (script.AVERAGE, script.SKEWED):
        of = task(number)
        plan = script.mended(of)
        assert not plan_problems(of, plan.shards)
        share = script.hottest_gib(of, plan) * GIB / of.topology.memory_bytes[0]
        assert share == pytest.approx(script.PUBLISHED_MEND_SHARE, abs=0.02)


def test_gains_are_of_the_published_size(script: ModuleType) -> None:
    """Which wire they were measured with is not published: FP32 and FP16 are on both sides of them, or near."""
    gains = {(row["GPUs"], row["what"]): row["ms"] for row in script.gain_rows()}
    assert 0.7 * 135.9 < gains[8, "no repeats, FP32"] < 1.3 * 135.9
    assert gains[16, "no repeats, FP16"] < 290.0 < gains[16, "no repeats, FP32"]
    fp16 = next(row for row in script.gain_rows() if (row["GPUs"], row["what"]) == (8, "FP16, all ids"))
    assert fp16["%"] == pytest.approx(6.0, abs=1.5)


def test_searches_find_more_than_the_published_mend(script: ModuleType) -> None:
    """Of several nodes with all ids, in a third to a half of the time."""
    of = task(script.SKEWED)
    judge = make_cost("gpu")
    plan = make_solver("neuroshard_plus").solve(of, make_cost("roofline"), seed=0)
    found, mend = judge.evaluate(of, [plan, script.mended(of)])
    assert found.total_ms < 0.7 * mend.total_ms
