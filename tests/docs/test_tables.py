"""What is generated in documents is what the records and the code say."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

import pytest

from shardgym import load_suite
from shardgym.cli.run import DEFAULT_SOLVERS
from shardgym.evaluation.result import Result, read_records, record_files

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FILLED = [page for page in PAGES if "<!-- end -->" in page.read_text()]

pytestmark = pytest.mark.repository


@pytest.mark.parametrize("page", FILLED, ids=lambda page: page.name)
def test_what_is_generated_in_a_page_is_up_to_date(page: Path, monkeypatch):
    """As `python tools/fill_pages.py --check` says."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    assert not importlib.import_module("fill_pages").outdated([page])


def test_the_readme_shows_the_table_that_its_command_makes():
    """All solvers of the main job, measured."""
    text = (ROOT / "README.md").read_text()
    assert "quick-v1: 10 tasks, judged by fbgemm" in text
    for solver in DEFAULT_SOLVERS:
        assert f" {solver} " in text


@functools.cache
def committed_records() -> dict[Path, list[Result]]:
    """Read every committed file of records once."""
    return {file: read_records(file) for file in record_files([ROOT / "leaderboards"])}


def test_committed_records_are_of_committed_code_and_of_shipped_tasks():
    """One record per task, solver and seed; tasks are those of the suite; the checkout was not modified."""
    load_once = functools.cache(load_suite)  # a task is built at its first record and reused for the others
    for file, results in committed_records().items():
        for result in results:
            assert load_once(result.suite)[result.task_index].digest == result.task_hash
            assert result.commit
            assert not result.commit.endswith("+"), f"{file} was made from a modified checkout"
