"""The pool check passes a pool with the published statistics and names what is off in any other."""

import dataclasses
import json

import pytest

from shardgym.errors import InputError
from shardgym.pools.synthetic import PUBLISHED_2021, check_pool, compare, measure_pool, synthetic_tables
from shardgym.table import EmbeddingTable, UniformIds, ZipfIds

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
    return [row.name for row in check.rows if not row.ok]


def test_measured_statistics_of_a_pool_that_can_be_counted_by_hand():
    one_row = EmbeddingTable("one", 1, 4, 2.0, UniformIds())  # 8 ids, all of row 0: bin (4, 8]
    unused = EmbeddingTable("unused", 10, 4, 0.0, UniformIds())
    statistics = measure_pool([one_row, one_row, unused], 4)
    assert (statistics.num_tables, statistics.batch_size) == (3, 4)
    assert (statistics.ids, statistics.distinct_rows) == (16, 2)
    assert statistics.row_shares == statistics.access_shares == (0, 0, 0, 1, *[0] * 13)


def test_the_published_figures_are_within_tolerance_of_themselves():
    check = compare(PUBLISHED_2021, PUBLISHED_2021)
    assert check.ok
    assert len(check.rows) == 2 + 17 + 17


@pytest.mark.parametrize(
    ("off", "name"),
    [
        (changed(ids=int(887_017_990 * 1.011)), "ids"),
        (changed(ids=int(887_017_990 * 0.989)), "ids"),
        (changed(distinct_rows=int(128_435_723 * 1.021)), "distinct rows"),
        (changed(row_shares=(0.484, *PUBLISHED_2021.row_shares[1:])), "share of distinct rows, reuse 1"),
        (changed(row_shares=(*PUBLISHED_2021.row_shares[:-1], 0.011)), "share of distinct rows, reuse over 32768"),
        (changed(access_shares=(*PUBLISHED_2021.access_shares[:-1], 0.008)), "share of accesses, reuse over 32768"),
    ],
)
def test_one_figure_out_of_tolerance_fails_the_check_and_is_named(off, name):
    check = compare(off, PUBLISHED_2021)
    assert not check.ok
    assert failing(check) == [name]


def test_deviations_inside_the_tolerances_pass():
    inside = changed(
        ids=int(887_017_990 * 1.009),
        distinct_rows=int(128_435_723 * 0.981),
        row_shares=tuple(x + 0.009 for x in PUBLISHED_2021.row_shares),
    )
    assert compare(inside, PUBLISHED_2021).ok


def test_another_draw_of_the_same_pool_passes(as_published):
    assert check_pool(small_pool(), seed=1, published=as_published).ok


def more_ids(t):
    return dataclasses.replace(t, pooling_factor=1.03 * t.pooling_factor)


def more_skew(t):
    return dataclasses.replace(t, ids=dataclasses.replace(t.ids, s=t.ids.s + 0.2))


def fewer_rows(t):
    return dataclasses.replace(t, num_embeddings=t.num_embeddings // 4)


def no_skew(t):
    return dataclasses.replace(t, ids=UniformIds(lengths="poisson"))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (more_ids, "ids"),
        (more_skew, "distinct rows"),
        (fewer_rows, "distinct rows"),
        (no_skew, "share of accesses, reuse 1"),
    ],
)
def test_a_perturbed_pool_fails(change, name, as_published):
    check = check_pool([change(t) for t in small_pool()], published=as_published)
    assert not check.ok
    assert name in failing(check)


def test_a_part_of_the_pool_is_refused():
    with pytest.raises(InputError, match=r"856 tables .* got 855:"):
        check_pool(synthetic_tables()[:-1])


def test_progress_is_reported_after_every_table():
    calls = []
    tables = [EmbeddingTable(f"t{i}", 10, 4, 1.0, ZipfIds(s=1.0)) for i in range(3)]
    measure_pool(tables, 8, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(1, 3), (2, 3), (3, 3)]


def test_the_rendering_shows_both_columns_and_what_is_off():
    lines = compare(changed(ids=900_000_000), PUBLISHED_2021).table().splitlines()
    assert len(lines) == 2 + 36
    assert lines[2].split() == ["ids", "887,017,990", "900,000,000", "8,870,180", "OFF"]
    assert lines[4].split()[-4:] == ["0.4730", "0.4730", "0.0100", "ok"]


def test_the_outcome_survives_json():
    check = compare(changed(ids=900_000_000), PUBLISHED_2021)
    data = json.loads(json.dumps(check.to_dict()))
    assert data["ok"] is False
    assert data["rows"][0] == {
        "name": "ids", "published": 887_017_990, "measured": 900_000_000, "tolerance": 8_870_179.9, "ok": False,
    }  # fmt: skip
