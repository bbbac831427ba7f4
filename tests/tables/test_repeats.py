"""Rows that are looked up in runs: what one device has of them, expected and drawn."""

import dataclasses

import numpy as np
import pytest
from rank_loads import expected_loads, replayed_loads

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, UniformIds, ZipfIds
from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import distinct_rows
from shardgym.tables.streams.statistics import mean_run_length

ZIPF = ZipfIds(s=1.05, q=2.0)


def table(run_length, ids=ZIPF, **fields):
    return EmbeddingTable("t", 50_000, 4, 8.0, ids, run_length=run_length, **fields)


def test_runs_by_hand():
    # All rows are touched four times. Half of the samples touch a row with 1 - 1/2**4, or, in runs of two, 1 - 1/2**2.
    fours = (0.0, 0.0, 1.0, *[0.0] * 14)
    alone, runs, whole = (table(n, reuse_histogram=fours) for n in (1, 2, 100))
    assert distinct_rows(alone, 100) == distinct_rows(runs, 100) == pytest.approx(800 / 3.5)
    assert distinct_rows(runs, 100, served=0.5) == pytest.approx(800 / 3.5 * (1 - 0.5 ** (3.5 / 2)))
    assert distinct_rows(whole, 100, served=0.5) == pytest.approx(800 / 3.5 / 2)


def test_drawn_ids_are_repeated_and_one_is_the_default():
    runs = draw_bags(table(4), 64, seed=0).indices
    np.testing.assert_array_equal(runs.reshape(-1, 4), np.repeat(runs[::4, None], 4, axis=1))
    assert "run_length" not in table(1.0).canonical_text


@pytest.mark.parametrize("run_length", [1, 2.5, 6])
@pytest.mark.parametrize("ids", [UniformIds(), ZIPF, ZipfIds(s=1.05, row_order="by_frequency")])
def test_replicas_touch_as_many_rows_as_replayed_streams(run_length, ids):
    task = ShardingTask((table(run_length, ids),), Topology(num_devices=4, memory_bytes=2**30), 8192)
    cuts = [(0, 10_000), (10_000, 50_000)]
    plan = ShardingPlan.of(task, [Shard("t", of, (0, 4), (0, 1, 2, 3)) for of in cuts])
    stream = {"t": draw_bags(task.tables[0], 8192, seed=1)}
    found, told = replayed_loads(task, plan, stream), expected_loads(task, plan)
    np.testing.assert_allclose(told[1], found[1], rtol=0.05)


@pytest.mark.parametrize("run_length", [2, 5])
def test_run_lengths_of_streams_tell_what_a_rank_touches(run_length):
    drawn = draw_bags(table(run_length), 8192, seed=2)
    found = mean_run_length(*drawn)
    assert found > 1.2
    counted = dataclasses.replace(table(found), reuse_histogram=ReuseCounts.of(drawn.indices).row_shares())
    quarter = len(np.unique(drawn.indices[: int(drawn.lengths[:2048].sum())]))
    assert distinct_rows(counted, 8192, served=0.25) == pytest.approx(quarter, rel=0.08)
    in_any_order = dataclasses.replace(counted, run_length=1)
    assert distinct_rows(in_any_order, 8192, served=0.25) > 1.2 * quarter


@pytest.mark.parametrize("ids", [UniformIds(), ZIPF])
def test_samples_in_any_order_have_runs_of_one(ids):
    assert mean_run_length(*draw_bags(table(1, ids), 8192, seed=2)) == 1
    assert mean_run_length(np.zeros(0, dtype=np.int64), np.zeros(4, dtype=np.int64)) == 1
