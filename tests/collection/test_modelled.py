"""A modelled GPU is sampled like a machine: its samples say what the cost `gpu` says, with noise if asked for."""

from __future__ import annotations

import numpy as np
import pytest

from shardgym import InputError, ShardingPlan, load_suite, make_cost
from shardgym.cli import main
from shardgym.collection.measuring import ModelledGpu, shard_set_ms
from shardgym.collection.run import collect, finish
from shardgym.costs.fbgemm.communication import AllToAll
from shardgym.costs.fbgemm.jobs import TimingJob, shard_sets

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")

from shardgym.costs.simulator.sample_files import read_comm, read_compute

SMALL = {"device": "modelled:h100", "preset": "quick", "compute": 30, "comm": 24}


@pytest.fixture(scope="module")
def plan():
    task = load_suite("dlrm4-gpu-v1")[0]
    return task, ShardingPlan.table_wise(task, [i % 4 for i in range(task.num_tables)])


def test_samples_are_what_the_cost_says_of_the_devices_of_a_plan(plan):
    task, placed = plan
    said = make_cost("gpu", hardware="h100").evaluate(task, [placed])[0].per_device
    for device, shard_set in enumerate(shard_sets(task, placed)):
        assert shard_set_ms("h100", shard_set) == pytest.approx(said[device, [0, 3]])


def test_exchanges_are_what_the_cost_says_of_a_plan(plan):
    task, placed = plan
    said = make_cost("gpu", hardware="h100").evaluate(task, [placed])[0].per_device
    busy = said[:, 0] + said[:, 2] + said[:, 3]
    gpu = ModelledGpu("modelled:h100", 0.0, 0)
    forward = gpu.time(AllToAll.of(task, placed, busy - busy.min(), backward=False), 0, 2)
    backward = gpu.time(AllToAll.of(task, placed, np.zeros(4), backward=True), 0, 2)
    assert forward == pytest.approx(np.tile(said[:, 1], (2, 1)), abs=0.011)  # offsets are rounded to 0.01 ms
    assert backward == pytest.approx(np.tile(said[:, 2], (2, 1)))


def test_noise_is_log_normal_reproducible_and_new_in_every_repeat(plan):
    (job,) = [TimingJob(shard_sets(*plan)[0], 0, 2000)]
    exact = shard_set_ms("a100", job.shard_set)
    first, second = (ModelledGpu("modelled:a100", 0.1, seed=3).run(iter([job, job])) for _ in range(2))
    draws = [answer.times for _, answer in first]
    assert np.log(draws[0] / exact).std() == pytest.approx(0.1, rel=0.1)
    assert not np.array_equal(draws[0], draws[1])
    assert np.array_equal(draws[0], next(second)[1].times)


def test_a_collection_is_written_continued_and_finished_as_of_a_machine(tmp_path):
    summary = collect(tmp_path, **{**SMALL, "compute": 25})
    assert not summary.failed
    more = collect(tmp_path, **SMALL)
    assert more.measured["compute"] < 25
    samples = read_compute(tmp_path)
    assert set(samples.labels.role.tolist()) == {"oracle", "test"}
    assert (samples.ms > 0).all()
    assert len(read_comm(tmp_path)) > 0
    assert finish(tmp_path).counts == more.counts
    with pytest.raises(InputError, match="noise"):
        collect(tmp_path, noise=0.1, **SMALL)


def test_without_noise_a_repeat_says_the_same(tmp_path):
    summary = collect(tmp_path, **{**SMALL, "comm": 0}, repeat_share=0.5)
    assert summary.noise["compute"].mape == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "modelled:h1000"], "unknown device 'modelled:h1000': did you mean modelled:h100"),
        (["--noise", "0.1"], "of a device such as 'modelled:h100'"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, capsys):
    assert main(["collect", "--out", str(tmp_path / "out"), *arguments]) == 2
    assert message in capsys.readouterr().err
