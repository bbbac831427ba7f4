"""sweep: machines on the command line, what is written and printed, and what happens after a break."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_solver
from shardgym.cli import main

COUNT = Path("solved.txt")
SWEEP = ["sweep", "tables.csv", "--batch-size", "1024", "--out", "out", "--solver"]
SMALL = [*SWEEP, "lpt", "--gpus", "h100,b200", "--devices", "2"]


class Counting:
    """LPT, which notes in a file how often it is asked."""

    def solve(self, task, cost, seed=0):
        with COUNT.open("a") as file:
            file.write(f"{task.name}\n")
        return make_solver("lpt").solve(task, cost, seed)


class Dying(Counting):
    """Leaves on four devices, once."""

    def solve(self, task, cost, seed=0):
        if task.num_devices == 4 and not COUNT.read_text().count("gone"):
            COUNT.write_text(COUNT.read_text() + "gone\n")
            raise SystemExit(3)
        return super().solve(task, cost, seed)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a file of tables and a task."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\na,1000,64,2\nb,500,32,9\n")
    task = ShardingTask((EmbeddingTable("c", 10, 8),), Topology(num_devices=3, memory_bytes=2**20), 96)
    (tmp_path / "task.json").write_text(task.to_json())
    return tmp_path


def solved() -> list[str]:
    return COUNT.read_text().split()


def test_every_machine_has_a_line_a_task_and_a_plan(here, capsys):
    assert main([*SMALL, "--dense-ms", "h100=2/512", "--dense-ms", "b200=1/512", "--price", "3", "--json"]) == 0
    said = capsys.readouterr()
    machines = json.loads(said.out)["machines"]
    assert [(one["gpu"], one["devices"], one["status"]) for one in machines] == [("h100", 2, "ok"), ("b200", 2, "ok")]
    assert said.err == ""
    for one in machines:
        name = f"{one['gpu']}-2"
        task = ShardingTask.load(here / "out" / f"{name}.task.json")
        plan = ShardingPlan.load(here / "out" / f"{name}.plan.json")
        plan.validate(task)
        assert (plan.digest, task.digest, task.topology.device) == (one["plan"], one["task_hash"], one["gpu"])
        dense = 2.0 if one["gpu"] == "h100" else 1.0
        assert one["step_ms"] == one["embedding_ms"] + dense
        assert one["samples_per_s"] == pytest.approx(1024e3 / one["step_ms"])
        assert one["price_per_billion_samples"] == pytest.approx(2 * 3 / 3600 * 1e9 / one["samples_per_s"])
        assert one["memory_left_bytes"] < task.topology.memory_bytes[0]
    lines = (here / "out" / "machines.jsonl").read_text().splitlines()
    assert [json.loads(line)["gpu"] for line in lines] == ["h100", "b200"]


def test_a_table_is_printed_and_a_figure_is_drawn(here, capsys):
    pytest.importorskip("matplotlib")
    assert main([*SMALL, "--figure", "sweep.svg"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("GPU      devices    batch    embeddings    left on the fullest  bound by")
    assert "note: gpu was held against published kernels of v100, a100, h100: of b200 there were none" in said.out
    assert said.out.endswith("results: out/machines.jsonl\nfigure: sweep.svg\n")
    assert said.err.startswith("2 x h100: ")
    assert "<svg" in (here / "sweep.svg").read_text()


def test_a_broken_off_sweep_goes_on_where_it_was(here, capsys):
    arguments = [*SWEEP, "test_sweep:Counting", "--gpus", "h100"]
    assert main([*arguments, "--devices", "1:2"]) == 0
    file = here / "out" / "machines.jsonl"
    written = file.read_bytes()
    file.write_bytes(written + written[:50])  # a line that was cut off by a kill
    assert main([*arguments, "--devices", "1:4"]) == 0
    assert "dropped a machine that was cut off" in capsys.readouterr().err
    assert file.read_bytes().startswith(written)
    assert solved() == ["h100-1", "h100-2", "h100-4"]
    assert main([*arguments, "--devices", "1:4", "--price", "2", "--dense-ms", "5"]) == 0
    assert len(solved()) == 3
    assert "per 10^9 samples" in capsys.readouterr().out


def test_several_processes_find_what_one_does_and_continue(here, capsys):
    arguments = [*SWEEP, "test_sweep:Counting", "--gpus", "h100", "--json"]
    assert main([*arguments, "--devices", "1:4", "--out", "alone"]) == 0
    alone = json.loads(capsys.readouterr().out)["machines"]
    COUNT.unlink()
    assert main([*arguments, "--devices", "2"]) == 0
    capsys.readouterr()
    assert main([*arguments, "--devices", "1:4", "--engine", "loky", "--workers", "2"]) == 0
    several = json.loads(capsys.readouterr().out)["machines"]
    for machine in (*alone, *several):
        del machine["solve_time_s"]
    assert several == alone
    assert sorted(solved()) == ["h100-1", "h100-2", "h100-4"]
    assert len((here / "out" / "machines.jsonl").read_text().splitlines()) == 3


def test_a_solver_that_dies_costs_one_machine_which_is_tried_again(capsys):
    COUNT.touch()
    arguments = [*SWEEP, "test_sweep:Dying", "--gpus", "h100", "--devices", "2:8"]
    assert main(arguments) == 1
    assert "4 x h100: SystemExit: 3" in capsys.readouterr().out
    assert main(arguments) == 0
    assert solved() == ["h100-2", "gone", "h100-8", "h100-4"]


def test_a_machine_that_is_too_small_is_an_outcome(capsys):
    memory = ["--memory-gib", "h100=0.0001"]
    assert main([*SMALL, *memory]) == 0
    assert "2 x h100: the tables take 320000 bytes" in capsys.readouterr().out
    assert main([*SWEEP, "lpt", "--gpus", "h100", "--devices", "2", *memory]) == 1


def test_tasks_and_torchrec_models_are_swept(capsys):
    assert main(["sweep", "task.json", "--gpus", "a100", "--devices", "2", "--solver", "lpt", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["machines"][0]["batch_size"] == 96
    assert page["files"] == {"results": "results/sweep-task/machines.jsonl"}
    per_device = ["--batch-per-device", "10", "--devices", "2,4", "--out", "other"]
    assert main(["sweep", "task.json", "--gpus", "a100", *per_device, "--solver", "lpt", "--json"]) == 0
    assert [one["batch_size"] for one in json.loads(capsys.readouterr().out)["machines"]] == [20, 40]


@pytest.mark.torchrec
def test_a_torchrec_model_is_swept(capsys):
    arguments = ["sweep", "test_sweep:model", "--gpus", "h100", "--devices", "2", "--solver", "lpt", "--out", "out"]
    assert main([*arguments, "--batch-size", "64"]) == 0
    said = capsys.readouterr()
    assert "assumed: ids spread evenly over rows" in said.err
    assert "h100" in said.out


def model():
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

    table = EmbeddingBagConfig(name="t", embedding_dim=8, num_embeddings=100, feature_names=["f"])
    return EmbeddingBagCollection(tables=[table])


def test_a_folder_holds_one_sweep(here, capsys):
    assert main(SMALL) == 0
    for change, message in (
        (["--batch-per-device", "7"], "out holds h100-2 of another model, batch or memory: give another folder"),
        (["--seed", "3"], "out holds h100-2 of seed 0, not 3: give another folder"),
        (["--solver", "dim_greedy"], "out holds h100-2 of solver lpt, not dim_greedy"),
    ):
        arguments = [one for one in SMALL if change[0] != "--batch-per-device" or one not in ("--batch-size", "1024")]
        assert main([*arguments, *change]) == 2
        assert message in capsys.readouterr().err
    assert len((here / "out" / "machines.jsonl").read_text().splitlines()) == 2
    (here / "out" / "machines.jsonl").write_text("{}\n")
    assert main(SMALL) == 2
    assert "out/machines.jsonl:1: gpu: Field required" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "h100,b20"], "unknown GPU 'b20': known: rtx-2080-ti, a10, v100, a100-40, a100, h100, h100-pcie, "
         "h200, b200, b300, gb200, gb300, l40s"),
        (["--gpus", "mi300x"], "unknown GPU 'mi300x': known: rtx-2080-ti, "),
        (["--devices", "8:4"], "--devices 8:4: expected FIRST:LAST with FIRST <= LAST <= 65536"),
        (["--devices", "0"], "expected a whole number of at least 1, got '0'"),
        (["--devices", "1:99999"], "--devices 1:99999: expected FIRST:LAST"),
        (["--devices", "few"], "expected a whole number of at least 1, got 'few'"),
        (["--price", "2"], "--price is of whole steps: give --dense-ms, too; 0 says that embeddings are all"),
        (["--dense-ms", "b200=1"], "unknown GPU of --dense-ms 'b200': known: h100"),
        (["--gpus", "h100,b200", "--dense-ms", "h100=1"], "--dense-ms: nothing is said of b200: give b200=VALUE, too"),
        (["--dense-ms", "1", "--dense-ms", "h100=1"], "--dense-ms 1: expected one number for all, or NAME=NUMBER"),
        (["--dense-ms", "-1"], "expected a finite number above 0, got '-1'"),
        (["--memory-gib", "lots"], "expected a finite number above 0, got 'lots'"),
        (["--batch-per-device", "8"], "--batch-size or --batch-per-device, not both"),
        (["--figure", "sweep.jpg"], "--figure sweep.jpg: expected a file that ends in one of .svg, .pdf, .png"),
        (["--figure", "no/sweep.svg"], "cannot write no/sweep.svg: expected a file in a folder that exists"),
        (["--workers", "2"], "workers=2: engine 'here' has one: take engine 'loky' for several"),
        (["--engine", "dask"], "unknown engine 'dask': known: here, loky, ray"),
        (["--engine", "loky", "--address", "a:1"], "address: engine 'loky' has no cluster to join"),
        (["--solver", "lptt"], "unknown solver 'lptt': did you mean lpt"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(here, capsys, arguments, message):
    assert main([*SWEEP, "lpt", "--gpus", "h100", "--devices", "2", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not list(here.glob("out/*.json*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.csv", "cannot read nowhere.csv: there is no such file"),
        ("quick-v1", "'quick-v1' names no task: expected a task file, or quick-v1/INDEX"),
        ("nothing", "unknown pool 'nothing'"),
        ("test_sweep:model", "a model says no batch size; give --batch-size or --batch-per-device"),
    ],
)
def test_models_that_there_are_not(capsys, name, message):
    assert main(["sweep", name, "--gpus", "h100", "--devices", "2"]) == 2
    assert message in capsys.readouterr().err
