"""Pools: the train/test cut, scaling, those that ship held against their sources, and your own from JSON and CSV."""

import json
import math

import numpy as np
import pytest

from shardgym import EmbeddingTable, InputError, RecordedIds, TablePool, UniformIds, ZipfIds, load_pool
from shardgym.tables.pools import pool_names
from shardgym.tables.pools.load import load_model, model_names


def pool_of(*names, batch_size=64, **fields):
    return TablePool("toy", batch_size, tuple(EmbeddingTable(name, 100, 8, **fields) for name in names))


def test_halves_are_disjoint_equal_and_cover_the_pool():
    pool = pool_of(*(f"t{i}" for i in range(100)))
    train, test = ({t.name for t in half} for half in pool.split())
    assert len(train) == len(test) == 50
    assert train | test == {t.name for t in pool}


def test_the_halves_of_known_names_never_change():
    train, test = pool_of("t000", "t001", "t002", "t003", "t004").split()
    assert [t.name for t in train] == ["t003", "t004"]  # smallest SHA-256 of "shardgym pool split 1\n" + name
    assert [t.name for t in test] == ["t000", "t001", "t002"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: pool_of("a").split(), "one table"),
        (lambda: pool_of("a").scaled(0), "divisor of its batch size 64"),
        (lambda: pool_of("a").scaled(3), "divisor of its batch size 64"),
        (lambda: pool_of("a", ids=RecordedIds("x.pt", "t000", 64, 64, "0" * 64)).scaled(2), "recorded"),
        (lambda: load_pool("synthetic-2020"), "synthetic-2021"),
    ],
)
def test_what_is_no_pool_is_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_every_named_pool_loads_under_its_name():
    names = pool_names()
    assert names[0] == "synthetic-2021"
    assert len(set(names)) == len(names)
    for name in names:
        assert load_pool(name).name == name


#: Batch, ids and distinct rows of all tables, and the share of the distinct rows by how often they are looked up:
#: github.com/facebookresearch/dlrm_datasets, embedding_bag/*/locality_stats.txt, fbgemm_t856_bs65536.pt (2021) and
#: fbgemm_t788_bs131072_0.pt (2022).
PUBLISHED = {
    "synthetic-2021": (
        65_536, 887_017_990, 128_435_723,
        (0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, *[0.0] * 7),
    ),
    "synthetic-2022": (
        131_072, 1_405_163_864, 110_259_238,
        (0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001, *[0.0] * 5),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_stored_histograms_add_up_to_the_published_statistics(name):
    """From the files alone: expected distinct rows are ids over the mean accesses of a row."""
    pool = load_pool(name)
    batch_size, ids, distinct, row_shares = PUBLISHED[name]
    assert pool.batch_size == batch_size
    assert all(abs(math.fsum(table.reuse_histogram) - 1) < 1e-9 for table in pool)
    shares = np.array([table.reuse_histogram for table in pool])
    # The middle of a bin on a logarithmic scale is near the mean accesses of its rows.
    centres = np.array([1, 2, *(2.0 ** np.arange(1, 16) * 1.45)])
    own_ids = np.array([table.pooling_factor for table in pool]) * batch_size
    assert own_ids.sum() == pytest.approx(ids, rel=1e-4)
    rows = own_ids / (shares @ centres)
    assert rows.sum() == pytest.approx(distinct, rel=0.05)
    assert rows @ shares / rows.sum() == pytest.approx(np.array(row_shares), abs=0.02)


#: Tables, rows, ids per sample, GiB in FP32, as their sources or the sums of their published lists say.
TOTALS = {
    "dlrm-mlperf-v1": (26, 187_767_399, 26, 89.5),
    "dlrm-dcnv2": (26, 204_184_588, 214, 97.4),
    "criteo-kaggle": (26, 33_762_577, 26, 2.0),
    "avazu": (21, 9_449_205, 21, 4.5),
    "dlrm-benchmark": (8, 8_000_000, 800, 1.9),
    "deeprecsys-rm1": (8, 32_000_000, 8 * 80, 3.8),
    "deeprecsys-rm2": (32, 16_000_000, 32 * 120, 3.8),
    "deeprecsys-rm3": (10, 20_000_000, 200, 2.4),
    "deeprecsys-wnd": (27, 27_000_000, 27, 3.2),
    "deeprecsys-mtwnd": (43, 30_500_000, 43, 3.6),
    "deeprecsys-dien": (43, 30_500_000, 43, 3.6),
    "deeprecsys-din": (4, 21_100_000, 12, 2.5),
    "deeprecsys-ncf": (4, 336_000, 4, 0.1),
    "embark-t180": (177, 1_130_980_100, 14_450, 247.1),
    "embark-t200": (200, 831_421_000, 4_550, 386.9),
    "embark-t510": (510, 895_100_000, 2_670, 426.8),
    "embark-t7": (7, 7_430_000_000, 163, 1_661.8),
    # The source counts a table shared by two features once: 55 tables, with 58 features in all.
    "nvidia-tiny": (55, 70_260_160, 58 + 3 * 9, 4.2),
    "nvidia-small": (107, 220_630_300, 116 + 9 * 29, 26.3),
    "nvidia-medium": (311, 664_860_800, 337 + 26 * 49, 206.2),
    "nvidia-large": (612, 2_846_001_000, 669 + 57 * 99, 773.8),
    "nvidia-jumbo": (1_022, 5_722_001_000, 1_097 + 75 * 199, 3_109.5),
    "nvidia-colossal": (2_002, 23_824_001_000, 2_153 + 151 * 299, 22_327.4),
}


@pytest.mark.parametrize("name", model_names())
def test_totals_are_those_of_the_source(name):
    pool = load_model(name).pool
    gib = sum(t.num_embeddings * t.embedding_dim * 4 for t in pool) / 2**30
    totals = (len(pool), sum(t.num_embeddings for t in pool), sum(t.pooling_factor for t in pool), round(gib, 1))
    assert totals == TOTALS[name]


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
    assert (load_pool(path)[0].name, load_pool(path).batch_size) == ("user", 65_536)
    pool = load_pool(write("b.json", {"tables": [TABLE], "name": "mine", "batch_size": 512}))
    assert (pool.name, pool.batch_size) == ("mine", 512)
    assert load_pool(write("copy.json", pool.to_json())) == pool


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("user,-5,64,1,,", r"mine\.csv, line 2: num_embeddings"),
        ("user,1e6,64,1,,", r"line 2, num_embeddings: expected a whole number, got '1e6'"),
        ("user,10,64,1,,5", r"line 2: ids\.zipf\.s"),
        ("user,10,64", r"line 2: expected 6 cells"),
        ("user,10,64,1,,,7", r"line 2: expected 6 cells"),
        ("user,10,64,1,,\nuser,10,64,1,,", r"mine\.csv: .*'user' occurs more than once"),
        ('"user,10,64,1,,', r"mine\.csv: not valid CSV"),
        ("", "mine.csv: expected a table on each line below the header, got none"),
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
        ("x.md", "", "files of tables end in"),
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
    ],
)
def test_a_bad_json_file_is_named_by_file_table_and_field(write, content, message):
    with pytest.raises(InputError, match=message) as caught:
        load_pool(write("a.json", content))
    assert "a.json" in str(caught.value)
    assert "\n" not in str(caught.value)
