"""Streams of Parquet files and of Criteo-like text: what is read, in which batches, and what is refused."""

from __future__ import annotations

import os

import numpy as np
import pytest

from shardgym import DrawnStream, EmbeddingTable, InputError, open_stream
from shardgym.tables.ids import draw_bags
from shardgym.tables.streams import criteo

LISTS = [[1, 2], [], [3], None, [4, 5, 6]]


def plain(batches):
    return [{name: (b.indices.tolist(), b.lengths.tolist()) for name, b in batch.items()} for batch in batches]


@pytest.mark.parametrize("row_group_size", [1, 2, 5])
def test_batches_of_a_parquet_file_follow_each_other(write_parquet, row_group_size):
    path = write_parquet(row_group_size=row_group_size, clicks=LISTS, user=[7, 8, None, 9, 7])
    stream = open_stream(path)
    assert stream.features == ("clicks", "user")
    assert plain(stream.batches(2)) == [
        {"clicks": ([1, 2], [2, 0]), "user": ([7, 8], [1, 1])},
        {"clicks": ([3], [1, 0]), "user": ([9], [0, 1])},
    ]
    assert plain(stream.batches(5, ["user"])) == [{"user": ([7, 8, 9, 7], [1, 1, 0, 1, 1])}]
    assert stream.read("clicks").indices.tolist() == [1, 2, 3, 4, 5, 6]
    assert stream.rows() == {"clicks": 100, "user": 100}


def test_parts_of_a_file_and_batches_need_not_fit(write_parquet):
    ids = np.random.default_rng(0).integers(0, 1000, 3 * 2**16 + 17)
    stream = open_stream(write_parquet(a=ids, b=2 * ids))
    found = list(stream.batches(1000))
    assert len(found) == len(ids) // 1000
    for name, factor in (("a", 1), ("b", 2)):
        joined = np.concatenate([batch[name].indices for batch in found])
        assert np.array_equal(joined, factor * ids[: len(joined)])
    assert [len(batch["a"].lengths) for batch in open_stream(stream.path, samples=70_000).batches(69_999)] == [69_999]
    assert stream.rows() == {"a": int(ids.max()) + 1, "b": 2 * int(ids.max()) + 1}


def test_hashes_become_rows_without_a_sign(write_parquet):
    hashes = np.array([2**64 - 1, 5, 2**63], dtype=np.uint64)
    path = write_parquet(a=hashes, b=np.array([-1, 5, 9]))
    stream = open_stream(path, hash_size={"a": 10, "b": 4})
    assert plain(stream.batches(3)) == [{"a": ([5, 5, 8], [1, 1, 1]), "b": ([3, 1, 1], [1, 1, 1])}]
    assert stream.rows() == {"a": 10, "b": 4}
    with pytest.raises(InputError, match=r"feature 'b' has a negative id \(-1\), .*: --hash-size b=ROWS\)"):
        list(open_stream(path, features=["b"]).batches(3))
    with pytest.raises(InputError, match=r"feature 'a' has ids up to 1.8e\+19, which look hashed: .* a=ROWS"):
        list(open_stream(path, features=["a"]).batches(3))


@pytest.mark.parametrize("largest", [2**40, 2**58, 2**63 - 1])
def test_ids_beyond_the_rows_of_a_table_look_hashed(write_parquet, largest):
    path = write_parquet(a=np.array([5, largest]), b=np.array([1, 2**40 - 1]))
    with pytest.raises(InputError, match=r"feature 'a' has ids up to .*, which look hashed: give hash_size, .* a=ROWS"):
        open_stream(path).statistics(2)
    assert open_stream(path, hash_size={"a": 7}).rows() == {"a": 7, "b": 2**40}


def test_columns_that_hold_no_ids_are_left_out_or_refused(write_parquet):
    path = write_parquet(label=[0.5] * 2, id_ids=[1, 2], holes=[[1, None]] * 2)
    stream = open_stream(path)
    assert stream.features == ("id_ids", "holes")
    assert stream.left_out == ("label (double)",)
    with pytest.raises(InputError, match="column 'holes': a list holds 2 empty values"):
        stream.read("holes")
    with pytest.raises(InputError, match="column 'label': holds double, expected whole numbers or lists of them"):
        open_stream(path, features=["label"])
    with pytest.raises(InputError, match=r"unknown column in .*ids.parquet 'id_id': did you mean id_ids"):
        open_stream(path, features=["id_id"])
    with pytest.raises(InputError, match=r"unknown feature of .*ids.parquet 'label'"):
        open_stream(path, hash_size={"label": 4})
    with pytest.raises(InputError, match="no column holds whole numbers"):
        open_stream(write_parquet("words.parquet", words=["a"]))
    with pytest.raises(InputError, match="has no samples"):
        open_stream(write_parquet("empty.parquet", a=np.zeros(0, dtype=np.int64))).read("a")
    with pytest.raises(InputError, match="has no whole batch of 3 samples"):
        stream.statistics(3, ["id_ids"])


def test_a_damaged_parquet_file_is_one_line(write_parquet):
    path = write_parquet(a=np.random.default_rng(0).integers(0, 2**40, 10_000))
    data = bytearray(path.read_bytes())
    data[4:2000] = bytes(1996)
    path.write_bytes(data)
    with pytest.raises(InputError, match="not a Parquet file, or a damaged one") as caught:
        open_stream(path).read("a")
    assert "\n" not in str(caught.value)
    path.write_bytes(data[:-9])
    with pytest.raises(InputError, match="not a Parquet file"):
        open_stream(path)


