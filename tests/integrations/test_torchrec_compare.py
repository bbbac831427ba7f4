"""shardgym compare on processes of this machine: what is recorded and printed, and how it fails."""

import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import numpy as np
import torch
import torch.distributed as dist
from torchrec_toys import MARKS, Toy, topology

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, ZipfIds
from shardgym.cli import main
from shardgym.torchrec import save, task_from_model, to_torchrec
from shardgym.torchrec.comparing import MIN_ROUNDS, Comparison

pytestmark = MARKS

#: Until all ranks are through.
TIMEOUT_S = 240
ONE_ROUND = ["--minutes", "0.0001"]

MODEL = """\
import collections
import os
import torch
from torch import nn
from torchrec_toys import Toy, collection, config, sample

MADE = collections.Counter()

def make():
    return Toy(device=None)

class Model(nn.Module):
    def __init__(self, device="meta", ends=""):
        super().__init__()
        self.bags = collection(config("a", 40, 8), config("b", 20, 16), device=device)
        self.dense = nn.Linear(24, 1)
        self.ends = ends
        MADE[ends] += 1

    def forward(self, ids):
        if MADE[self.ends] == 4 and os.environ["RANK"] == "1":  # in the third turn: one was looked at before
            if self.ends == "killed":
                os._exit(9)
            if self.ends == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        found = self.bags(ids).to_dict()
        values = self.dense(torch.cat([found["a_ids"], found["b_ids"]], dim=1))
        return "no loss" if self.ends == "text" else ((values**2).mean(), values)

trained = Model
with_weights = lambda: Model(None)
killed = lambda: Model(ends="killed")
memory = lambda: Model(ends="memory")
text = lambda: Model(ends="text")

def batches(rank, size):
    assert size == int(os.environ["WORLD_SIZE"])
    for step in range(5):
        yield sample({"a_ids": 40, "b_ids": 20}, 6, rank, step)

def none(rank, size):
    return []
"""


class Answer(NamedTuple):
    """How a command ended on a rank, and what it printed there."""

    code: int | None
    out: str
    err: str


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with models, a task of two tables for two ranks, and plans."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "toy_job.py").write_text(MODEL)
    tables = (EmbeddingTable("a", 100, 8, pooling_factor=2.0), EmbeddingTable("b", 50, 16))
    task = ShardingTask(tables, Topology(2, (2**20,) * 2), 12)
    (folder / "task.json").write_text(task.to_json())
    save(to_torchrec(ShardingPlan.table_wise(task, [0, 0]), task), folder / "together.json")
    # TorchRec keeps 15 % free, so that it has no plan for tables of 3,200 bytes.
    (folder / "tight.json").write_text(ShardingTask(tables, Topology(2, (3300,) * 2), 12).to_json())
    theirs = task_from_model(Toy(), topology(), 16)
    save(to_torchrec(ShardingPlan.table_wise(theirs, [0, 0, 1]), theirs), folder / "theirs.json")
    plans = {
        "apart": {"a": 0, "b": 1}, "turned": {"a": 1, "b": 0}, "outside": {"a": 0, "b": 5},
        "ours": {"bags.a": 1, "bags.b": 0}, "alone": {"bags.a": 0, "bags.b": 0},
    }  # fmt: skip
    for name, plan in plans.items():
        (folder / f"{name}.json").write_text(json.dumps(plan))
    return folder


