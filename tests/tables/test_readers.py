"""Files of ids: what is read of each format, in which batches, and what is refused in one line."""

import os
import pickle
import random

import numpy as np
import pytest
import torch

from shardgym import InputError, open_stream

LISTS = [[1, 2], [], [3], None, [4, 5, 6]]
#: Two tables, three samples. Table 0 touches row 250 once, row 7 three times; table 1 is never looked up.
BAGS = [[[7, 250], [7], [7]], [[], [], []]]


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
    ids = np.random.default_rng(0).integers(0, 1000, 2**16 + 17)
    stream = open_stream(write_parquet(a=ids, b=2 * ids))
    found = list(stream.batches(1000))
    assert len(found) == len(ids) // 1000
    for name, factor in (("a", 1), ("b", 2)):
        joined = np.concatenate([batch[name].indices for batch in found])
        assert np.array_equal(joined, factor * ids[: len(joined)])
    assert [len(batch["a"].lengths) for batch in open_stream(stream.path, samples=999).batches(998)] == [998]
    assert stream.rows() == {"a": int(ids.max()) + 1, "b": 2 * int(ids.max()) + 1}


def test_hashes_become_rows_without_a_sign(write_parquet):
    hashes = np.array([2**64 - 1, 5, 2**63], dtype=np.uint64)
    path = write_parquet(a=hashes, b=np.array([-1, 5, 9]), c=np.array([5, 2**40, 1]))
    stream = open_stream(path, hash_size={"a": 10, "b": 4, "c": 7})
    assert plain(stream.batches(3, ["a", "b"])) == [{"a": ([5, 5, 8], [1, 1, 1]), "b": ([3, 1, 1], [1, 1, 1])}]
    assert stream.rows() == {"a": 10, "b": 4, "c": 7}
    for feature, problem in (
        ("a", r"has ids up to 1.8e\+19, which look hashed: .* a=ROWS"),
        ("b", r"has a negative id \(-1\), .*: --hash-size b=ROWS\)"),
        ("c", r"has ids up to 1.1e\+12, which look hashed"),
    ):
        with pytest.raises(InputError, match=f"feature '{feature}' {problem}"):
            open_stream(path, features=[feature]).rows()


def test_columns_that_hold_no_ids_are_left_out(write_parquet):
    path = write_parquet(label=[0.5] * 2, ids=[1, 2], holes=[[1, None]] * 2)
    stream = open_stream(path)
    assert (stream.features, stream.left_out) == (("ids", "holes"), ("label (double)",))
    with pytest.raises(InputError, match="column 'holes': lists contain 2 nulls"):
        stream.read("holes")
    for options in ({"features": ["label"]}, {"hash_size": {"label": 4}}):
        with pytest.raises(InputError, match=r"unknown feature of .*ids.parquet 'label'"):
            open_stream(path, **options)
    with pytest.raises(InputError, match="no column holds integers"):
        open_stream(write_parquet("words.parquet", words=["a"]))
    with pytest.raises(InputError, match="has no samples"):
        open_stream(write_parquet("empty.parquet", a=np.zeros(0, dtype=np.int64))).read("a")
    with pytest.raises(InputError, match="has less than one batch of 3 samples"):
        open_stream(path, features=["ids"]).statistics(3)


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


def test_lines_may_end_as_on_windows_or_not_at_all(write_criteo, monkeypatch):
    monkeypatch.setattr("shardgym.tables.streams.readers._PART", 7)
    ids = np.random.default_rng(1).integers(0, 2**32, 20)
    path = write_criteo([(f"{value:x}", f"{value:08X}") for value in ids.tolist()])
    path.write_bytes(path.read_bytes()[:-1].replace(b"\n", b"\r\n"))
    assert open_stream(path, hash_size=2**32).read("cat_25").indices.tolist() == ids.tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("\t7\t", "\t7\t7\t", 1), "line 1: got 41 tab-separated cells, expected 40: a label"),
        (lambda text: text + "\n", "line 3: got 1 tab-separated cells"),
        (lambda text: text[:-3] + "z1\n", "line 2: an id is not a hexadecimal number"),
    ],
)
def test_lines_that_are_no_clicks_are_refused_by_number(write_criteo, change, message):
    path = write_criteo([("1", "1"), ("2", "0002")])
    path.write_bytes(change(path.read_text()).encode())
    with pytest.raises(InputError, match=message):
        open_stream(path, hash_size=10).read("cat_25")


