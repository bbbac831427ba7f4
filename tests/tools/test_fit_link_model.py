"""The fit of the link model finds a known one again; without root it says so and fits nothing."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from shardgym.costs.link_model import LinkModel
from shardgym.costs.links import samples_per_device
from shardgym.tasks.topology import Topology


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    return importlib.import_module("fit_link_model")


def test_a_known_model_is_found_again(tool):
    known = LinkModel(0.4, 0.2, 1.1, 0.5, "toy", 0.0, 1)
    exchanges = []
    for devices in (2, 4):
        for rate in (200, 2000):
            topology = Topology(num_devices=devices, memory_bytes=1, intra_bandwidth=rate * 1e6 / 8, intra_latency_ms=0)
            for widths, _ in tool.cases(devices):
                sent = np.outer(widths, samples_per_device(2048, devices)) * 4
                burst_ms = known.wire_factor * min(
                    tool.BURST_BYTES, (sent.sum(axis=1) - sent.diagonal()).max()
                ) / topology.intra_bandwidth * 1e3  # fmt: skip
                ms = float(known.exit_ms(topology, np.zeros(devices), sent).max()) - burst_ms
                exchanges.append({"devices": devices, "rate_mbit": rate, "widths": widths, "ms": ms})
    found = tool.fit(exchanges)
    assert found.error < 0.02
    assert found.wire_factor == pytest.approx(known.wire_factor, rel=0.1)
    assert found.start_ms == pytest.approx(known.start_ms, rel=0.2)


def test_without_root_it_says_so_and_fits_nothing(tool, monkeypatch, capsys):
    monkeypatch.setattr(tool, "why_not", lambda: "it takes root")
    monkeypatch.setattr(sys, "argv", ["fit_link_model.py"])
    tool.main()
    assert capsys.readouterr().out == "skipped: it takes root\n"