def run(folder, size, commands, local_size):
    """Run commands, one after the other, on every rank: in processes forked from this one, which has TorchRec."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_run, args=(folder, rank, size, local_size, port, commands)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
        if process.is_alive():
            process.kill()
            process.join()
    return {name: [_answer(folder, name, rank, processes[rank].exitcode) for rank in range(size)] for name in commands}


def _run(folder, rank, size, local_size, port, commands):
    os.chdir(folder)
    sys.path.append(str(folder))
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size), "MASTER_ADDR": "localhost",
    }  # fmt: skip
    for number, (name, arguments) in enumerate(commands.items()):
        os.environ["MASTER_PORT"] = str(port + number)
        with Path(f"{name}-{rank}.out").open("w") as out, Path(f"{name}-{rank}.err").open("w") as err:
            sys.stdout, sys.stderr, sys.__stderr__ = out, err, err
            code = main(["compare", *arguments, "-o", f"{name}.result"])
            out.flush()
        Path(f"{name}-{rank}.code").write_text(str(code))
        if dist.is_initialized():  # after an error
            dist.destroy_process_group()
    os._exit(0)


def _answer(folder, name, rank, exit_code):
    of_rank = folder / f"{name}-{rank}"
    code = of_rank.with_suffix(".code")
    texts = [of_rank.with_suffix(suffix).read_text() for suffix in (".out", ".err")]
    return Answer(int(code.read_text()) if code.exists() else exit_code, *texts)


OWN = ("--batch-size", "6", "--batches", "toy_job:batches", "--plan", "ours.json", "--plan", "alone.json")
APART = ("task.json", "--plan", "apart.json", "--plan")
#: Commands on two ranks, by name.
COMMANDS = {
    "planners": (
        "toy_job:make", "--batch-size", "8", "--plan", "torchrec", "--plan", "shardgym", "--plan", "theirs.json",
        "--within", "1000",
    ),
    "model": ("toy_job:trained", *OWN, *ONE_ROUND),
    "left_out": ("tight.json", "--plan", "apart.json", "--plan", "together.json", "--plan", "torchrec", *ONE_ROUND),
    "alone": ("tight.json", "--plan", "apart.json", "--plan", "torchrec"),
    "outside": (*APART, "outside.json"),
    "missing": (*APART, "missing.json"),
    "weights": ("toy_job:with_weights", *OWN),
    "none": ("toy_job:trained", *OWN[:2], "--batches", "toy_job:none", *OWN[4:]),
    "text": ("toy_job:text", *OWN),
    "memory": ("toy_job:memory", *OWN, "--within", "1e-9"),
}  # fmt: skip
#: By the name of a command, the line that says what went wrong.
WRONG = {
    "alone": "'torchrec' is left out: TorchRec's planner found no plan: ",
    "outside": "plan 'outside.json': ",
    "missing": "--plan missing.json: expected torchrec or shardgym, or a plan file",
    "weights": "table 'bags.a' of the model has its weights on every rank",
    "none": " has no batches: expected at least one",
    "text": "model(batch) returned 'no loss': expected the loss, or a tuple",
}


@pytest.fixture(scope="module")
def ran(here):
    return run(here, 2, COMMANDS, 2)


def errors(answers):
    """What all ranks say of errors."""
    return [line for answer in answers for line in answer.err.splitlines() if line.startswith("shardgym: error: ")]


def check_result(result, ranks, rounds):
    """Hold what a result says of plans against its rounds."""
    first = result.plans[0]
    for plan in result.plans:
        assert len(plan.round_ms) == rounds
        assert plan.ratio == pytest.approx(np.exp(np.mean(np.log(np.divide(plan.round_ms, first.round_ms)))))
        assert len(plan.rank_ms) == len(plan.peak_bytes) == len(plan.predicted_rank_ms) == len(plan.phases_ms) == ranks
        assert max(plan.rank_ms) <= np.exp(np.mean(np.log(plan.round_ms))) * (1 + 1e-9)
        assert all(size > 0 for size in (*plan.predicted_bytes, *plan.predicted_rank_ms))
        assert np.min(plan.phases_ms) > 0
        if plan is not first and rounds >= MIN_ROUNDS:
            assert plan.low <= plan.ratio <= plan.high
        else:
            assert (plan.low, plan.high) == (None, None)


def test_plans_of_both_planners_and_of_a_file_are_compared(here, ran):
    first, second = ran["planners"]
    assert (first.code, second.code) == (0, 0), first.err
    assert (second.out, second.err) == ("", "")
    result = Comparison.load(here / "planners.result")
    assert [of.name for of in result.plans] == ["torchrec", "shardgym", "theirs.json"]
    check_result(result, 2, MIN_ROUNDS)
    assert (result.ended, result.backend, result.trained, result.cost) == ("within", "gloo", "collections", "roofline")
    assert result.task.batch_size == 16
    # The file is for GPUs.
    placements = {s.placement for of in result.plans[2].plan.modules.values() for t in of.values() for s in t.shards}
    assert placements == {"rank:0/cpu", "rank:1/cpu"}
    head, _, titles, _, *rows = first.out.splitlines()
    assert head.startswith(f"planners.result: 2 ranks on {result.hardware} with gloo, 4 rounds; half-width ")
    assert titles.split("  ")[0] == "plan"
    assert [row.split()[0] for row in rows[:3]] == ["torchrec", "shardgym", "theirs.json"]
    times, ratios = np.array([row.split()[1:3] for row in rows[:3]], dtype=float).T
    assert times / times[0] == pytest.approx(ratios, abs=0.002)
    assert "the embedding collections were trained alone: " in first.out
    assert "assumed: 1 id per sample and feature for 3 of 3 tables" in first.out
    assert first.out.endswith(result.sentence() + "\n")


def test_a_model_is_trained_on_its_own_batches(here, ran):
    assert [answer.code for answer in ran["model"]] == [0, 0], ran["model"][0].err
    result = Comparison.load(here / "model.result")
    check_result(result, 2, 1)
    assert (result.trained, result.ended, result.calibration) == ("model", "minutes", None)
    assert "trained alone" not in ran["model"][0].out
    assert "planners and predictions know the ids of the task, not those of --batches" in ran["model"][0].out
    assert "Before 4 rounds, neither the faster plan nor the level is known: give more --minutes" in ran["model"][0].out


def test_a_planner_without_a_plan_is_left_out_where_two_plans_remain(here, ran):
    """What TorchRec's plan in a file takes is found out, though the task has no room for it."""
    result = Comparison.load(here / "left_out.result")
    check_result(result, 2, 1)
    assert [plan.name for plan in result.plans] == ["apart.json", "together.json"]
    assert any(note.startswith(WRONG["alone"]) for note in result.notes)
    assert WRONG["alone"] in ran["left_out"][0].out


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_compared_is_named_by_one_rank(name, here, ran):
    (said,) = errors(ran[name])
    assert WRONG[name] in said
    assert 0 not in {answer.code for answer in ran[name]}
    assert not (here / f"{name}.result").exists()


