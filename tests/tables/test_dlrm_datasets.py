"""Files of dlrm_datasets: what is computed from them, and what damaged or hostile ones get."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import pickle

import numpy as np
import pytest

from shardgym.errors import InputError
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.tables.pools import load_pool
from shardgym.tables.streams import dlrm_datasets
from shardgym.tables.streams.dlrm_datasets import read_recording
from shardgym.tables.streams.open import open_stream
from shardgym.tables.streams.statistics import Checksum
from shardgym.tables.streams.tables import pool_of_stream


@pytest.fixture
def write_dlrm(tmp_path):
    """Return a function that writes bags[table][sample] = list of ids and returns the path."""
    import torch

    def write(bags, name="toy.pt", **parts):
        samples = list(itertools.chain.from_iterable(bags))
        lengths = torch.tensor([len(ids) for ids in samples])
        content = {
            "indices": torch.tensor(list(itertools.chain.from_iterable(samples)), dtype=torch.int64),
            "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            "lengths": lengths.reshape(len(bags), -1),
            **parts,
        }
        path = tmp_path / name
        opener = gzip.open if name.endswith(".gz") else open
        with opener(path, "wb") as file:
            torch.save(tuple(content.values()), file)
        return path

    return write


torch = pytest.importorskip("torch")

#: Two tables, three samples. Table 0 touches row 250 once, row 7 three times; table 1 is never looked up.
BAGS = [[[7, 250], [7], [7]], [[], [], []]]


def test_rows_pooling_and_histogram_are_those_of_the_ids(write_dlrm):
    pool = load_pool(write_dlrm(BAGS))
    assert pool.batch_size == 3
    assert pool[0].num_embeddings == 251
    assert pool[0].pooling_factor == pytest.approx(4 / 3)
    assert pool[0].reuse_histogram == (0.5, 0, 0.5, *[0] * 14)


def test_an_unused_table_gets_100_rows_and_an_empty_histogram(write_dlrm):
    table = load_pool(write_dlrm(BAGS))[1]
    assert table.num_embeddings == 100
    assert table.pooling_factor == 0
    assert table.reuse_histogram == (0,) * 17


def test_recorded_ids_name_the_file_and_its_checksum(write_dlrm):
    ids = load_pool(write_dlrm(BAGS))[0].ids
    checksum = Checksum()
    checksum.add(Bags(np.array([7, 250, 7, 7]), np.array([2, 1, 1])))
    told = (ids.file, ids.feature, ids.samples, ids.batch_size, ids.sha256)
    assert told == ("toy.pt", "t000", 3, 3, checksum.hexdigest())


def test_recorded_ids_say_where_the_hot_rows_lie(write_dlrm):
    # Rows 7, 250, 7, 7 of 251: 192 ranges of 1 or 2 rows, range 6 is rows 7 and 8, the last one rows 249 and 250.
    ids = load_pool(write_dlrm(BAGS))[0].ids
    looked_up = {n: share for n, share in enumerate(ids.range_shares) if share}
    distinct = {n: share for n, share in enumerate(ids.range_distinct) if share}
    assert looked_up == {6: 0.75, 191: 0.25}
    assert distinct == {6: 0.5, 191: 0.5}


def test_recorded_ids_are_drawn_again(write_dlrm, monkeypatch):
    path = write_dlrm(BAGS)
    monkeypatch.setenv("SHARDGYM_DATA", str(path.parent))
    bags = draw_bags(load_pool(path)[0], 2, seed=0)
    assert bags.indices.tolist() == [7, 250, 7]
    assert bags.lengths.tolist() == [2, 1]


def test_a_compressed_file_holds_the_same_tables(write_dlrm):
    plain, packed = load_pool(write_dlrm(BAGS)), load_pool(write_dlrm(BAGS, "toy.pt.gz"))
    assert [t.num_embeddings for t in plain] == [t.num_embeddings for t in packed]
    assert [t.ids.sha256 for t in plain] == [t.ids.sha256 for t in packed]


def test_reading_many_tables_unpacks_the_file_once(write_dlrm, monkeypatch):
    path, unpacked = write_dlrm(BAGS, "once.pt.gz"), []
    load = dlrm_datasets.load_tensors
    monkeypatch.setattr(dlrm_datasets, "load_tensors", lambda p: unpacked.append(p) or load(p))
    assert read_recording(path).bags(0)[0].tolist() == [7, 250, 7, 7]
    assert read_recording(path).bags(1)[1].tolist() == [0, 0, 0]
    assert len(unpacked) == 1


def test_a_changed_file_is_read_again(write_dlrm):
    path = write_dlrm([[[1]]])
    assert read_recording(path).bags(0)[0].tolist() == [1]
    write_dlrm([[[2]]])
    os.utime(path, ns=(1, 1))
    assert read_recording(path).bags(0)[0].tolist() == [2]


def test_a_table_that_the_file_lacks_is_named(write_dlrm):
    with pytest.raises(InputError, match=r"unknown feature of .*toy\.pt 't002': did you mean"):
        open_stream(write_dlrm(BAGS)).read("t002")


class Hostile:
    """Creates a file when it is unpickled by a careless reader."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("name", ["bad.pt", "bad.pt.gz"])
