"""Measuring while the machine is quiet: when it waits, and which samples count."""

from __future__ import annotations

import json

import collection_toys
import numpy as np
import pytest

import shardgym.training.measuring as measuring
from shardgym.costs.fbgemm.jobs import StepTimes
from shardgym.errors import InputError, MeasurementError
from shardgym.training import collect
from shardgym.training.measuring import REFERENCES, QuietWatch, reference_set
from shardgym.training.settings import Space

SMALL = Space(batch=(256, 256), pooling=(0.1, 4), rows=(1, 1000), shards=(1, 4))


class Machine:
    """References of given times; time passes while it sleeps."""

    def __init__(self, *times):
        self.times = list(times)
        self.slept = 0.0

    def measure(self):
        return self.times.pop(0)

    def sleep(self, seconds):
        self.slept += seconds


def watch_of(folder, machine, tolerance=0.1):
    return QuietWatch(folder, machine.measure, tolerance, machine.sleep)


def test_it_waits_until_the_reference_is_near_the_quiet_level(tmp_path):
    machine = Machine(10.0, 10.5, 20.0, 15.0, 10.4)
    watch = watch_of(tmp_path, machine)
    never = lambda: False  # noqa: E731
    assert watch.wait(never)
    assert watch.wait(never)
    assert machine.slept == 0
    assert watch.wait(never)
    assert (watch.pauses, watch.paused_s, machine.slept) == (1, 20, 20)
    assert "paused 1 times" in watch.notice()


def test_it_gives_up_when_the_time_is_up(tmp_path):
    watch = watch_of(tmp_path, Machine(10.0, 20.0))
    assert watch.wait(lambda: True)
    assert not watch.wait(lambda: True)


def test_the_quiet_level_outlives_a_run(tmp_path):
    assert watch_of(tmp_path, Machine(10.0)).is_quiet()
    assert not watch_of(tmp_path, Machine(12.0)).is_quiet()
    assert [json.loads(line)["ms"] for line in (tmp_path / REFERENCES).read_text().splitlines()] == [10.0, 12.0]


@pytest.fixture
def toys(monkeypatch):
    pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
    monkeypatch.setattr(measuring, "PAUSE_S", 0.0)
    return collection_toys.install(monkeypatch)


def noisy_pool(pool, references):
    """Let the toy pool answer references with these times, then with the last one."""
    answer = pool._answer

    def answered(self, job):
        if job.shard_set != reference_set():
            return answer(self, job)
        ms = references.pop(0) if len(references) > 1 else references[0]
        return job, StepTimes(np.full((job.iterations, 2), ms / 2))

    pool._answer = answered


def test_samples_of_a_noisy_moment_are_thrown_away_and_measured_again(toys, tmp_path):
    pool, _ = toys
    noisy_pool(pool, [10.0, 30.0, 30.0, 10.0])
    summary = collect(tmp_path, preset="judge", compute=12, steps=2, space=SMALL, quiet=0.1, repeat_share=0)
    assert summary.counts == {"compute": {"judge": 12}, "steps": {"judge": 8}}
    assert not summary.missing
    assert any("6 samples of noisy moments" in notice for notice in summary.notices)
    assert pool.answered == 12 + 6


def test_a_reference_that_cannot_be_measured_is_an_error(toys, tmp_path):
    pool, _ = toys
    pool.refuses = frozenset({1})
    with pytest.raises(MeasurementError, match="reference cannot be measured: worker died"):
        collect(tmp_path, preset="judge", compute=4, steps=0, space=SMALL, quiet=0.1)


def test_a_share_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match="quiet=0: expected a share above 0"):
        collect(tmp_path, preset="judge", quiet=0)
