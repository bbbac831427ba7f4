"""Your own tables: what is read from JSON and CSV, and what bad files get."""

import json

import pytest

from shardgym.errors import InputError
from shardgym.tables.pools import load_pool
from shardgym.tables.pools.files import load_user_tables
from shardgym.tables.table import UniformIds, ZipfIds

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
    pool = load_pool(write("mine.csv", HEADER + "user,1000,64,2.5,1.2,30\nitem,50,8,,,\n"))
    assert pool.name == "mine"
    assert (pool[0].num_embeddings, pool[0].embedding_dim, pool[0].pooling_factor) == (1000, 64, 2.5)
    assert pool[0].ids == ZipfIds(s=1.2, q=30)
    assert (pool[1].pooling_factor, pool[1].ids) == (1.0, UniformIds())


def test_csv_may_say_how_popular_rows_lie(write):
    text = "name,num_embeddings,embedding_dim,zipf_s,row_order\nuser,1000,64,1.2,by_frequency\nitem,50,8,1.1,\n"
    assert [table.ids for table in load_pool(write("a.csv", text))] == [
        ZipfIds(s=1.2, row_order="by_frequency"), ZipfIds(s=1.1),
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"b\.csv, line 2: row_order is given without zipf_s"):
        load_pool(write("b.csv", text.replace("1.2", "")))
    with pytest.raises(InputError, match=r"line 2: ids.zipf.row_order: Input should be 'scattered'"):
        load_pool(write("c.csv", text.replace("by_frequency", "sorted")))


def test_csv_may_say_pooling_optimizer_and_precision(write):
    text = "name,num_embeddings,embedding_dim,pooling,optimizer,precision\na,9,8,none,adam,fp16\nb,9,8,,,\n"
    first, second = load_pool(write("a.csv", text))
    assert (first.pooling, first.optimizer, first.precision) == ("none", "adam", "fp16")
    assert (second.pooling, second.optimizer, second.precision) == ("sum", None, None)
    with pytest.raises(InputError, match=r"line 2: pooling: Input should be 'sum', 'mean' or 'none', got 'no'"):
        load_pool(write("b.csv", text.replace("none", "no")))


def test_csv_may_come_in_another_column_order_with_a_mark_blank_lines_and_windows_ends(write):
    text = "\ufeffembedding_dim, name, num_embeddings\r\n\r\n64, user, 1000\r\n\r\n"
    assert load_pool(write("mine.csv", text))[0].num_embeddings == 1000


def test_json_may_be_a_list_or_an_object(write):
    assert load_pool(write("a.json", [TABLE]))[0].name == "user"
    pool = load_pool(write("b.json", {"tables": [TABLE], "name": "mine", "batch_size": 512}))
    assert (pool.name, pool.batch_size) == ("mine", 512)


def test_a_pool_reads_what_it_writes(write):
    pool = load_pool("deeprecsys-din")
    assert load_pool(write("copy.json", pool.to_json())) == pool


