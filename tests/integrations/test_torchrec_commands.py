"""The command line from a model to a plan that TorchRec takes, and back."""

import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec_toys import MARKS

from shardgym import Shard, ShardingPlan, ShardingTask
from shardgym.cli import main
from shardgym.torchrec import load, save

pa = pytest.importorskip("pyarrow", reason="logs of ids need pyarrow")
import pyarrow.parquet  # noqa: E402

pytestmark = MARKS

MODEL = """\
import torch
from torchrec_toys import Toy

def make():
    model = Toy(device=None)
    assert model.users.embedding_bags["id"].weight.is_meta
    return model

def both():
    model = Toy(device=None)
    model.words = torch.nn.Embedding(300, 16)
    return model

def criteo(numbers=(0, 25)):
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
    tables = [EmbeddingBagConfig(name=f"t{n}", num_embeddings=10 + n, embedding_dim=8, feature_names=[f"cat_{n}"])
              for n in numbers]
    return EmbeddingBagCollection(tables=tables, device=torch.device("meta"))

def first():
    return criteo((0,))

def fail():
    raise ValueError("no such thing")

def nothing():
    pass
"""

IMPORT = ["import-torchrec", "toy_model:make", "--devices", "4", "--batch-size", "8", "-o", "task.json"]
COUNTRY = ["--pooling-factor", "country=2.5"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a module that makes models, and a log of ten samples."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "toy_model.py").write_text(MODEL)
    columns = {
        "id_ids": pa.array([[i, 2 * i] for i in range(9)] + [None], pa.list_(pa.int32())),
        "country_ids": pa.array([*range(9), None], pa.int64()),
        "label": pa.array([0.5] * 10),
        "holes": pa.array([[1, None]] * 10, pa.list_(pa.int64())),
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "log.parquet")
    pyarrow.parquet.write_table(pa.table({"id_ids": [1]}), tmp_path / "users.parquet")


def test_from_a_model_to_a_sharding_plan_and_back(capsys):
    assert main([*IMPORT, "--topology", "dgx-a100"]) == 0
    out = capsys.readouterr().out
    assert "task.json: 3 tables" in out
    assert "assumed: 1 id per sample and feature for 3 of 3 tables\nassumed: ids spread evenly over rows\n" in out
    task = ShardingTask.load("task.json")
    assert (task.num_devices, task.topology.device, task.batch_size) == (4, "a100", 8)
    assert main(["solve", "task.json", "--solver", "neuroshard", "-o", "plan.json"]) == 0
    export = ["plan", "export", "task.json", "plan.json", "--model", "toy_model:make", "-o"]
    assert main([*export, "torchrec.json"]) == 0
    assert "3 tables (" in capsys.readouterr().out
    placements = (s.placement for t in load("torchrec.json").plan["users"].values() for s in t.sharding_spec.shards)
    assert {str(placement) for placement in placements} <= {f"rank:{rank}/cuda:{rank}" for rank in range(4)}
    assert main(["plan", "import", "task.json", "torchrec.json", "-o", "again.json"]) == 0
    assert ShardingPlan.load("again.json") == ShardingPlan.load("plan.json")
    ours = "plan.json", "a plan of ShardGym: 'shardgym plan show TASK PLAN' reads it\n"
    for name, what in (ours, ("task.json", "a task: give it as TASK\n")):
        assert main(["plan", "import", "task.json", name, "-o", "third.json"]) == 2
        assert f"{name}: expected a plan of TorchRec, got {what}" in capsys.readouterr().err


def test_plans_with_replicas_and_groups_go_there_and_back(capsys):
    assert main(IMPORT) == 0
    task = ShardingTask.load("task.json")
    users, countries, items = task.tables
    shards = [
        Shard(users.name, (0, 100), (0, 4), (0, 2)),
        Shard(users.name, (0, 100), (4, 16), (1, 3)),
        Shard.whole(countries, 0, 1, 2, 3),
        Shard.whole(items, 1, 3),
    ]
    Path("plan.json").write_text(ShardingPlan.of(task, shards, group_size=2).to_json())
    capsys.readouterr()
    export = ["plan", "export", "task.json", "plan.json", "--device-type", "cpu", "-o", "torchrec.json"]
    assert main(export) == 0
    said = capsys.readouterr()
    assert said.out == "torchrec.json: 3 tables (1 table_wise, 1 column_wise, 1 data_parallel) on 2 ranks\n"
    replicas, groups = said.err.splitlines()
    assert replicas.startswith("shardgym: warning: table 'users.country' is data parallel: ")
    assert groups.startswith("shardgym: warning: the plan is for one group: give it to DMPCollection")
    handler = logging.StreamHandler()  # TorchRec sets logging up in some versions and jobs
    logging.getLogger().addHandler(handler)
    try:
        assert main([*export, "--force", "--json"]) == 0
    finally:
        logging.getLogger().removeHandler(handler)
    said = capsys.readouterr()
    assert (said.err, len(json.loads(said.out)["notes"])) == (f"{replicas}\n{groups}\n", 2)
    back = ["plan", "import", "task.json", "torchrec.json", "-o", "again.json"]
    assert main(back) == 0
    assert ShardingPlan.load("again.json") == ShardingPlan.load("plan.json")
    # As of others' plans: without the size of groups, and with a collection more.
    theirs = load("torchrec.json").plan
    save(TorchRecPlan({**theirs, "words": theirs["users"]}), "torchrec.json")
    assert main([*back, "--force"]) == 2
    assert "'users.country' is data_parallel on 2 ranks, [0, 1]: expected all 4" in capsys.readouterr().err
    back += ["--force", "--group-size", "2"]
    assert main([*back, "--strict"]) == 2
    assert "strict: 'words' (tables id, country) is left out" in capsys.readouterr().err
    assert main(back) == 0
    assert "\nleft out: 'words' (tables id, country)\n" in capsys.readouterr().out
    assert ShardingPlan.load("again.json") == ShardingPlan.load("plan.json")
    assert main([*back, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left_out"] == ["'words' (tables id, country)"]


def test_a_log_gives_pooling_factors_and_reuse(capsys):
    assert main([*IMPORT, "--devices", "5", "--batch-size", "5", "--log", "log.parquet", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["assumed"] == ["optimizer exact_sgd, which keeps no state"]
    users, countries, items = ShardingTask.load("task.json").tables
    assert (users.pooling_factor, countries.pooling_factor, items.pooling_factor) == (1.8, 0.9, 1.8)
    assert (countries.ids.s, countries.ids.shares) == (0, (1.0,))
    assert countries.reuse_histogram == (1.0, *(0.0,) * 16)
    assert main([*IMPORT, "--devices", "1", "--batch-size", "11", "--log", "log.parquet", "--force"]) == 0
    assert "assumed: reuse of rows by the law of ids alone: the sample is shorter than" in capsys.readouterr().out
    assert ShardingTask.load("task.json").tables[1].reuse_histogram is None


def test_a_log_of_hashes_is_taken_modulo_the_rows_of_tables():
    cells = ["1"] * 14 + ["00000000"] * 25
    Path("clicks.tsv").write_text("".join("\t".join([*cells, f"{n:x}"]) + "\n" for n in range(70)))
    arguments = [IMPORT[0], "toy_model:criteo", *IMPORT[2:], "--devices", "5", "--batch-size", "35"]
    assert main([*arguments, "--log", "clicks.tsv"]) == 0
    one, all_rows = ShardingTask.load("task.json").tables
    assert one.reuse_histogram[6] == 1.0  # 35 lookups of one row
    assert all_rows.reuse_histogram[0] == 1.0  # each of 35 rows once
    assert (one.pooling_factor, all_rows.pooling_factor) == (1.0, 1.0)


def test_pooling_factors_and_an_optimizer_are_given(capsys):
    assert main([*IMPORT, *COUNTRY, "--optimizer", "adam"]) == 0
    out = capsys.readouterr().out
    assert "assumed: 1 id per sample and feature for 2 of 3 tables\n" in out
    assert "assumed: optimizer" not in out
    task = ShardingTask.load("task.json")
    assert task.table("users.country").pooling_factor == 2.5
    assert task.optimizer == "adam"
    assert main([IMPORT[0], "toy_model:both", *IMPORT[2:], "--force", "--pooling-factor", "3", *COUNTRY]) == 0
    assert "left out: 'words' (Embedding; 19200 bytes)\n" in capsys.readouterr().out
    assert [table.pooling_factor for table in ShardingTask.load("task.json").tables] == [3.0, 2.5, 3.0]


def test_a_reserve(capsys):
    assert main([*IMPORT, "--memory-gib", "2", "--reserve", "torchrec"]) == 0
    out = capsys.readouterr().out
    assert " % of what the reserve and a step's inputs and outputs leave of the memory of 4 devices\n" in out
    assert "reserved on each device: 0.300 GiB at most" in out
    assert ShardingTask.load("task.json").step_memory.input_copies == 20
    assert main([*IMPORT, "--topology", "dgx-a100", "--reserve", "torchrec", "--force"]) == 0
    assert "reserved on each device: 12.000 GiB at most" in capsys.readouterr().out  # of 80, not of the preset's 60
    assert main(["sweep", "task.json", "--gpus", "b200", "--devices", "2", "--solver", "lpt"]) == 0
    assert "the task reserves 12.000 GiB of each device, whatever its size" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy_model:fail"], "'toy_model:fail' made no model under torch.device('meta'): ValueError: no such"),
        (["toy_model:nothing"], "returned NoneType: expected a torch.nn.Module"),
        (["toy_model"], "expected module:function"),
        (["toy_model:make", "--log", "users.parquet"], "lacks feature 'country_ids' of table 'users.country'"),
        (["toy_model:both", "--strict"], "strict: 'words' (Embedding; 19200 bytes) is left out"),
        (["toy_model:make", "--memory-gib", "0.000001"], "fit; give --devices, --memory-gib or another --topology\n"),
        (["toy_model:make", "--pooling-factor", "2", "--log", "log.parquet"], "--pooling-factor and --log were given"),
        (["toy_model:make", "--devices", "3"], "batch_size 8: all 3 ranks of a TorchRec job have the same"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, message, capsys):
    assert main(["import-torchrec", *IMPORT[2:], *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("task.json").exists()


def test_an_export_is_refused_for_another_model_or_a_plan_that_does_not_fit(capsys):
    assert main(IMPORT) == 0
    export = ["plan", "export", "task.json", "plan.json", "-o", "torchrec.json"]
    for name, code, message in (("country", 2, "did you mean 'users.country'?"), ("users.country", 1, "on device 9")):
        Path("plan.json").write_text(json.dumps({"users.id": 0, name: 1, "towers.items.id": 9}))
        assert main(export) == code
        assert message in capsys.readouterr().err
    halves = "table,devices,first_row,end_row,first_column,end_column\nusers.id,0,0,100,0,4\nusers.id,2,0,100,4,8\n"
    Path("halves.csv").write_text(f"{halves}users.id,0,0,100,8,16\nusers.country,1,,,,\ntowers.items.id,2,,,,\n")
    assert main([*export[:3], "halves.csv", *export[4:]]) == 0
    said = capsys.readouterr().err
    assert "TorchRec will permute 24 columns of each sample's output" in said
    assert "TorchRec runs 'users.id' in 4 pieces, not 3: " in said
    assert " ms by 'roofline', this one " in said
    Path("plan.json").write_text('{"users.id": 0, "users.country": 1, "towers.items.id": 2}')
    assert main([*export, "--force"]) == 0
    assert "warning: the task is for 'cpu-core', the exported plan for cuda" in capsys.readouterr().err
    assert main([*export, "--force", "--device-type", "cuda"]) == 0
    assert capsys.readouterr().err == ""
    assert main([*export, "--force", "--model", "toy_model:criteo"]) == 2
    assert "the plan is for another model" in capsys.readouterr().err
    assert main([IMPORT[0], "toy_model:criteo", *IMPORT[2:], "--force"]) == 0
    Path("plan.json").write_text('{"t0": 0, "t25": 1}')
    assert main([*export, "--force", "--model", "toy_model:first"]) == 2
    assert "this one has no table 't25'; its 1 tables are t0" in capsys.readouterr().err
