"""Lookups and distinct rows of ranges of rows, and rows looked up in runs, by hand and against ids that were drawn."""

import dataclasses
import itertools

import numpy as np
import pytest
from rank_loads import expected_loads, replayed_loads

from shardgym import Shard, ShardingPlan, ShardingTask, Topology
from shardgym.errors import InputError
from shardgym.tables.bags import ReuseCounts, range_bounds
from shardgym.tables.ids import draw_bags, place_ranks
from shardgym.tables.row_access import access_by_range, access_share, distinct_by_range, distinct_rows, position_matters
from shardgym.tables.streams.statistics import mean_run_length
from shardgym.tables.table import EmbeddingTable, RangeIds, RecordedIds, TablePool, UniformIds, ZipfIds

#: s = 1, q = 0, three rows: weights 1, 1/2, 1/3, so 6/11, 3/11, 2/11.
THREE = ZipfIds(s=1.0, row_order="by_frequency")
RECORDED = RecordedIds("x.pt", "t000", 8, 8, "0" * 64, range_shares=(0.75, 0.25), range_distinct=(0.5, 0.5))


def table(ids, rows=3, pooling=1.0, **fields):
    return EmbeddingTable("t", rows, 4, pooling, ids, **fields)


def test_rows_by_frequency_have_the_shares_of_their_ranks_and_others_are_scattered():
    np.testing.assert_allclose([access_share(table(THREE), row, row + 1) for row in range(3)], [6 / 11, 3 / 11, 2 / 11])
    plain, stated = (table(ZipfIds(s=1.1, row_order=order), 1000) for order in (None, "scattered"))
    np.testing.assert_array_equal(draw_bags(plain, 64, seed=0).indices, draw_bags(stated, 64, seed=0).indices)
    assert stated.digest != plain.digest
    assert not {"row_order", "block_rows"} & {*plain.identity()["ids"]}


def test_blocks_keep_ranks_together_and_the_rest_at_the_end():
    # Two blocks of two rows and a row that fills none: blocks of ranks 0, 1 and 2, 3 and rank 4.
    places = place_ranks(np.arange(5), 5, 2)
    assert sorted(places.tolist()) == [0, 1, 2, 3, 4]
    assert places[1] == places[0] + 1
    assert places[3] == places[2] + 1
    assert places[4] == 4


@pytest.mark.parametrize(("rows", "block"), [(10, 1), (10, 3), (10, 10), (1000, 7), (1000, 999), (65_537, 64)])
def test_places_are_a_bijection(rows, block):
    np.testing.assert_array_equal(np.sort(place_ranks(np.arange(rows), rows, block)), np.arange(rows))


def test_ranges_have_the_shares_that_were_measured():
    # Rows 0 to 4 and 5 to 9.
    ids = RangeIds(shares=(0.9, 0.1))
    assert access_share(table(ids, 10), 0, 5) == pytest.approx(0.9)
    assert access_share(table(ids, 10), 4, 6) == pytest.approx(0.9 / 5 + 0.1 / 5)
    assert access_share(table(RECORDED, 10), 0, 5) == pytest.approx(0.75)
    assert access_share(table(RECORDED, 10), 4, 6) == pytest.approx(0.75 / 5 + 0.25 / 5)


def test_recorded_distinct_rows_are_those_that_were_counted():
    histogram = (0.0, 1.0, *[0.0] * 15)  # all rows twice
    seen = table(RECORDED, 1000, pooling=8.0, reuse_histogram=histogram)
    assert distinct_rows(seen, 100) == pytest.approx(400)
    assert distinct_rows(seen, 100, 0, 500) == pytest.approx(200)


@pytest.mark.parametrize("ids", [UniformIds(), ZipfIds(s=1.2), ZipfIds(s=0.0, row_order="by_frequency")])
def test_where_nothing_is_known_every_range_has_its_fair_share(ids):
    known = table(ids, 800, 5.0)
    assert not position_matters(known)
    assert access_share(known, 100, 300) == 200 / 800
    assert distinct_rows(known, 64, 100, 300) == distinct_rows(known, 64) * (200 / 800)


