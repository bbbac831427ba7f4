"""The page on suites describes every field of a suite file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from shardgym.records import Record
from shardgym.tasks.suites import spec
from shardgym.tasks.topology import PRESETS

PAGE = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
RECORDS = [
    cls for cls in vars(spec).values() if isinstance(cls, type) and issubclass(cls, Record) and cls is not Record
]

pytestmark = pytest.mark.repository


def test_all_records_of_a_suite_file_are_looked_at():
    known = {spec.CostChoice, spec.Track, spec.SuiteSpec, spec.DrawnTasks, spec.DrawnGroup, spec.ListedTasks}
    assert known <= {*RECORDS}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_described(record):
    names = {field.name for field in dataclasses.fields(record)}
    assert {name for name in names if f"`{name}`" not in PAGE and f"{name}: " not in PAGE} == set()


def test_every_preset_is_named():
    assert {name for name in PRESETS if f"`{name}`" not in PAGE} == set()
