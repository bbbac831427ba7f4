"""The examples of reinforcement learning libraries: what they share, and a short run of each that is installed."""

import json

import pytest
import torch

#: Libraries that scripts need besides torch.
LIBRARIES = {"cleanrl_ppo": (), "maskable_ppo": ("sb3_contrib",)}


@pytest.fixture
def example(script, monkeypatch):
    """Return a function that imports a script by its name; its suite is of small tasks."""
    monkeypatch.setattr(script("columnwise"), "SUITE", "tiny-v1")
    return script


def test_advantages_stop_where_episodes_end(example):
    """By hand: of two environments the second one's episode ends in the first step."""
    rewards = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    going = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    values = torch.tensor([[10.0, 10.0], [20.0, 20.0], [30.0, 30.0]])
    found = example("columnwise").advantages(rewards, going, values, discount=0.5)
    last = 2.0 + 30.0 - 20.0
    assert found.tolist() == [[1.0 + 20.0 + 0.5 * last - 10.0, 1.0 - 10.0], [last, last]]


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_moment_of_training_is_compared_with_lookahead(name, example, tmp_path, capsys, monkeypatch):
    for library in LIBRARIES[name]:
        pytest.importorskip(library, reason="an example's library, which no extra brings")
    script = example(name)
    monkeypatch.setattr(script, "NUM_ENVS", 32)
    script.main(["--seconds", "0.1", "--out", str(tmp_path / "found.json")])
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["steps"] >= 32
    assert found["seconds"] >= 0.1
    assert set(found["over_lookahead"]) == {"1", "16"}
    *_, one, many = capsys.readouterr().out.splitlines()
    for line, over in zip((one, many), found["over_lookahead"].values(), strict=True):
        assert f" {over['ratio']:.3f} of the cost of lookahead_columns, {over['failed']} of " in line
