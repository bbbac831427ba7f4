"""Data of several collections, one of them from a day on which the machine took half as long again."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import DataInfo, write_rows
from shardgym.costs.simulator.weights import load_weights, networks_of
from shardgym.errors import InputError
from shardgym.pretraining.data import load_data
from shardgym.pretraining.pace import at_one_pace, paces_of
from shardgym.pretraining.train import FitSettings

FORWARD, BACKWARD = 1.5, 1.2


@pytest.fixture(scope="module")
def two_days(made_up_rows, tmp_path_factory):
    """A folder: most of the compute rows, and the others as the slower day would have measured them."""
    folder = tmp_path_factory.mktemp("two-days")
    info = DataInfo("compute", "made-up", {}, {}, "2026-01-01T00:00:00+00:00")
    days = {"fast": [], "slow": []}
    for row in made_up_rows["compute"]:
        if int(row.content[0], 16) % 3:
            days["fast"].append(row)
        else:
            times = {"forward_ms": FORWARD * row.forward_ms, "backward_ms": BACKWARD * row.backward_ms}
            days["slow"].append(row._replace(**times))
    for name, rows in days.items():
        write_rows(folder / f"compute-{name}.parquet", rows, info)
    return folder


def test_the_pace_of_a_day_is_found_and_divided_by(two_days, data_folder):
    before = load_data(two_days)
    found = paces_of(before)
    after = at_one_pace(before, found)
    assert found["compute-fast.parquet"] == (1.0, 1.0)
    assert found["compute-slow.parquet"] == (pytest.approx(FORWARD, rel=0.03), pytest.approx(BACKWARD, rel=0.03))
    steady = load_data(data_folder).compute
    names = steady.labels.sample_id.tolist()
    order = [names.index(name) for name in before.compute.labels.sample_id.tolist()]
    np.testing.assert_allclose(after.compute.ms, steady.ms[order], rtol=0.03)
    assert paces_of(load_data(data_folder)) == {}


@pytest.mark.repository
def test_errors_are_given_with_and_without_the_pace_of_a_collection(two_days, model, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "benchmarks")
    tool = importlib.import_module("simulator")

    networks = networks_of(load_weights(model / "oracle.safetensors", "oracle"))
    short = FitSettings(epochs=1, least_steps=0, members=1)
    data, models = load_data(two_days), {"version 1": networks}
    rows = tool.errors(data, models, "compute-fast.parquet", short)
    assert [(row["collection"], row["model"]) for row in rows] == [
        ("compute-fast.parquet", "version 1"), ("compute-fast.parquet", "version 2, trained without it"),
        ("compute-slow.parquet", "version 1"),
    ]  # fmt: skip
    fast, alone, slow = rows
    assert fast["samples"] + slow["samples"] == 120
    assert slow["predicted / measured"] < 0.85 * fast["predicted / measured"]
    assert slow["error"] > 2 * fast["error"]
    assert slow["error but for that"] < 1.5 * fast["error but for that"]
    assert alone["error"] > fast["error"]
    assert 0 < slow["repeat"] < 0.1
    with pytest.raises(InputError, match=r"other: expected a collection .* compute-fast\.parquet, compute-slow"):
        tool.errors(data, models, "other", short)