@pytest.mark.parametrize("name", ["toy.pt", "toy.pt.gz"])
def test_recordings_of_dlrm_datasets_are_one_batch(write_dlrm, name):
    stream = open_stream(write_dlrm(BAGS, name))
    assert (stream.batch_size, stream.features) == (3, ("t000", "t001"))
    assert plain(stream.batches(3)) == [{"t000": ([7, 250, 7, 7], [2, 1, 1]), "t001": ([], [0, 0, 0])}]
    assert stream.rows() == {"t000": 251, "t001": 100}


def test_a_changed_file_is_read_again(write_dlrm):
    path = write_dlrm([[[1]]])
    assert open_stream(path).read("t000").indices.tolist() == [1]
    write_dlrm([[[2]]])
    os.utime(path, ns=(1, 1))
    assert open_stream(path).read("t000").indices.tolist() == [2]


class Hostile:
    """Creates a folder when it is unpickled by a careless reader."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return os.mkdir, (self.marker,)


@pytest.mark.parametrize("dump", [pickle.dump, torch.save])
def test_a_file_with_code_in_it_is_refused_and_not_run(tmp_path, dump):
    with (tmp_path / "bad.pt").open("wb") as file:
        dump((Hostile(tmp_path / "ran"),), file)
    with pytest.raises(InputError, match="not a torch file of plain tensors"):
        open_stream(tmp_path / "bad.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("indices", [7, -2, 7, 7], r"feature 't000' has a negative id \(-2\)"),
        ("indices", [7, 7], "contradict each other"),
        ("offsets", [0, 1, 3, 4, 4, 4, 4], "contradict each other"),
        ("offsets", [0, 1], "contradict each other"),
        ("lengths", [[2, 3, -1], [0, 0, 0]], "contradict each other"),
        ("lengths", [2, 1, 1, 0, 0, 0], "lengths of shape \\(tables, samples\\)"),
        ("indices", [7.0, 1.0, 7.0, 7.0], "expected integers"),
        ("weights", [1], r"expected three tensors \(indices, offsets, lengths\)"),
    ],
)
def test_parts_that_cannot_be_are_named(write_dlrm, part, value, message):
    with pytest.raises(InputError, match=message):
        open_stream(write_dlrm(BAGS, **{part: torch.tensor(value)})).read("t000")


@pytest.mark.parametrize("kind", ["parquet", "tsv", "tsv.gz", "pt.gz"])
def test_a_damaged_file_is_read_or_refused_in_one_line(kind, write_parquet, write_criteo, write_dlrm):
    rng = random.Random(0)
    if kind == "parquet":
        path = write_parquet(a=list(range(3000)), b=[[n] * (n % 4) for n in range(3000)], row_group_size=700)
    elif kind == "pt.gz":
        path = write_dlrm([[[n] for n in range(500)]], "ids.pt.gz")
    else:
        path = write_criteo([("68fd1e64", "1")] * 50, f"ids.{kind}")
    whole = path.read_bytes()
    said = []
    for number in range(30):
        changed = bytearray(whole[: len(whole) // 2] if number == 0 else whole)
        for _ in range(rng.choice([1, 3, 20])):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        path.write_bytes(changed)
        try:
            stream = open_stream(path, hash_size=100 if "tsv" in kind else None)
            stream.statistics(10)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 5
    assert [line for line in said if "\n" in line or str(path) not in line] == []


def test_what_cannot_be_opened_says_why(tmp_path, write_criteo, write_parquet, monkeypatch):
    with pytest.raises(InputError, match="there is no such file"):
        open_stream(tmp_path / "none.pt.gz")
    with pytest.raises(InputError, match="files of ids end in"):
        open_stream("clicks.csv")
    with pytest.raises(InputError, match=r"32-bit hashes: pass hash_size, .*: --hash-size cat_0=ROWS\)"):
        open_stream(write_criteo([("1", "1")]))
    with pytest.raises(InputError, match="hash_size of 'cat_0': expected an integer >= 1, got 0"):
        open_stream(write_criteo([("1", "1")]), hash_size=0)
    monkeypatch.setattr("shardgym.tables.streams.stream.MOST_RECORDED_IDS", 3)
    with pytest.raises(InputError, match="feature 'a' has more than 3 ids, the limit of a recording"):
        open_stream(write_parquet(a=[1, 2, 3, 4])).read("a")
