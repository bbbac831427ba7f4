"""`tools/trace_run.py`: the files and functions that a task goes through."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.repository
ROOT = Path(__file__).parents[2]


@pytest.fixture
def trace_run(monkeypatch):
    """The tool as a module."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("trace_run")


@pytest.mark.slow
def test_the_way_of_a_task_is_counted_and_listed():
    command = [sys.executable, str(ROOT / "tools" / "trace_run.py"), "-v"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    first, *listed, modules = done.stdout.splitlines()
    counts = re.fullmatch(r"(\d+) files, (\d+) functions, (\d+) changes of file, (\d+) modules imported", first)
    files, functions, changes, imported = map(int, counts.groups())
    assert len(listed) == files < functions
    assert files - 1 <= changes < functions
    assert modules.count(",") + 1 == imported >= files
    paths = [line.split(":")[0].strip() for line in listed]
    assert all((ROOT / path).is_file() for path in paths)
    assert "shardgym/plan.py" in paths
    assert any("DimGreedy" in line for line in listed if "baselines/" in line)


def test_an_unknown_solver_is_one_line(trace_run, capsys):
    assert trace_run.main(["--solver", "dim_gready"]) == 2
    printed = capsys.readouterr()
    assert "did you mean" in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_functions_count_once_and_lambdas_do_not(trace_run):
    from shardgym.errors import InputError, error_text

    with trace_run.CallTrace() as found:
        for _ in range(3):
            error_text(InputError("no"))
        sorted([2, 1], key=lambda x: x)
    assert found.functions == [("shardgym/errors.py", "error_text")]
