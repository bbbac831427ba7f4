"""What is counted in batches of streams and fitted to it; tables, pools and recorded ids that are made of them."""

import dataclasses

import numpy as np
import pytest
import torch

from shardgym import DrawnStream, EmbeddingTable, InputError, RangeIds, UniformIds, ZipfIds, open_stream
from shardgym.tables.bags import Bags, ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import access_share
from shardgym.tables.streams.statistics import FeatureStatistics, mean_run_length
from shardgym.tables.streams.stream import DATA_VARIABLE
from shardgym.tables.tables_of_streams import fit_ids, pool_of_stream


def random_batches(count, samples, rows, most):
    rng = np.random.default_rng(0)
    for _ in range(count):
        lengths = rng.integers(0, most + 1, samples)
        yield Bags(np.minimum(rng.geometric(0.02, int(lengths.sum())) - 1, rows - 1), lengths)


def test_counts_are_those_of_counting_one_by_one():
    batches = list(random_batches(5, 30, 400, 6))
    found = FeatureStatistics(400, 30)
    for bags in batches:
        found.add(bags)
    ids = np.concatenate([bags.indices for bags in batches])
    assert (found.batches, found.samples, found.ids, found.lengths) == (5, 150, len(ids), "poisson")
    assert found.pooling_factor == len(ids) / 150
    assert found.distinct == sum(len(set(bags.indices.tolist())) for bags in batches)
    assert found.distinct_share == found.distinct / len(ids)
    reuse = ReuseCounts()
    for bags in batches:
        reuse.add(ReuseCounts.of(bags.indices))
    assert found.reuse.row_shares() == reuse.row_shares()
    assert found.run_length == pytest.approx(np.mean([mean_run_length(*bags) for bags in batches]), abs=0.005)


def test_lookups_and_distinct_rows_lie_in_ranges():
    found = FeatureStatistics(400, 30)
    batches = list(random_batches(4, 30, 400, 6))
    for bags in batches:
        found.add(bags)
    bounds = np.arange(193) * 400 // 192
    lookups = sum(np.histogram(bags.indices, bounds)[0] for bags in batches)
    distinct = sum(np.histogram(np.unique(bags.indices), bounds)[0] for bags in batches)
    assert found.ranges.lookups == pytest.approx(lookups / lookups.sum(), abs=1e-6)
    assert found.ranges.distinct == pytest.approx(distinct / distinct.sum(), abs=1e-6)
    halves = (np.concatenate([bags.indices for bags in batches]) < 200).mean()
    assert found.lookup_shares(2)[0] == pytest.approx(halves, abs=1e-6)
    assert (found.lookup_shares(0), len(found.lookup_shares(100))) == ((1.0,), 96)


def test_batches_without_ids_are_counted():
    found = FeatureStatistics(100, 3, checksum=True)
    found.add(Bags(np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64)))
    assert (found.pooling_factor, found.distinct_share, found.run_length) == (0, 0, 1)
    assert found.reuse.row_shares() == (0,) * 17
    assert set(found.ranges.lookups) == {0}
    assert fit_ids(found) == UniformIds()


def test_checksums_do_not_depend_on_batches():
    bags = next(random_batches(1, 30, 400, 6))
    sums = []
    for size in (30, 10, 5):
        found = FeatureStatistics(400, size, checksum=True)
        for first in range(0, 30, size):
            found.add(bags.samples(first, size))
        sums.append(found.sha256)
    assert len(set(sums)) == 1
    other = FeatureStatistics(400, 30, checksum=True)
    other.add(Bags(bags.indices, bags.lengths[::-1].copy()))
    assert other.sha256 != sums[0]
    with pytest.raises(InputError, match="without a checksum"):
        _ = FeatureStatistics(400, 30).sha256


@pytest.mark.parametrize(
    "ids",
    [
        ZipfIds(1.1, lengths="poisson", row_order="scattered"),
        ZipfIds(1.3, 1000.0, row_order="by_frequency"),
        ZipfIds(1.1, row_order="blocks", block_rows=10_000),
        UniformIds(),
    ],
)
def test_a_fitted_law_draws_what_the_stream_has(ids):
    """Where rows lie, to a hundredth; and as many distinct rows in a batch."""
    truth = EmbeddingTable("t", 10**5, 4, 8.0, ids)
    found = counted(truth)
    law = fit_ids(found)
    assert law.lengths == ids.lengths
    fitted = EmbeddingTable("u", 10**5, 4, found.pooling_factor, law)
    assert counted(fitted).distinct_share == pytest.approx(found.distinct_share, rel=0.02)
    for start in range(0, 10**5, 25_000):
        share = access_share(truth, start, start + 25_000)
        assert access_share(fitted, start, start + 25_000) == pytest.approx(share, abs=0.02)


def counted(table):
    return DrawnStream([table], samples=4096 * 4, seed=1).statistics(4096)[table.name]


def test_drawn_streams_have_the_batches_of_draw_bags():
    tables = (EmbeddingTable("a", 50, 4, 2.0), EmbeddingTable("b", 9, 4))
    stream = DrawnStream(tables, samples=70, seed=3)
    batches = list(stream.batches(32))
    assert len(batches) == 2
    for number, batch in enumerate(batches):
        for table in tables:
            assert np.array_equal(batch[table.name].indices, draw_bags(table, 32, seed=3, batch=number).indices)
    assert stream.rows() == {"a": 50, "b": 9}
    with pytest.raises(InputError, match="unknown feature of drawn ids 'c'"):
        list(stream.batches(32, ["c"]))


RNG = np.random.default_rng(5)
#: Ids of 64 samples: one each of 32 bits, and lists of rows.
HASHES = RNG.integers(0, 2**32, 64) % 40 * 104_729
LISTS = [RNG.integers(0, 300, n % 4).tolist() for n in range(64)]