def test_what_was_measured_before_a_rank_failed_is_kept(here, ran):
    killed = run(here, 2, {"killed": ("toy_job:killed", *OWN, "--within", "1e-9")}, 2)
    assert [answer.code for answer in killed["killed"]] == [1, 9]
    reasons = {
        "memory": "rank 1: out of memory; give fewer rows, a smaller batch or devices with more memory",
        "killed": "rank 0: another rank ended or does not answer; see its output, or torchrun's",
    }
    for name, why in reasons.items():
        answers = (ran | killed)[name]
        (said,) = errors(answers)
        assert said.startswith("shardgym: error: plan '")
        assert said.endswith(f".json', round 2, {why}")
        assert [answer.out for answer in answers] == ["", ""]
        result = Comparison.load(here / f"{name}.result")
        check_result(result, 2, 1)
        assert result.ended is None


def test_a_task_of_all_kinds_of_tables_runs_on_four_ranks_with_fewer_rows(tmp_path):
    tables = (
        EmbeddingTable("bags.a", 160, 16, pooling_factor=3.0, ids=ZipfIds(1.1), optimizer="rowwise_adagrad"),
        EmbeddingTable("bags.b", 80, 8, pooling_factor=2.0, num_features=2, precision="fp16"),
        EmbeddingTable("bags.d", 10, 4, optimizer="exact_sgd"),
        EmbeddingTable("words.c", 40, 8, pooling_factor=1.5, pooling="none"),
        EmbeddingTable("scores.e", 40, 8, weighted=True),
    )
    task = ShardingTask(tables, Topology(4, (2**20,) * 4, fast_domain_size=2), 24, optimizer="adagrad")
    (tmp_path / "task.json").write_text(task.to_json())
    _, b, d, c, e = task.tables
    others = [Shard.whole(b, 1), Shard.whole(c, 2), Shard.whole(e, 3)]
    rows = [Shard("bags.a", (40 * n, 40 * n + 40), (0, 16), (n,)) for n in range(4)]
    by_rows = ShardingPlan.of(task, [*rows, Shard.whole(d, 0, 1, 2, 3), *others])
    columns = [Shard("bags.a", (0, 160), (4 * n, 4 * n + 4), (n,)) for n in range(4)]
    by_columns = ShardingPlan.of(task, [*columns, Shard.whole(d, 2), *others])
    (tmp_path / "rows.json").write_text(by_rows.to_json())
    save(to_torchrec(by_columns, task), tmp_path / "columns.json")
    arguments = ["task.json", "--plan", "rows.json", "--plan", "columns.json", "--rows", "0.5", "--json", *ONE_ROUND]
    answers = run(tmp_path, 4, {"four": arguments}, local_size=2)["four"]
    assert [answer.code for answer in answers] == [0] * 4, [answer.err for answer in answers]
    assert {answer.out for answer in answers[1:]} == {""}
    result = Comparison.load(tmp_path / "four.result")
    assert Comparison.from_json(answers[0].out) == result
    check_result(result, 4, 1)
    assert (result.rows, result.ranks_per_host) == (0.5, 2)
    assert [table.num_embeddings for table in result.task.tables] == [80, 40, 8, 20, 20]
    shards = result.plans[0].plan.modules["bags"]["a"].shards
    assert [(s.offsets, s.sizes) for s in shards] == [((20 * n, 0), (20, 16)) for n in range(4)]


TWO = ["--plan", "torchrec", "--plan", "shardgym"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["t.json", *TWO], "RANK is not in the environment: start the command with torchrun, such as 'torchrun "),
        (["t.json", "--plan", "torchrec"], "--plan: expected two or more, each once"),
        (["t.json", *TWO, "--plan", "torchrec"], "--plan: expected two or more, each once"),
        (["t.json", *TWO, "--batch-size", "8"], "a task has batch size and devices of its own"),
        (["m:f", *TWO], "a model needs --batch-size (samples per rank) or --task"),
        (["m:f", *TWO, "--task", "t.json"], "--task needs --batches: without batches, give the task as MODEL"),
        (["t.json", *TWO, "--batches", "m:f"], "--batches needs a model, got a task: give module:function as MODEL"),
        (["m:f", *TWO, "--batch-size", "8", "--batches", "m:f", "--rows", "0.5"], "give --rows or --batches, not both"),
        (["m:f", *TWO, "--batch-size", "8", "--rows", "0.7"], "--rows 0.7: expected 1 / N, such as 1 or 0.5"),
        (["m:f", *TWO, "--batch-size", "8", "--batches", "re:sub"], "cannot import 'm'"),
        (["re:sub", *TWO, "--batch-size", "8", "--batches", "re:sup"], "module 're' has no 'sup': did you mean sub?"),
    ],
)
def test_wrong_usage_is_one_line(arguments, message, capsys, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert main(["compare", *arguments, "-o", "result.json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1
