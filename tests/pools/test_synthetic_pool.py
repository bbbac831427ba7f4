"""The synthetic pool: what its data promise, and (slow) that its ids have the published statistics."""

import math

import numpy as np
import pytest

from shardgym.ids import ReuseCounts, draw_bags
from shardgym.pools.synthetic import PUBLISHED_2021, check_pool, synthetic_tables

GIB = 2**30


def rows():
    return np.array([t.num_embeddings for t in synthetic_tables()])


def pooling():
    return np.array([t.pooling_factor for t in synthetic_tables()])


def test_it_has_856_distinct_tables_with_their_own_skew():
    tables = synthetic_tables()
    assert len(tables) == 856
    assert len({t.name for t in tables}) == 856
    assert len({(t.ids.s, t.ids.q) for t in tables}) == 856
    assert {t.embedding_dim for t in tables} == {16}


def test_every_table_has_a_reuse_histogram_that_sums_to_one():
    for table in synthetic_tables():
        assert math.fsum(table.reuse_histogram) == pytest.approx(1, abs=1e-9)


def test_the_ids_per_sample_are_the_published_ones():
    assert pooling().sum() * PUBLISHED_2021.batch_size == pytest.approx(PUBLISHED_2021.ids, rel=1e-4)


def test_rows_are_heavy_tailed_from_a_hundred_to_twenty_million():
    assert 100 <= rows().min() < 200
    assert 15e6 < rows().max() <= 20e6
    assert 1.0e6 < rows().mean() < 1.4e6
    assert np.median(rows()) < rows().mean() / 3


def test_pooling_factors_are_heavy_tailed():
    assert (pooling() < 1).mean() > 0.3
    assert 10 <= (pooling() >= 100).sum() <= 50
    assert pooling().max() < 250


def test_the_order_of_the_tables_carries_no_information():
    position = np.arange(856)
    for values in (np.log(rows()), np.log(pooling())):
        assert abs(np.corrcoef(position, values)[0, 1]) < 3 / math.sqrt(856)


def test_the_neuroshard_protocol_finds_tasks_and_memory_binds():
    rng = np.random.default_rng(0)
    draws, has_large_table = 0, 0
    for _ in range(100):
        count = int(rng.integers(10, 60))
        while True:
            draws += 1
            size = 4 * rng.choice(rows(), count) * rng.choice([4, 8, 16, 32, 64, 128], count)
            if size.sum() <= 15 * GIB:
                break
        has_large_table += int(size.max() > 4 * GIB)
    assert draws < 200
    assert has_large_table >= 5


@pytest.mark.parametrize("index", [1, 100, 555])
def test_a_stored_histogram_is_that_of_a_real_draw(index):
    table = synthetic_tables()[index]
    counts = ReuseCounts.of(draw_bags(table, PUBLISHED_2021.batch_size, seed=0).indices)
    assert table.reuse_histogram == pytest.approx(counts.row_shares(), abs=5e-4)


@pytest.mark.slow
def test_the_ids_of_the_pool_have_the_published_statistics():
    check = check_pool(synthetic_tables(), seed=1)
    assert check.ok, check.table()
    shares = [row for row in check.rows if row.name.startswith("share")]
    assert max(abs(row.measured - row.published) for row in shares) < 0.005