@pytest.fixture
def open_format(write_criteo, write_parquet, tmp_path, monkeypatch):
    """Return a function that writes the ids in a format and opens them; SHARDGYM_DATA is the folder."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))

    def opened(name, samples=None):
        if name == "criteo":
            path = write_criteo([(f"{value:08x}", "1") for value in HASHES.tolist()], "clicks.txt.gz")
            return open_stream(path, features=["cat_0", "cat_25"], hash_size=1000, samples=samples)
        if name == "parquet":
            path = write_parquet(item=HASHES, clicks=LISTS)
            return open_stream(path, hash_size={"item": 1000}, samples=samples)
        lengths = torch.tensor([[len(ids) for ids in LISTS], [1] * 64])
        indices = torch.tensor([*(row for ids in LISTS for row in ids), *(HASHES % 1000).tolist()])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])
        torch.save((indices, offsets, lengths), tmp_path / "ids.pt")
        return open_stream(tmp_path / "ids.pt", samples=samples)

    return opened


FORMATS = ("criteo", "parquet", "dlrm")


@pytest.mark.parametrize("name", FORMATS)
def test_tables_have_what_batches_show(open_format, name):
    stream = open_format(name)
    pool = pool_of_stream(stream, 16, embedding_dim=8)
    assert (pool.batch_size, len(pool)) == (16, len(stream.features))
    for table in pool:
        batches = [batch[table.name] for batch in stream.batches(16)]
        assert len(batches) == 4
        assert table.embedding_dim == 8
        assert table.pooling_factor == sum(len(bags.indices) for bags in batches) / 64
        reuse = ReuseCounts()
        for bags in batches:
            reuse.add(ReuseCounts.of(bags.indices))
        assert table.reuse_histogram == reuse.row_shares()
        assert (table.ids.samples, table.ids.batch_size) == (64, 16)
        for number in range(5):
            drawn = draw_bags(table, 16, seed=7, batch=number)
            assert np.array_equal(drawn.indices, batches[number % 4].indices)
            assert np.array_equal(drawn.lengths, batches[number % 4].lengths)
        small = draw_bags(table, 5, seed=0, batch=13)  # the second of twelve
        assert np.array_equal(small.lengths, np.concatenate([bags.lengths for bags in batches])[5:10])


@pytest.mark.parametrize(
    ("of_ids", "of_table", "message"),
    [
        ({"hash_size": 999}, {}, r"'item' of 'ids.parquet' differs from the ids that this table"),
        ({"sha256": "0" * 64}, {}, r"'item' of 'ids.parquet' differs from the ids that this table"),
        ({"feature": "items"}, {}, r"unknown feature of .* 'items': did you mean item"),
        ({"samples": 128}, {}, "has 64 samples, expected 128"),
        ({"range_shares": (0.5, 0.5), "range_distinct": (0.5, 0.5)}, {}, r"range_shares\[0\] is 0.5, but "),
        ({}, {"num_embeddings": 200}, "is out of range, expected 0 to 199"),
        ({}, {"pooling_factor": 3.0}, "has 1 ids per sample, expected pooling_factor 3"),
    ],
)
def test_a_recording_that_is_not_what_its_table_says_is_refused_by_name(open_format, of_ids, of_table, message):
    table = pool_of_stream(open_format("parquet"), 16)[0]
    wrong = dataclasses.replace(table, ids=dataclasses.replace(table.ids, **of_ids), **of_table)
    with pytest.raises(InputError, match=f"table 'item': .*{message}"):
        draw_bags(wrong, 16, seed=0)
    with pytest.raises(InputError, match=r"batch size 65 exceeds the 64 samples recorded in 'ids.parquet'"):
        draw_bags(table, 65, seed=0)


def test_samples_that_fill_no_batch_are_no_part_of_a_recording(open_format):
    table = pool_of_stream(open_format("parquet", samples=50), 16)[1]
    assert table.ids.samples == 48
    assert table.pooling_factor == sum(map(len, LISTS[:48])) / 48
    draw_bags(table, 48, seed=0)


def test_pools_of_fitted_laws(open_format):
    truth = EmbeddingTable("a", 10**5, 4, 8.0, ZipfIds(1.1, lengths="poisson"))
    stream = DrawnStream([truth], samples=8192)
    (table,) = pool_of_stream(stream, 4096, fit=True)
    assert isinstance(table.ids, RangeIds)
    assert table.num_embeddings == 10**5
    with pytest.raises(InputError, match="drawn ids: not in a file, expected fit=True"):
        pool_of_stream(stream, 4096)
    fitted = pool_of_stream(open_format("parquet"), 16, fit=True)
    assert all(isinstance(table.ids, RangeIds) for table in fitted)


def test_what_a_pool_needs_is_asked_for(open_format, monkeypatch):
    stream = open_format("parquet")
    with pytest.raises(InputError, match="has no batch size: pass batch_size"):
        pool_of_stream(stream)
    assert pool_of_stream(open_format("dlrm")).batch_size == 64
    with pytest.raises(InputError, match="no width for feature 'clicks'"):
        pool_of_stream(stream, 16, embedding_dim={"item": 8})
    with pytest.raises(InputError, match=r"unknown feature of .* 'items'"):
        pool_of_stream(stream, 16, embedding_dim={"items": 8})
    monkeypatch.setattr("shardgym.tables.tables_of_streams.MOST_RECORDED_IDS", 63)
    with pytest.raises(InputError, match=r"'item' has 64 ids, .*: use fewer samples, or a fitted distribution"):
        pool_of_stream(stream, 16)
