"""Data of several collections, one of them from a day on which the machine took half as long again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

from shardgym.costs.simulator.sample_files import DataInfo, write_rows
from shardgym.training.data import load_data
from shardgym.training.pace import at_one_pace, paces_of

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
            days["slow"].append(replace(row, **times))
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
