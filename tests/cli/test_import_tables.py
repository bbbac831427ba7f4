"""import-tables: tasks and pools from files of tables, and from files of ids."""

import json

import numpy as np
import pytest

from shardgym import RangeIds, RecordedIds, ShardingTask, TablePool, load_pool
from shardgym.cli import main

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def files(here):
    """Ids in Parquet and as text, and tables."""
    (here / "task.json").unlink()  # tasks are imported here
    rng = np.random.default_rng(0)
    users = rng.integers(0, 50, 100) % (1 + rng.integers(0, 50, 100))
    columns = {
        "user": pyarrow.array(users),
        "clicks": pyarrow.array([rng.integers(0, 400, n % 5).tolist() for n in range(100)]),
        "price": pyarrow.array([0.5] * 100),
    }
    parquet.write_table(pyarrow.table(columns), "ids.parquet")
    line = "\t".join(["1"] * 14 + ["68fd1e64"] * 26) + "\n"
    (here / "clicks.tsv").write_text(line * 20)
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim\nuser,1000,64\n")


def test_ids_become_a_task(output_of):
    arguments = ["import-tables", "ids.parquet", "--batch-size", "20", "--devices", "4", "--dim", "user=32"]
    said = output_of([*arguments, "-o", "task.json"])
    assert "task.json: 2 tables, " in said.out
    assert "\nassumed: 16 columns of 1 of 2 tables (no --dim)\n" in said.out
    assert "of the ids of a batch" in said.out
    assert said.err == "left out: price (double), not a column of ids\n"
    task = ShardingTask.load("task.json")
    assert (task.num_devices, task.batch_size) == (4, 20)
    assert [(table.name, table.embedding_dim) for table in task.tables] == [("user", 32), ("clicks", 16)]
    reached = max(max(ids, default=0) for ids in parquet.read_table("ids.parquet").column("clicks").to_pylist())
    assert [table.num_embeddings for table in task.tables] == [100, reached + 1]
    assert all(isinstance(table.ids, RecordedIds) for table in task.tables)
    assert main(["solve", "task.json", "--solver", "dim_greedy", "-o", "plan.json"]) == 0
    assert "task.json exists: give another name, or --force" in output_of([*arguments, "-o", "task.json"], 2).err
    assert "assumed" not in output_of([*arguments, "--dim", "64", "-o", "both.json"]).out
    assert [table.embedding_dim for table in ShardingTask.load("both.json").tables] == [32, 64]
    page = json.loads(output_of([*arguments[:-2], "--feature", "clicks", "-o", "task.json", "--force", "--json"]).out)
    assert (page["tables"], page["digest"]) == (1, ShardingTask.load("task.json").digest)
    assert page["features"]["clicks"]["pooling_factor"] == 2.0
    assert 0.5 < page["features"]["clicks"]["distinct_share"] <= 1


def test_ids_far_apart_are_said_to_look_hashed(capsys, output_of):
    columns = {"user": [5, 9, 7, 2], "clicked": [1, 2**39, 3, 3], "country": ["a", "b", "c", "d"]}
    parquet.write_table(pyarrow.table(columns), "far.parquet")
    arguments = ["import-tables", "far.parquet", "--batch-size", "2", "-o", "out.json"]
    said = output_of(arguments)
    assert said.out.endswith("\nrows: largest id + 1, at least 100 (no --hash-size)\n")
    assert said.err == (
        "left out: country (string), not a column of ids\n"
        "shardgym: warning: feature 'clicked' gets 549,755,813,889 rows (largest id + 1) for at most 3 distinct "
        "ids: if its ids are hashes, give --hash-size clicked=ROWS\n"
    )
    assert main([*arguments, "--devices", "2", "--force"]) == 2
    assert (
        "give --devices, --memory-gib or another --topology, or --hash-size clicked=ROWS if its ids are hashes"
        in capsys.readouterr().err
    )
    said = output_of([*arguments, "--devices", "2", "--force", "--hash-size", "clicked=1000"])
    assert "warning" not in said.err
    assert said.out.endswith("\nrows of 1 feature: largest id + 1, at least 100 (no --hash-size)\n")


