"""Scripts beside the package answer a user's mistake with one line and exit code 2, as the command line does."""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardgym.errors import InputError

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.repository


def refusal(script, *arguments):
    """Run a script without any GPU and return its one line on standard error."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


@pytest.mark.measured
def test_a_gpu_that_is_not_there_is_named():
    refused = refusal("benchmarks/fusion.py", "--device", "cuda", "--tables", "2", "--sets", "1")
    assert refused.startswith("device 'cuda': ")


@pytest.fixture
def refused_here(monkeypatch, capsys):
    """Returns a function that runs a script in this process, which takes less time, and returns its one line."""

    def refuse(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        monkeypatch.syspath_prepend((ROOT / script).parent)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        printed = capsys.readouterr()
        assert (ended.value.code, printed.out, printed.err.count("\n")) == (2, "", 1), printed.err
        return printed.err

    return refuse


def test_a_folder_without_records_is_named(refused_here, tmp_path):
    refused = refused_here("benchmarks/breakdown.py", str(tmp_path))
    assert refused.startswith(f"cannot read {tmp_path / 'records.jsonl'}: ")


def test_a_folder_without_samples_is_named(refused_here, tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    refused = refused_here("tools/fit_device_constants.py", str(tmp_path), "--start", "h200")
    assert refused.startswith(f"{tmp_path}: no file named compute*.parquet")


def test_records_without_a_task_that_all_have_solved_are_refused(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    solved_by_all = importlib.import_module("benchmarks.breakdown").solved_by_all
    one, two = (SimpleNamespace(status="ok", solver=name, task_index=i) for i, name in enumerate("ab"))
    with pytest.raises(InputError, match="2 records: expected a task that every solver has a cost for"):
        solved_by_all([one, two])
    assert solved_by_all([one]) == [one]