LAWS = [
    ZipfIds(s=1.1, row_order="scattered"),
    ZipfIds(s=1.1, row_order="by_frequency"),
    ZipfIds(s=1.1, row_order="blocks", block_rows=50),
    ZipfIds(s=1.1, q=3.0, row_order="blocks", block_rows=3),
    RangeIds(shares=(0.5, 0.0, 0.3, 0.2), s=1.1),
]


@pytest.mark.parametrize("ids", LAWS)
@pytest.mark.parametrize("rows", [200, 5003, 2**40])
def test_ranges_share_out_all_lookups_and_all_distinct_rows(ids, rows):
    split = [0, 1, rows // 7, rows // 3 + 1, rows - 2, rows]
    known = table(ids, rows, 20.0)
    ranges = list(itertools.pairwise(split))
    assert sum(access_share(known, *of) for of in ranges) == pytest.approx(1, abs=1e-9)
    parts = [distinct_rows(known, 100, *of) for of in ranges]
    assert sum(parts) == pytest.approx(distinct_rows(known, 100), rel=0.02)
    assert all(part <= stop - start for part, (start, stop) in zip(parts, ranges, strict=True))


@pytest.mark.parametrize("ids", LAWS)
@pytest.mark.parametrize("rows", [200, 5003, 100_000])
def test_drawn_ids_fall_where_the_table_says(ids, rows):
    known = table(ids, rows, 16.0)
    indices = draw_bags(known, 8192, seed=3).indices
    assert 0 <= indices.min() <= indices.max() < rows
    bounds = np.array([0, rows // 10, rows // 3, rows // 2, rows - rows // 8, rows])
    expected = [access_share(known, *of) for of in itertools.pairwise(bounds.tolist())]
    counted = np.histogram(indices, bounds)[0] / len(indices)
    np.testing.assert_allclose(counted, expected, atol=0.006)
    distinct = np.histogram(np.unique(indices), bounds)[0]
    predicted = [distinct_rows(known, 8192, *of) for of in itertools.pairwise(bounds.tolist())]
    np.testing.assert_allclose(distinct, predicted, rtol=0.06, atol=0.005 * rows)


def test_ranges_of_rows_are_as_even_as_can_be():
    assert range_bounds(3, 10).tolist() == [0, 3, 6, 10]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ZipfIds(s=1.0, row_order="blocks"), "expected block_rows only with row_order='blocks', got no block"),
        (lambda: ZipfIds(s=1.0, block_rows=4), "got block_rows=4 with None"),
        (lambda: RangeIds(shares=(0.5, 0.4)), "shares must sum to 1"),
        (lambda: RangeIds(shares=(0.0, 0.0)), "shares must sum to 1, but all are 0"),
        (lambda: dataclasses.replace(RECORDED, range_distinct=None), "of equal length, got 2 and 0"),
        (lambda: table(RangeIds(shares=(0.5, 0.5)), 1), "table 't' has 1 rows, too few for the 2 ranges"),
        (lambda: table(ZipfIds(s=1.0, row_order="blocks", block_rows=5), 4), "has 4 rows, too few for blocks of 5"),
    ],
)
def test_orders_that_contradict_themselves_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_scaled_tables_keep_where_their_hot_rows_lie():
    ids = [ZipfIds(s=1.1, q=3.5, row_order="blocks", block_rows=80), RangeIds(shares=(0.9, 0.1), s=1.1, q=3.5)]
    tables = tuple(EmbeddingTable(f"t{n}", 4000, 4, 2.0, law) for n, law in enumerate(ids))
    small = TablePool("p", 64, tables).scaled(8)
    assert small[0].ids.block_rows == 10
    for before, after in zip(tables, small, strict=True):
        assert access_share(after, 0, 250) == pytest.approx(access_share(before, 0, 2000), abs=0.02)