def test_without_devices_a_pool_is_written(output_of):
    arguments = ["import-tables", "clicks.tsv", "--batch-size", "10", "--hash-size", "1000", "--feature", "cat_3"]
    assert "pool.json: a pool of 1 table, batch size 10" in output_of([*arguments, "-o", "pool.json"]).out
    pool = load_pool("pool.json")
    assert pool == TablePool.load("pool.json")
    assert pool[0].ids.hash_size == pool[0].num_embeddings == 1000
    assert main([*arguments, "--fit", "--samples", "15", "--force", "-o", "pool.json"]) == 0
    assert isinstance(load_pool("pool.json")[0].ids, RangeIds)


def test_another_batch_than_that_of_a_pool_drops_what_was_counted_in_it():
    assert main(["import-tables", "ids.parquet", "--batch-size", "20", "--fit", "-o", "pool.json"]) == 0
    assert load_pool("pool.json")[0].reuse_histogram is not None
    for kind, arguments in ((TablePool, []), (ShardingTask, ["--devices", "2"])):
        command = ["import-tables", "pool.json", *arguments, "--force", "-o"]
        assert main([*command, "a.json"]) == main([*command, "b.json", "--batch-size", "40"]) == 0
        assert kind.load("a.json").tables == load_pool("pool.json").tables
        found = kind.load("b.json")
        assert (found.batch_size, {table.reuse_histogram for table in found.tables}) == (40, {None})


def test_tables_are_unpooled_and_keep_the_state_of_an_optimizer():
    arguments = ["import-tables", "ids.parquet", "--batch-size", "20", "--devices", "2", "--fit", "-o", "task.json"]
    assert main([*arguments, "--unpooled", "clicks", "--optimizer", "rowwise_adagrad"]) == 0
    task = ShardingTask.load("task.json")
    assert [task.optimizer_of(table) for table in task.tables] == ["rowwise_adagrad"] * 2
    assert [table.pooling for table in task.tables] == ["sum", "none"]


def test_an_optimizer_in_all_rows_is_that_of_the_option(here):
    (here / "said.csv").write_text("name,num_embeddings,embedding_dim,optimizer\nuser,1000,64,adam\n")
    arguments = ["--devices", "2", "--batch-size", "64"]
    assert main(["import-tables", "said.csv", *arguments, "-o", "a.json"]) == 0
    assert main(["import-tables", "tables.csv", *arguments, "--optimizer", "adam", "-o", "b.json"]) == 0
    said, given = (ShardingTask.load(name) for name in ("a.json", "b.json"))
    assert said.digest == given.digest
    assert (given.tables, given.batch_size, given.num_devices) == (load_pool("tables.csv").tables, 64, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ids.parquet"], "has no batch size; give --batch-size"),
        (["ids.parquet", "--batch-size", "9", "--feature", "users"], "unknown feature of ids.parquet 'users'"),
        (["ids.parquet", "--batch-size", "9", "--dim", "4", "--dim", "8"], "'--dim': expected one value for all, and"),
        (["ids.parquet", "--hash-size", "4", "--hash-size", "user=8"], "--hash-size: expected one value for all feat"),
        (["ids.parquet", "--batch-size", "9", "--dim", "user=6"], "divisible by 4, table 'user' has 6 columns"),
        (["ids.parquet", "--batch-size", "9", "--devices", "1", "--memory-gib", "1e-9"], "no plan can fit"),
        (["tables.csv", "--unpooled", "users"], "unknown table of tables.csv 'users': did you mean user?"),
        (["tables.csv", "--optimizer", "adam"], "--optimizer is for a task: give --devices, too"),
        (["tables.csv", "--topology", "cpu"], "--topology and --memory-gib are for a task: give --devices, too"),
        (["tables.csv", "--memory-gib", "1"], "--topology and --memory-gib are for a task: give --devices, too"),
        (["tables.csv", "--fit"], "--fit is for files of ids, which end in .pt"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, output_of, here):
    error = output_of(["import-tables", *arguments, "-o", "out.json"], 2).err
    assert message in error
    assert error.count("\n") == 1 + error.count("left out: price")
    assert not (here / "out.json").exists()
