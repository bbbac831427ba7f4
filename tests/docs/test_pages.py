"""Pages name every solver and preset, what is generated in them is up to date, and suites' fields are described."""

import dataclasses
import functools
import inspect
import json
import re
from pathlib import Path

import pytest

from shardgym import InputError, load_suite
from shardgym.evaluation.result import PACKED_RECORDS, record_files
from shardgym.evaluation.solver import solver_names
from shardgym.files import read_lines
from shardgym.records import Record
from shardgym.tasks.suites import spec
from shardgym.tasks.topology import PRESETS

ROOT = Path(__file__).parents[2]
#: `tox -e leaderboards` makes all pages again.
DOCS = ROOT / "docs"
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


def test_what_a_command_prints_is_shown_below_it(script, tmp_path):
    tool = script("fill_pages")
    page = "<!-- run: shardgym list costs --json -->\n<!-- end -->\n"
    filled = tool.filled(page, tmp_path / "page.md")
    assert "\n```text\n$ shardgym list costs --json\n[\n" in filled
    assert tool.filled(filled, tmp_path / "page.md") == filled
    with pytest.raises(InputError, match="'shardgym solve nothing' ends with 2: shardgym: error: Missing option"):
        tool.printed("shardgym solve nothing")


def test_committed_records_are_of_committed_code_and_of_shipped_tasks():
    """Tasks are those of the suite; the checkout was not modified. Of every seventh record, to be quick."""
    digest_of = functools.cache(lambda suite, index: load_once(suite)[index].digest)
    load_once = functools.cache(load_suite)
    for file in record_files([ROOT / "leaderboards"]):
        assert file.name == PACKED_RECORDS, f"{file}: 'python tools/fill_pages.py' packs it"
        for result in (json.loads(line.text) for line in read_lines(file)[::7]):
            assert digest_of(result["suite"], result["task_index"]) == result["task_hash"]
            assert result["commit"]
            assert not result["commit"].endswith("+"), f"{file} was made from a modified checkout"
