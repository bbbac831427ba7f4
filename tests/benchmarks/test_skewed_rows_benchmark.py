"""Loads of ranks against replayed streams: the benchmark's own plans, fewer of them, and what it has stored."""

import csv
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository


@pytest.fixture
def skewed_rows(script):
    return script("skewed_rows")


@pytest.mark.parametrize("number", range(3))
def test_loads_of_ranks_are_within_a_tenth_of_replayed_streams(skewed_rows, number):
    row = skewed_rows.compared(number, 4)
    assert row.lookups <= 0.1
    assert row.distinct_rows <= 0.1


def test_stored_plans_are_within_a_tenth(skewed_rows):
    with Path(skewed_rows.__file__).with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 50
    assert list(rows[0]) == list(skewed_rows.Row._fields)
    assert max(float(row[error]) for row in rows for error in ("lookups", "distinct_rows")) <= 0.1
