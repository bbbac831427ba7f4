"""Tables and pools made of streams, and the recorded ids that are measured with them, of all formats."""

import dataclasses

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, InputError, RangeIds, ZipfIds, open_stream
from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.streams.stream import DATA_VARIABLE
from shardgym.tables.tables_of_streams import DrawnStream, pool_of_stream

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
        ({"range_shares": (0.5, 0.5), "range_distinct": (0.5, 0.5)}, {}, "range_shares says 0.5 of range 0"),
        ({}, {"num_embeddings": 200}, "is none of its rows, expected 0 to 199"),
        ({}, {"pooling_factor": 3.0}, "has 1 per sample, expected its pooling_factor of 3"),
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
    with pytest.raises(InputError, match="drawn ids: are in no file, expected fit=True"):
        pool_of_stream(stream, 4096)
    fitted = pool_of_stream(open_format("parquet"), 16, fit=True)
    assert all(isinstance(table.ids, RangeIds) for table in fitted)


def test_what_a_pool_needs_is_asked_for(open_format, monkeypatch):
    stream = open_format("parquet")
    with pytest.raises(InputError, match="says no batch size"):
        pool_of_stream(stream)
    assert pool_of_stream(open_format("dlrm")).batch_size == 64
    with pytest.raises(InputError, match="has no width for feature 'clicks'"):
        pool_of_stream(stream, 16, embedding_dim={"item": 8})
    with pytest.raises(InputError, match=r"unknown feature of .* 'items'"):
        pool_of_stream(stream, 16, embedding_dim={"items": 8})
    monkeypatch.setattr("shardgym.tables.tables_of_streams.MOST_RECORDED_IDS", 63)
    with pytest.raises(InputError, match=r"'item' has 64 ids, .*: take fewer samples, or let ids be drawn"):
        pool_of_stream(stream, 16)
