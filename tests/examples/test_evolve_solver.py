"""The search over programs: what it tells a model, what it makes of answers, and what it chooses."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.repository


@pytest.fixture
def evolve(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import evolve_solver

    yield evolve_solver
    for name in [name for name in sys.modules if name.startswith("candidate_")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.endswith("evolved")]


def test_the_script_ends_ahead_of_lpt_on_tasks_that_it_was_not_told_of(evolve, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evolve, "HIDDEN", "quick-v1")
    evolve.main(["--out", str(tmp_path / "evolved")])
    *candidates, best = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in candidates] == ["candidate 0", "candidate 1", "candidate 2"]
    assert "no plan for task 6" in candidates[0]
    assert "held up by" in candidates[2]
    assert best.startswith("best: candidate 2")
    assert float(best.split()[-3]) < 1


def test_a_model_is_told_scores_and_what_it_answers_is_run(evolve, tmp_path, capsys):
    model = tmp_path / "model.py"
    model.write_text(
        "import sys\n"
        "prompt = sys.stdin.read()\n"
        f"open({str(tmp_path / 'prompt.txt')!r}, 'w').write(prompt)\n"
        "print('Here it is:\\n```python\\nclass Candidate(:\\n```')\n"
    )
    with pytest.raises(SystemExit, match="no candidate ran"):
        evolve.main(["--out", str(tmp_path / "evolved"), "--rounds", "2", "--model", f"{sys.executable} {model}"])
    assert "SyntaxError" in capsys.readouterr().out
    prompt = (tmp_path / "prompt.txt").read_text()
    assert prompt.startswith(evolve.PROMPT)
    assert f"Candidate 0: {math.inf:.3f}" in prompt
    assert "class Candidate(:" in prompt