def test_batch_size_is_that_of_files_without_one(write):
    path = write("a.json", [TABLE])
    assert load_user_tables(path).batch_size == 65_536
    assert load_user_tables(path, batch_size=2048).batch_size == 2048


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("user,-5,64,1,,", r"mine\.csv, line 2: num_embeddings: Input should be greater than or equal to 1, got -5"),
        ("user,99999999999999999999,64,1,,", r"num_embeddings: Input should be less than or equal to 1099511627776"),
        ("user,1e6,64,1,,", r"line 2, num_embeddings: expected a whole number, got '1e6'"),
        ("user,10,70000,1,,", "embedding_dim"),
        ("user,10,64,nan,,", r"line 2: pooling_factor: .*finite"),
        ("user,10,64,many,,", "line 2, pooling_factor: expected a number, got 'many'"),
        ('"us\ner",10,64,1,,', "line 3: line break inside a quoted cell 'us"),
        ("user,10,64,1,nan,", r"ids\.zipf\.s: .*finite"),
        ("user,10,64,1,,5", "zipf_q is given without zipf_s"),
        (",10,64,1,,", "line 2: name"),
        ("user,10,64", r"line 2: expected 6 cells .* got 3"),
        ("user,10,64,1,,,7", r"line 2: expected 6 cells .* got 7"),
        ("user,10,64,1,,\nitem,5,4,1,,\nuser,10,64,1,,", r"line 4: name 'user' must be distinct, .*line 2 too"),
        ('"user,10,64,1,,', "line 2: not valid CSV"),
    ],
)
def test_a_bad_csv_row_is_named_by_file_line_and_field(write, row, message):
    with pytest.raises(InputError, match=message) as caught:
        load_pool(write("mine.csv", HEADER + row + "\n"))
    assert "mine.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("name,num_embedings,embedding_dim", "line 1: unknown field 'num_embedings': did you mean num_embeddings"),
        ("name,num_embeddings,embedding_dim,colour", "unknown field 'colour': known: embedding_dim, name"),
        ("name,num_embeddings", "line 1: field 'embedding_dim' is missing"),
        (",,,\n,,", "has empty cells only, expected a header with name, num_embeddings, embedding_dim"),
        ("name,num_embeddings,embedding_dim,name", "a column occurs twice"),
        ("name,num_embeddings,embedding_dim", "has a header and no tables"),
    ],
)
def test_a_bad_csv_header_is_explained(write, header, message):
    with pytest.raises(InputError, match=message):
        load_pool(write("mine.csv", header + "\n"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ('[{"name": "user", "num_emb', "not valid JSON"),
        (
            '[{"name": "user", "num_embeddings": NaN, "embedding_dim": 8}]',
            "expected a whole number, got nan",
        ),
        ("3", "expected a list of tables"),
        ({"tabels": [TABLE]}, "expected a list of tables"),
        ({"tables": [TABLE], "batchsize": 5}, "unknown field 'batchsize': did you mean batch_size"),
        ({"tables": [TABLE], "batch_size": -5}, "batch_size"),
        ([], "tables: .*at least 1"),
        ([TABLE, 5], "table 1: expected an object"),
        ([{**TABLE, "dim": 8}], r"a\.json, table 0: unknown field 'dim'"),
        ([{"name": "user", "embedding_dim": 8}], "table 0: field 'num_embeddings' is missing"),
        ([{**TABLE, "num_embeddings": -1}], "table 0: num_embeddings"),
        ([{**TABLE, "num_embeddings": 10.5}], "table 0: num_embeddings: .*whole number"),
        ([{**TABLE, "num_embeddings": "1000"}], "table 0: num_embeddings: .*whole number"),
        ([{**TABLE, "num_embeddings": 10**30}], "table 0: num_embeddings"),
        ([{**TABLE, "ids": {"kind": "zipf"}}], r"table 0: ids\.zipf\.s"),
        ([{**TABLE, "reuse_histogram": [1, 2]}], "table 0: reuse_histogram"),
        ([TABLE, TABLE], "table 1: name 'user' must be distinct"),
    ],
)
def test_a_bad_json_file_is_named_by_file_table_and_field(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_pool(write("a.json", content))
    assert "a.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_json_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text('[{"name": "a", "num_embeddings": 10, "embedding_dim": 4}]', encoding="utf-8-sig")
    assert [table.name for table in load_pool(path)] == ["a"]


def test_a_missing_file_and_one_that_is_not_text_are_input_errors(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_pool(tmp_path / "none.csv")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a UTF-8 text file"):
        load_pool(tmp_path / "x.csv")


@pytest.mark.parametrize(("mark", "shown"), [(";", "';'"), ("\t", r"'\\t'"), ("|", r"'\|'")])
def test_another_separator_than_a_comma_is_named(tmp_path, mark, shown):
    path = tmp_path / "mine.csv"
    path.write_text("name,num_embeddings,embedding_dim\nuser,10,4\n".replace(",", mark))
    with pytest.raises(InputError, match=rf"line 1: cells are separated by {shown}, expected commas: name,num_emb"):
        load_pool(path)


def test_a_file_of_another_ending_is_refused_as_a_file(tmp_path):
    with pytest.raises(InputError, match=r"cannot read tables from 'x\.md': a file of tables ends in \.json or \.csv"):
        load_pool("x.md")
