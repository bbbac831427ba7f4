"""Tables in documents are made from committed records, never typed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from shardgym.evaluation.store import read_results, record_files

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.repository


def test_the_tables_of_the_readme_are_what_the_records_say(tmp_path: Path):
    """Running the tool again changes nothing."""
    text = (ROOT / "README.md").read_text()
    assert "| rank |" in text.replace("   ", " ").replace("  ", " ")
    copy = tmp_path / "README.md"
    copy.write_text(text)
    subprocess.run([sys.executable, ROOT / "tools" / "readme_table.py", copy], check=True)
    assert copy.read_text() == text


def test_committed_records_are_of_released_code_and_of_shipped_tasks():
    """One record per task, solver and seed; tasks are those of the suite; the checkout was not modified."""
    from shardgym import load_suite

    files = record_files([ROOT / "leaderboards"])
    assert files
    for file in files:
        for result in read_results(file):
            assert load_suite(result.suite)[result.task_index].digest == result.task_hash
            assert not result.commit.endswith("+"), f"{file} was made from a modified checkout"
