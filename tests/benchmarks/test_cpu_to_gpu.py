"""The comparison of a core with a modelled GPU, on few tables."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.repository


@pytest.fixture
def comparison(script, monkeypatch):
    module = script("cpu_to_gpu")
    monkeypatch.setattr(module, "SETS", 2)
    monkeypatch.setattr(module, "TABLES", (2, 8))
    monkeypatch.setattr(module, "WIDTHS", (8, 64))
    return module


def test_fusing_saves_more_on_a_gpu_the_smaller_the_batch(comparison):
    core, large, middle, small = comparison.fusion().values()
    assert core[-1] > large[-1] > middle[-1] > small[-1]


def test_half_of_the_columns_takes_more_than_half_of_the_time(comparison):
    assert all(0.5 < ratio <= 1.01 for ratios in comparison.cuts().values() for ratio in ratios)


@pytest.mark.slow
def test_the_page_is_up_to_date(script):
    module = script("cpu_to_gpu")
    made = module.tables(module.fusion(), module.cuts(), module.rankings())
    assert made in (ROOT / "docs" / "cpu-to-gpu.md").read_text()
