"""The example that trains MaskablePPO, as a user runs it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sb3_contrib", reason="needs the extra 'rl'")

SCRIPT = Path(__file__).parents[2] / "examples" / "maskable_ppo.py"

pytestmark = pytest.mark.repository


def run(folder: Path, *arguments: str) -> tuple[str, dict[str, list[float]]]:
    """Run the script; return what it printed and the costs of all plans in ms."""
    out = folder / "costs.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out), *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, json.loads(out.read_text())


@pytest.mark.slow
def test_the_trained_policy_beats_the_base_of_boards(tmp_path):
    """On dlrm4-v2, whose tables it has not seen, where it finds a plan, which it mostly does."""
    printed, costs = run(tmp_path, "--steps", "40960")
    found = np.isfinite(costs["maskable_ppo"])
    assert found.sum() >= 27
    ratios = np.divide(costs["maskable_ppo"], costs["lpt"])[found]
    assert np.exp(np.log(ratios).mean()) < 0.97
    assert "maskable_ppo" in printed
    assert len(costs["maskable_ppo"]) == 30


@pytest.fixture
def script(monkeypatch):
    """The script as a module: a process of its own takes seconds to load PyTorch."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module(SCRIPT.stem)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["ShardGym/TableWise-v0", "ShardGym/ColumnWise-v0"])
def test_the_script_runs_on_both_environments(script, env_id, tmp_path):
    """With one batch of training, which teaches nothing."""
    script.main(["--env", env_id, "--steps", "100", "--out", str(tmp_path / "costs.json")])
    costs = json.loads((tmp_path / "costs.json").read_text())
    assert set(costs) == {"lpt", "lookahead_columns", "maskable_ppo", "best of 16"}
    assert {len(values) for values in costs.values()} == {30}


def test_options_that_contradict_each_other_are_usage_errors(script, capsys):
    """One line at the end, and exit code 2."""
    with pytest.raises(SystemExit) as ended:
        script.main(["--weights", "model"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith("error: --weights is for --cost simulator")
