"""Your own tables: what is read from JSON and CSV, and what bad files get."""

import json

import pytest

from shardgym import InputError, UniformIds, ZipfIds, load_pool
from shardgym.tables.pools.load import load_user_tables

HEADER = "name,num_embeddings,embedding_dim,pooling_factor,zipf_s,zipf_q\n"
TABLE = {"name": "user", "num_embeddings": 1000, "embedding_dim": 64}


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def test_csv_columns_become_fields(write):
    pool = load_pool(write("mine.csv", HEADER + "user,1000,64,2.5,1.2,30\n\nitem, 50,8,,,\r\n"))
    assert pool.name == "mine"
    assert (pool[0].num_embeddings, pool[0].embedding_dim, pool[0].pooling_factor) == (1000, 64, 2.5)
    assert pool[0].ids == ZipfIds(s=1.2, q=30)
    assert (pool[1].pooling_factor, pool[1].ids) == (1.0, UniformIds())


def test_csv_may_say_what_else_a_table_has(write):
    text = "name,num_embeddings,embedding_dim,zipf_s,row_order,pooling,optimizer,precision\n"
    first, second = load_pool(write("a.csv", text + "a,9,8,1.2,by_frequency,none,adam,fp16\nb,9,8,,,,,\n"))
    assert (first.ids, first.pooling) == (ZipfIds(s=1.2, row_order="by_frequency"), "none")
    assert (first.optimizer, first.precision) == ("adam", "fp16")
    assert (second.ids, second.pooling, second.optimizer) == (UniformIds(), "sum", None)


def test_json_may_be_a_list_or_an_object(write):
    path = write("a.json", [TABLE])
    assert load_pool(path)[0].name == "user"
    assert (load_user_tables(path).batch_size, load_user_tables(path, batch_size=2048).batch_size) == (65_536, 2048)
    pool = load_pool(write("b.json", {"tables": [TABLE], "name": "mine", "batch_size": 512}))
    assert (pool.name, pool.batch_size) == ("mine", 512)
    assert load_pool(write("copy.json", pool.to_json())) == pool


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("user,-5,64,1,,", r"mine\.csv, line 2: num_embeddings"),
        ("user,1e6,64,1,,", r"line 2, num_embeddings: expected a number, got '1e6'"),
        ("user,10,64,nan,,", r"line 2: pooling_factor"),
        ("user,10,64,1,,5", r"line 2: ids\.zipf\.s"),
        (",10,64,1,,", "line 2: name"),
        ("user,10,64", r"line 2: expected 6 cells"),
        ("user,10,64,1,,,7", r"line 2: expected 6 cells"),
        ("user,10,64,1,,\nuser,10,64,1,,", r"mine\.csv: .*'user' occurs more than once"),
        ('"user,10,64,1,,', r"mine\.csv: not valid CSV"),
        ("", "mine.csv: tables"),
    ],
)
def test_a_bad_csv_row_is_named_by_file_line_and_field(write, row, message):
    with pytest.raises(InputError, match=message) as caught:
        load_pool(write("mine.csv", HEADER + row + "\n"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "header", "message"),
    [
        ("mine.csv", "name,num_embedings\n", r"mine\.csv: unknown column 'num_embedings', expected name, "),
        ("mine.csv", "name;embedding_dim\n", r"mine\.csv: unknown column 'name;embedding_dim', expected name, "),
        ("none.csv", None, "there is no such file"),
        ("x.md", "", "a file of tables ends in"),
    ],
)
def test_what_is_no_file_of_tables_is_refused(write, tmp_path, name, header, message):
    with pytest.raises(InputError, match=message):
        load_pool(tmp_path / name if header is None else write(name, header))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"name": "user", "num_emb', "not valid JSON"),
        ("3", "expected a list of tables"),
        ({"tabels": [TABLE]}, "tabels"),
        ([], "tables: .*at least 1"),
        ([TABLE, 5], r"tables\.1"),
        ([{**TABLE, "dim": 8}], r"tables\.0\.dim"),
        ([{"name": "user", "embedding_dim": 8}], r"tables\.0\.num_embeddings"),
        ([{**TABLE, "num_embeddings": 10.5}], r"tables\.0\.num_embeddings"),
        ([{**TABLE, "ids": {"kind": "zipf"}}], r"tables\.0\.ids\.zipf\.s"),
        ([TABLE, TABLE], "'user' occurs more than once"),
    ],
)
def test_a_bad_json_file_is_named_by_file_table_and_field(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_pool(write("a.json", content))
    assert "a.json" in str(caught.value)
    assert "\n" not in str(caught.value)
