"""Fitting the analytic cost's constants, to times that it made itself and to measured ones."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from shardgym.costs.roofline import device_constants
from shardgym.costs.simulator.samples import with_role
from shardgym.costs.simulator.weights import SHIPPED

pytest.importorskip("pyarrow", reason="needs the extra 'data'")
pytest.importorskip("scipy", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import read_compute

pytestmark = pytest.mark.repository

DATA = SHIPPED / "cpu-amd-epyc-2c"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    return importlib.import_module("fit_device_constants")


@pytest.fixture(scope="module")
def samples():
    every = read_compute(DATA)
    return every.take(np.arange(0, len(every), 12))


@pytest.fixture(scope="module")
def few_samples(samples):
    """Enough where the constants are known, or are not looked at."""
    return samples.take(np.arange(0, len(samples), 6))


def test_times_that_the_cost_itself_made_are_met(script, few_samples):
    truth = dataclasses.replace(
        device_constants("h200"), memory_bandwidth=2e12, update_bandwidth=1e12, forward_ms=0.05, table_ms=0.002
    )
    made = dataclasses.replace(few_samples, ms=script.predicted(truth, few_samples))
    start = device_constants("a100")
    assert script.error(start, made) > 0.1
    assert script.error(script.fit(start, made, {}), made) < 0.02


def test_a_measured_constant_is_kept(script, few_samples):
    fitted = script.fit(device_constants("cpu-core"), few_samples, {"memory_bandwidth": 2.5e10})
    assert fitted.memory_bandwidth == 2.5e10


def test_the_shipped_constants_of_the_cpu_are_fitted_to_the_shipped_data(script, samples):
    shipped, test = device_constants("cpu-core"), with_role(read_compute(DATA), "test")
    again = script.fit(shipped, with_role(samples, "oracle"), {})
    assert script.error(shipped, test) < min(0.15, script.error(again, test) + 0.01)


def test_the_command_prints_constants_and_errors(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fit", str(DATA), "--start", "cpu-core", "--json"])
    monkeypatch.setattr(script, "fit", lambda start, samples, fixed: start)
    script.main()
    printed = json.loads(capsys.readouterr().out)
    assert set(printed["constants"]) == set(script.FITTED)
    assert printed["test measurements"] == 1200
    assert printed["test sets"] == 1078
    assert printed["error before"] == pytest.approx(printed["error after"], abs=0.01)


def test_a_folder_without_samples_is_named(script, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, "argv", ["fit", str(tmp_path), "--start", "h200"])
    assert script.main() == 2
    printed = capsys.readouterr()
    assert printed.err.startswith(f"{tmp_path}: no file named compute*.parquet")
    assert (printed.out, printed.err.count("\n")) == ("", 1)
