"""Pages name every solver and preset, and docstrings explain every field of a suite file."""

import dataclasses
import inspect
import re
from pathlib import Path

from shardgym.evaluation.solver import solver_names
from shardgym.records import Record
from shardgym.tasks.suites import spec
from shardgym.tasks.topology import PRESETS

DOCS = Path(__file__).parents[2] / "docs"
CONCEPTS = (DOCS / "concepts.md").read_text()
RECORDS = [
    cls for cls in vars(spec).values() if isinstance(cls, type) and issubclass(cls, Record) and cls is not Record
]


def test_every_registered_solver_has_a_row():
    text = (DOCS / "solvers.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \|[^|]*\| [^|]+ \|$", text, flags=re.MULTILINE)
    assert sorted(rows) == sorted(set(rows))
    assert set(rows) == set(solver_names())


def test_every_field_of_a_suite_file_is_described():
    assert {spec.CostChoice, spec.SuiteSpec, spec.DrawnTasks, spec.DrawnGroup, spec.ListedTasks} <= {*RECORDS}
    for record in RECORDS:
        text = "".join(inspect.getdoc(cls) or "" for cls in record.__mro__ if cls in RECORDS)
        assert [field.name for field in dataclasses.fields(record) if f"\n    {field.name}: " not in text] == []


def test_every_preset_is_named():
    assert {name for name in PRESETS if f"`{name}`" not in CONCEPTS} == set()