@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_a_file_with_code_in_it_is_refused_and_not_run(tmp_path, name, dump):
    marker = tmp_path / "ran"
    path = tmp_path / name
    with (gzip.open if name.endswith("gz") else open)(path, "wb") as file:
        dump((Hostile(marker),), file)
    with pytest.raises(InputError, match="not a torch file of plain tensors") as caught:
        load_pool(path)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
@pytest.mark.parametrize("name", ["cut.pt", "cut.pt.gz"])
def test_a_truncated_file_is_one_line(write_dlrm, name, keep):
    path = write_dlrm([[[i] for i in range(500)]], name)
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data) if isinstance(keep, float) else keep)])
    with pytest.raises(InputError, match=name) as caught:
        load_pool(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["none.pt", "none.pt.gz"])
def test_a_missing_file_is_an_input_error(tmp_path, name):
    with pytest.raises(InputError, match="there is no such file"):
        load_pool(tmp_path / name)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"indices": torch.tensor([7, -2, 7, 7])}, r"feature 't000' has a negative id \(-2\)"),
        ({"indices": torch.tensor([7, 2**50, 7, 7])}, "feature 't000' has ids up to 1.1e.15, which look hashed"),
        ({"indices": torch.tensor([7, 7])}, "offsets run from 0 to 4, expected 0 to 2"),
        ({"offsets": torch.arange(4)}, "offsets has 4 entries, expected 7"),
        ({"lengths": torch.zeros(0, 3, dtype=torch.int64)}, "lengths is empty"),
        ({"indices": [7, 250, 7, 7]}, "indices is list"),
        ({"offsets": torch.tensor([0, 1, 3, 4, 4, 4, 4])}, "contradict"),
        ({"lengths": torch.tensor([2, 1, 1, 0, 0, 0])}, "lengths is 1-dimensional"),
        ({"lengths": torch.tensor([[2, 3, -1], [0, 0, 0]])}, "contradict"),
        ({"lengths": torch.zeros(1, dtype=torch.int64).expand(10**9, 10**6)}, "contiguous"),
        ({"weights": torch.ones(4)}, r"holds tuple of 4, expected \(indices, offsets, lengths\)"),
    ],
)
def test_parts_that_cannot_be_are_named(write_dlrm, parts, message):
    with pytest.raises(InputError, match=message):
        load_pool(write_dlrm(BAGS, **parts))


def test_a_file_of_something_else_is_named(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(InputError, match=r"holds dict, expected \(indices, offsets, lengths\)"):
        load_pool(tmp_path / "model.pt")


def test_32_bit_ids_get_the_checksum_of_64_bit_ids(write_dlrm):
    ids = torch.tensor([7, 250, 7, 7], dtype=torch.int32)
    narrow = load_pool(write_dlrm(BAGS, "narrow.pt", indices=ids))
    assert narrow[0].ids.sha256 == load_pool(write_dlrm(BAGS))[0].ids.sha256


def test_embedding_dim_is_the_width_of_all_tables(write_dlrm):
    assert {t.embedding_dim for t in pool_of_stream(open_stream(write_dlrm(BAGS)), embedding_dim=64)} == {64}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_embeddings": 200}, r"table 't000': id 250 is none of its rows, expected 0 to 199"),
        ({"pooling_factor": 3.0}, r"table 't000': 'toy.pt' has 1.33333 per sample, expected its pooling_factor of 3"),
    ],
)
def test_a_recording_that_does_not_match_its_table_is_refused_by_name(write_dlrm, monkeypatch, changes, message):
    path = write_dlrm(BAGS)
    monkeypatch.setenv("SHARDGYM_DATA", str(path.parent))
    with pytest.raises(InputError, match=message):
        draw_bags(dataclasses.replace(load_pool(path)[0], **changes), 2, seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"range_shares": (0.5, 0.5)}, r"table 't000': range_shares says 0.5 of range 0, 'toy.pt' has 0.75: load it"),
        ({"range_distinct": (1.0, 0.0)}, r"table 't000': range_distinct says 1 of range 0, 'toy.pt' has 0.5"),
        ({"samples": 4, "batch_size": 4}, r"table 't000': 't000' of 'toy.pt' has 3 samples, expected 4"),
        ({"sha256": "0" * 64}, r"table 't000': 't000' of 'toy.pt' differs from the ids that this table was made from"),
    ],
)
def test_a_recording_that_is_not_what_its_ids_say_is_refused_by_name(write_dlrm, monkeypatch, changes, message):
    path = write_dlrm(BAGS)
    monkeypatch.setenv("SHARDGYM_DATA", str(path.parent))
    table = load_pool(path)[0]
    halves = dataclasses.replace(table.ids, range_shares=(0.75, 0.25), range_distinct=(0.5, 0.5))
    wrong = dataclasses.replace(table, ids=dataclasses.replace(halves, **changes))
    with pytest.raises(InputError, match=message):
        draw_bags(wrong, 2, seed=0)