@pytest.mark.parametrize("name", ["clicks.tsv", "clicks.txt.gz"])
def test_text_is_read_as_hashes(write_criteo, name):
    path = write_criteo([("0000000b", "FFFFFFFF"), ("", "1"), ("a", "68fd1e64")], name)
    stream = open_stream(path, hash_size=2**33)
    assert stream.features == tuple(f"cat_{n}" for n in range(26))
    (batch,) = plain(stream.batches(3, ["cat_25", "cat_0", "cat_7"]))
    assert batch["cat_0"] == ([11, 0, 10], [1, 1, 1])
    assert batch["cat_7"][0] == [255] * 3
    assert batch["cat_25"][0] == [2**32 - 1, 1, 0x68FD1E64]
    small = open_stream(path, features=["cat_25"], hash_size={"cat_25": 100}, samples=2)
    assert small.read("cat_25").indices.tolist() == [(2**32 - 1) % 100, 1]
    assert small.rows() == {"cat_25": 100}


def test_blocks_of_text_may_end_anywhere(write_criteo, monkeypatch):
    ids = np.random.default_rng(1).integers(0, 2**32, 200)
    path = write_criteo([(f"{value:x}", f"{value:08X}") for value in ids.tolist()])
    whole = path.read_bytes()
    path.write_bytes(whole[:-1].replace(b"\n", b"\r\n"))  # of Windows, and the last line without its end
    for block in (300, 997, 10**6):
        monkeypatch.setattr(criteo, "_BLOCK", block)
        stream = open_stream(path, hash_size=2**32)
        assert np.concatenate([batch["cat_0"].indices for batch in stream.batches(10)]).tolist() == ids.tolist()
        assert np.concatenate([batch["cat_25"].indices for batch in stream.batches(10)]).tolist() == ids.tolist()


def test_a_changed_text_is_read_again(write_criteo):
    path = write_criteo([("1", "1")])
    assert open_stream(path, hash_size=8).read("cat_0").indices.tolist() == [1]
    write_criteo([("2", "2")])
    os.utime(path, ns=(1, 1))
    assert open_stream(path, hash_size=8).read("cat_0").indices.tolist() == [2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("\t7\t", "\t7\t7\t", 1), "line 1: has 41 cells between tabs, expected 40: a label"),
        (lambda text: text + "1\t2\n", "line 3: has 2 cells"),
        (lambda text: text + "\n", "line 3: has 1 cells"),
        (lambda text: text[:-3] + "z1\n", "line 2, cat_25: expected up to 8 hexadecimal digits, got '.*z1'"),
        (lambda text: text.replace("000000ff", "1000000ff", 1), "line 1, cat_1: .* got '1000000ff'"),
    ],
)
def test_lines_that_are_no_clicks_are_refused_by_number(write_criteo, change, message):
    path = write_criteo([("1", "1"), ("2", "0002")])
    path.write_bytes(change(path.read_text()).encode())
    with pytest.raises(InputError, match=message):
        open_stream(path, hash_size=10).read("cat_25")


def test_text_that_cannot_be_read_is_one_line(write_criteo, tmp_path, monkeypatch):
    path = write_criteo([("1", "1")] * 99, "clicks.tsv.gz")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cannot read .*clicks\.tsv\.gz"):
        open_stream(path, hash_size=10).read("cat_0")
    monkeypatch.setattr(criteo, "_BLOCK", 1000)
    (tmp_path / "endless.txt").write_text("a" * 5000)
    with pytest.raises(InputError, match=r"endless\.txt, line 1: has no end"):
        open_stream(tmp_path / "endless.txt", hash_size=10).read("cat_0")
    with pytest.raises(InputError, match=r"hashes of 32 bits: give hash_size, .*: --hash-size cat_0=ROWS\)"):
        open_stream(path)
    with pytest.raises(InputError, match="a file of ids ends in"):
        open_stream("clicks.csv")
    with pytest.raises(InputError, match="hash_size 0 is not a whole number from 1 on"):
        open_stream(path, hash_size=0)


def test_recordings_have_a_limit(write_criteo, write_parquet, monkeypatch):
    monkeypatch.setattr(criteo, "MOST_RECORDED_IDS", 26 * 3)
    path = write_criteo([("1", "1")] * 4)
    with pytest.raises(InputError, match="more than the 3 samples that a recording may have: take fewer"):
        open_stream(path, hash_size=10).read("cat_0")
    assert len(open_stream(path, hash_size=10, samples=3).read("cat_0").lengths) == 3
    monkeypatch.setattr("shardgym.tables.streams.files.MOST_RECORDED_IDS", 3)
    with pytest.raises(InputError, match="feature 'a' has more than the 3 ids that a recording may have"):
        open_stream(write_parquet(a=[1, 2, 3, 4])).read("a")


def test_drawn_streams_have_the_batches_of_draw_bags():
    tables = (EmbeddingTable("a", 50, 4, 2.0), EmbeddingTable("b", 9, 4))
    stream = DrawnStream(tables, samples=70, seed=3)
    batches = list(stream.batches(32))
    assert len(batches) == 2
    for number, batch in enumerate(batches):
        for table in tables:
            expected = draw_bags(table, 32, seed=3, batch=number)
            assert np.array_equal(batch[table.name].indices, expected.indices)
    assert stream.rows() == {"a": 50, "b": 9}
    with pytest.raises(InputError, match="unknown feature of drawn ids 'c'"):
        list(stream.batches(32, ["c"]))
