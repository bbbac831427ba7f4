"""The synthetic pools: what their data promise, and what the check against published statistics finds."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from shardgym.errors import InputError
from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.pools import load_pool
from shardgym.tables.pools.load import SYNTHETIC_BATCH, synthetic_tables
from shardgym.tables.pools.statistics import (
    PUBLISHED,
    PUBLISHED_2021,
    PUBLISHED_2022,
    check_pool,
    compare,
    format_checks,
    measure_pool,
)
from shardgym.tables.table import EmbeddingTable, UniformIds


def rows():
    return np.array([t.num_embeddings for t in synthetic_tables()])


def pooling():
    return np.array([t.pooling_factor for t in synthetic_tables()])


def test_every_table_has_a_reuse_histogram_that_sums_to_one():
    for table in synthetic_tables():
        assert math.fsum(table.reuse_histogram) == pytest.approx(1, abs=1e-9)


def test_the_ids_per_sample_are_the_published_ones():
    assert pooling().sum() * PUBLISHED_2021.batch_size == pytest.approx(PUBLISHED_2021.ids, rel=1e-4)


def test_the_order_of_the_tables_carries_no_information():
    position = np.arange(856)
    for values in (np.log(rows()), np.log(pooling())):
        assert abs(np.corrcoef(position, values)[0, 1]) < 3 / math.sqrt(856)


@pytest.mark.parametrize(
    ("pool", "index"),
    [("synthetic-2021", 1), ("synthetic-2021", 100), ("synthetic-2021", 555), ("synthetic-2022", 2)],
)
def test_a_stored_histogram_is_that_of_a_real_draw(pool, index):
    table = load_pool(pool)[index]
    counts = ReuseCounts.of(draw_bags(table, SYNTHETIC_BATCH[pool], seed=0).indices)
    assert table.reuse_histogram == pytest.approx(counts.row_shares(), abs=5e-4)


def test_the_2022_pool_has_its_own_tables_and_the_published_size():
    pool = load_pool("synthetic-2022")
    assert (len(pool), pool.batch_size) == (PUBLISHED_2022.num_tables, PUBLISHED_2022.batch_size)
    assert not {t.name for t in pool} & {t.name for t in synthetic_tables()}
    assert sum(t.pooling_factor for t in pool) * pool.batch_size == pytest.approx(PUBLISHED_2022.ids, rel=1e-4)


@pytest.mark.parametrize("pool", SYNTHETIC_BATCH)
def test_stored_histograms_add_up_to_the_published_statistics(pool):
    """From the files alone, in no time: expected distinct rows are ids over the mean accesses of a row."""
    tables = load_pool(pool)
    published = PUBLISHED[pool]
    shares = np.array([t.reuse_histogram for t in tables])
    # The middle of a bin on a logarithmic scale is near the mean accesses of its rows.
    centres = np.array([1, 2, *(2.0 ** np.arange(1, 16) * 1.45)])
    ids = np.array([t.pooling_factor for t in tables]) * published.batch_size
    rows = ids / (shares @ centres)
    assert rows.sum() == pytest.approx(published.distinct_rows, rel=0.05)
    assert rows @ shares / rows.sum() == pytest.approx(np.array(published.row_shares), abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("pool", SYNTHETIC_BATCH)
def test_the_ids_of_the_pool_have_the_published_statistics(pool):
    check = check_pool(synthetic_tables(pool), seed=1)
    assert not failing(check), format_checks(check)
    shares = [row for row in check if row.name.startswith("share")]
    assert max(abs(row.measured - row.published) for row in shares) < 0.005


SMALL_BATCH = 512


def small_pool():
    return [t for t in synthetic_tables() if t.num_embeddings > 100_000][:60]


@pytest.fixture(scope="module")
def as_published():
    """What a file with the small pool's statistics would publish."""
    return measure_pool(small_pool(), SMALL_BATCH, seed=0)


def changed(**changes):
    return dataclasses.replace(PUBLISHED_2021, **changes)


def failing(check):
    return [row.name for row in check if not row.ok]


def test_measured_statistics_of_a_pool_that_can_be_counted_by_hand():
    one_row = EmbeddingTable("one", 1, 4, 2.0, UniformIds())  # 8 ids, all of row 0: bin (4, 8]
    unused = EmbeddingTable("unused", 10, 4, 0.0, UniformIds())
    statistics = measure_pool([one_row, one_row, unused], 4)
    assert (statistics.num_tables, statistics.batch_size) == (3, 4)
    assert (statistics.ids, statistics.distinct_rows) == (16, 2)
    assert statistics.row_shares == statistics.access_shares == (0, 0, 0, 1, *[0] * 13)


@pytest.mark.parametrize(
    ("off", "name"),
    [
        (changed(ids=int(887_017_990 * 1.011)), "ids"),
        (changed(distinct_rows=int(128_435_723 * 1.021)), "distinct rows"),
        (changed(row_shares=(0.484, *PUBLISHED_2021.row_shares[1:])), "share of distinct rows, reuse 1"),
        (changed(access_shares=(*PUBLISHED_2021.access_shares[:-1], 0.008)), "share of accesses, reuse over 32768"),
    ],
)
def test_one_figure_out_of_tolerance_fails_the_check_and_is_named(off, name):
    check = compare(off, PUBLISHED_2021)
    assert failing(check) == [name]


def test_deviations_inside_the_tolerances_pass():
    inside = changed(
        ids=int(887_017_990 * 1.009),
        distinct_rows=int(128_435_723 * 0.981),
        row_shares=tuple(x + 0.009 for x in PUBLISHED_2021.row_shares),
    )
    assert not failing(compare(inside, PUBLISHED_2021))


def more_ids(t):
    return dataclasses.replace(t, pooling_factor=1.03 * t.pooling_factor)


def no_skew(t):
    return dataclasses.replace(t, ids=UniformIds(lengths="poisson"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (more_ids, "ids"),
        (no_skew, "share of accesses, reuse 1"),
    ],
)
def test_a_perturbed_pool_fails(change, name, as_published):
    check = check_pool([change(t) for t in small_pool()], published=as_published)
    assert name in failing(check)


def test_a_part_of_the_pool_is_refused():
    with pytest.raises(InputError, match=r"788 or 856 tables .* got 855:"):
        check_pool(synthetic_tables()[:-1])


def test_the_rendering_shows_both_columns_and_what_is_off():
    lines = format_checks(compare(changed(ids=900_000_000), PUBLISHED_2021)).splitlines()
    assert len(lines) == 2 + 36
    assert lines[2].split() == ["ids", "887,017,990", "900,000,000", "8,870,180", "OFF"]
    assert lines[4].split()[-4:] == ["0.4730", "0.4730", "0.0100", "ok"]


def test_progress_is_reported_after_every_table():
    calls = []
    tables = [EmbeddingTable(f"t{i}", 10, 4, 1.0) for i in range(3)]
    measure_pool(tables, 8, progress=lambda: calls.append(1))
    assert len(calls) == 3
