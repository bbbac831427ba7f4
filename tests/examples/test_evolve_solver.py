"""The search over programs: what it tells a model, what it makes of answers, and what it chooses."""

import math
import sys

import pytest


@pytest.fixture
def evolve(tool):
    yield tool
    for name in [name for name in sys.modules if name.startswith("candidate_")]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not path.endswith("evolved")]


def model(folder, answer):
    """Return a command that keeps what it is asked, and answers the same every time."""
    script = folder / "model.py"
    script.write_text(
        f"import sys\nopen({str(folder / 'prompt.txt')!r}, 'w').write(sys.stdin.read())\nprint({answer!r})\n"
    )
    return f"{sys.executable} {script}"


def test_the_best_candidate_solves_tasks_that_it_was_not_told_of(evolve, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(evolve, "HIDDEN", "tiny-v1")
    monkeypatch.setattr(evolve, "DEVELOPMENT", evolve.DEVELOPMENT.replace("count: 8", "count: 2"))
    candidate = "from neuroshard import NeuroShard as Candidate"
    evolve.main(["--out", str(tmp_path / "evolved"), "--rounds", "1", "--model", model(tmp_path, candidate)])
    first, best = capsys.readouterr().out.splitlines()
    assert first.startswith("candidate 0: ")
    assert "bottleneck: " in first
    assert best.startswith("best: candidate 0")
    assert float(best.split()[-3]) < 1


def test_a_model_is_told_scores_and_what_it_answers_is_run(evolve, tmp_path, capsys):
    answer = "Here it is:\n```Python\nclass Candidate(:\n```"
    with pytest.raises(SystemExit, match="no candidate found plans"):
        evolve.main(["--out", str(tmp_path / "evolved"), "--rounds", "2", "--model", model(tmp_path, answer)])
    assert "SyntaxError" in capsys.readouterr().out
    prompt = (tmp_path / "prompt.txt").read_text()
    assert prompt.startswith(evolve.PROMPT)
    assert f"Candidate 0: {math.inf:.3f}" in prompt
    with pytest.raises(SystemExit, match=r"the model's command cannot be run: .*'no-model'"):
        evolve.main(["--out", str(tmp_path / "evolved"), "--model", "no-model"])
    assert "class Candidate(:" in prompt