@pytest.mark.parametrize("served", [1.0, 0.25, 1 / 128])
@pytest.mark.parametrize(
    "law",
    [
        ZipfIds(s=1.1, q=2.0, row_order="by_frequency"),
        ZipfIds(s=0.4, row_order="scattered"),
        RangeIds(shares=(0.5, 0.3, 0.2)),
        UniformIds(),
    ],
    ids=["by_frequency", "scattered", "ranges", "uniform"],
)
def test_ranges_that_follow_each_other_are_counted_at_once(law, served):
    table = EmbeddingTable("t", 50_000, 8, 20.0, law, run_length=1.5)
    for edges in (np.array([0, 50_000]), np.array([0, 1, 7, 300, 301, 20_000, 50_000]), np.array([100, 5_000, 6_000])):
        ranges = list(itertools.pairwise(edges.tolist()))
        shares = [access_share(table, *of) for of in ranges]
        np.testing.assert_allclose(access_by_range(table, edges), shares, rtol=1e-9)
        distinct = [distinct_rows(table, 4096, *of, served) for of in ranges]
        np.testing.assert_allclose(distinct_by_range(table, 4096, edges, served), distinct, rtol=1e-9)
    counted = dataclasses.replace(table, reuse_histogram=(1.0,) + (0.0,) * 16)
    assert not distinct_by_range(counted, 8, np.array([0, 50, 100]), 0.0).any()  # of a device without samples


ZIPF = ZipfIds(s=1.05, q=2.0)


def in_runs(run_length, ids=ZIPF, **fields):
    return EmbeddingTable("t", 50_000, 4, 8.0, ids, run_length=run_length, **fields)


def test_runs_by_hand():
    # All rows are touched four times. Half of the samples touch a row with 1 - 1/2**4, or, in runs of two, 1 - 1/2**2.
    fours = (0.0, 0.0, 1.0, *[0.0] * 14)
    alone, runs, whole = (in_runs(n, reuse_histogram=fours) for n in (1, 2, 100))
    assert distinct_rows(alone, 100) == distinct_rows(runs, 100) == pytest.approx(800 / 3.5)
    assert distinct_rows(runs, 100, served=0.5) == pytest.approx(800 / 3.5 * (1 - 0.5 ** (3.5 / 2)))
    assert distinct_rows(whole, 100, served=0.5) == pytest.approx(800 / 3.5 / 2)


def test_drawn_ids_are_repeated_and_one_is_the_default():
    runs = draw_bags(in_runs(4), 64, seed=0).indices
    np.testing.assert_array_equal(runs.reshape(-1, 4), np.repeat(runs[::4, None], 4, axis=1))
    assert "run_length" not in in_runs(1.0).canonical_text


@pytest.mark.parametrize("run_length", [1, 2.5, 6])
@pytest.mark.parametrize("ids", [UniformIds(), ZIPF, ZipfIds(s=1.05, row_order="by_frequency")])
def test_replicas_touch_as_many_rows_as_replayed_streams(run_length, ids):
    task = ShardingTask((in_runs(run_length, ids),), Topology(num_devices=4, memory_bytes=2**30), 8192)
    cuts = [(0, 10_000), (10_000, 50_000)]
    plan = ShardingPlan.of(task, [Shard("t", of, (0, 4), (0, 1, 2, 3)) for of in cuts])
    stream = {"t": draw_bags(task.tables[0], 8192, seed=1)}
    found, told = replayed_loads(task, plan, stream), expected_loads(task, plan)
    np.testing.assert_allclose(told[1], found[1], rtol=0.05)


@pytest.mark.parametrize("run_length", [2, 5])
def test_run_lengths_of_streams_tell_what_a_rank_touches(run_length):
    drawn = draw_bags(in_runs(run_length), 8192, seed=2)
    found = mean_run_length(*drawn)
    assert found > 1.2
    counted = dataclasses.replace(in_runs(found), reuse_histogram=ReuseCounts.of(drawn.indices).row_shares())
    quarter = len(np.unique(drawn.indices[: int(drawn.lengths[:2048].sum())]))
    assert distinct_rows(counted, 8192, served=0.25) == pytest.approx(quarter, rel=0.08)
    in_any_order = dataclasses.replace(counted, run_length=1)
    assert distinct_rows(in_any_order, 8192, served=0.25) > 1.2 * quarter


@pytest.mark.parametrize("ids", [UniformIds(), ZIPF])
def test_samples_in_any_order_have_runs_of_one(ids):
    assert mean_run_length(*draw_bags(in_runs(1, ids), 8192, seed=2)) == 1
    assert mean_run_length(np.zeros(0, dtype=np.int64), np.zeros(4, dtype=np.int64)) == 1
