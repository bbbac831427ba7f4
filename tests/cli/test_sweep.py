"""sweep: machines on the command line, and what is written and printed."""

import dataclasses
import json
import sys

import pytest

from shardgym import ShardingTask
from shardgym.cli import main
from shardgym.evaluation import read_records

SWEEP = ["sweep", "tables.csv", "--batch-size", "1024", "--out", "out", "--solver"]
SMALL = [*SWEEP, "lpt", "--gpus", "h100,b200", "--devices", "2"]


@pytest.fixture(autouse=True)
def tables(here):
    (here / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\na,1000,64,2\nb,500,32,9\n")


def test_every_machine_has_a_record_and_is_described(here, output_of):
    said = output_of([*SMALL, "--dense-ms", "h100=2/512", "--dense-ms", "1/512", "--price", "3", "--json"])
    machines = json.loads(said.out)["machines"]
    assert [(one["gpu"], one["devices"], one["status"]) for one in machines] == [("h100", 2, "ok"), ("b200", 2, "ok")]
    results = read_records(here / "out" / "records.jsonl")
    for one, result in zip(machines, results, strict=True):
        assert result.cost.total_ms == one["embedding_ms"]
        dense = 2.0 if one["gpu"] == "h100" else 1.0
        assert one["step_ms"] == one["embedding_ms"] + dense
        assert one["samples_per_s"] == pytest.approx(1024e3 / one["step_ms"])
        assert one["price_per_billion_samples"] == pytest.approx(2 * 3 / 3600 * 1e9 / one["samples_per_s"])


def test_a_machine_that_is_too_small_is_an_outcome(output_of):
    memory = ["--memory-gib", "h100=0.0001"]
    out = output_of([*SMALL, *memory]).out
    assert out.startswith("GPU      devices    batch    embeddings    left on the fullest  bound by")
    assert "2 x h100: the tables take 320000 bytes" in out
    assert "note: gpu was validated against published kernels of v100, a100, h100, not of b200" in out
    assert out.endswith("records: out/records.jsonl\n")
    assert main([*SWEEP, "lpt", "--gpus", "h100", "--devices", "2", *memory, "--out", "other"]) == 1


def test_a_machine_whose_plan_has_no_cost_is_a_failure(monkeypatch, output_of):
    sweep = sys.modules["shardgym.cli.sweep"]

    def without_cost(*arguments, **options):
        first, *others = evaluate(*arguments, **options)
        return [dataclasses.replace(first, status="unmeasured", cost=None, reason="no price"), *others]

    evaluate = sweep.evaluate
    monkeypatch.setattr(sweep, "evaluate", without_cost)
    assert "no price" in output_of(SMALL, 1).out


def test_tasks_are_swept(here, capsys, output_of):
    assert main(["sweep", "task.json", "--gpus", "a100", "--devices", "2", "--solver", "lpt", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["machines"][0]["batch_size"] == 64
    assert page["records"] == "results/sweep-task/records.jsonl"
    per_device = ["--batch-per-device", "10", "--devices", "2,4", "--solver", "lpt", "--json"]
    refused = output_of(["sweep", "task.json", "--gpus", "a100", *per_device], 2).err
    assert "another task 0, not 'a100-2': give another folder, or --resume all to start" in refused
    assert main(["sweep", "task.json", "--gpus", "a100", *per_device, "--resume", "all"]) == 0
    assert [one["batch_size"] for one in json.loads(capsys.readouterr().out)["machines"]] == [20, 40]
    task = ShardingTask.load(here / "task.json")
    with_hosts = dataclasses.replace(task.topology, host_memory_bytes=2**30)
    (here / "hosts.json").write_text(dataclasses.replace(task, topology=with_hosts).to_json())
    said = output_of(["sweep", "hosts.json", "--gpus", "a100", "--devices", "2", "--solver", "lpt"]).err
    assert "the memory of hosts is left out" in said
    for name, message in (("nothing", "unknown pool 'nothing'"), ("test_sweep:model", "has no batch size; give --b")):
        assert message in output_of(["sweep", name, "--gpus", "h100", "--devices", "2"], 2).err
    (here / "five.json").write_text("5")
    assert "five.json" in output_of(["sweep", "five.json", "--gpus", "h100", "--devices", "2"], 2).err


@pytest.mark.torchrec
def test_a_torchrec_model_is_swept(output_of):
    arguments = ["sweep", "test_sweep:model", "--gpus", "h100", "--devices", "2", "--solver", "lpt", "--out", "out"]
    said = output_of([*arguments, "--batch-size", "64"])
    assert "assumed: ids spread evenly over rows" in said.err
    assert "h100" in said.out


def model():
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig

    table = EmbeddingBagConfig(name="t", embedding_dim=8, num_embeddings=100, feature_names=["f"])
    return EmbeddingBagCollection(tables=[table])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "h100,b20"], "unknown GPU 'b20': did you mean b200 or gb200?"),
        (["--devices", "8:4"], "Invalid value for '--devices': 8:4: expected FIRST:LAST with FIRST <= LAST"),
        (["--price", "2"], "--price needs --dense-ms, the rest of the step; give 0 if there is none"),
        (["--dense-ms", "b200=1"], "unknown GPU of --dense-ms 'b200': known: h100"),
        (["--dense-ms", "1", "--dense-ms", "2"], "'--dense-ms': expected one value for all, and NAME=VALUE once for"),
        (["--gpus", "h100,v100,a100", "--dense-ms", "a100=1"], "--dense-ms has no value for h100, v100: give one for"),
        (["--gpus", "h100,v100", "--dense-ms", "1", "--price", "h100=3"], "--price has no value for v100: give one"),
        (["--batch-per-device", "8"], "--batch-size or --batch-per-device, not both"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_nothing_is_written(here, output_of, arguments, message):
    said = output_of([*SWEEP, "lpt", "--gpus", "h100", "--devices", "2", *arguments], 2).err
    assert message in said
    assert said.count("\n") == 1
    assert not list(here.glob("out/*.json*"))
