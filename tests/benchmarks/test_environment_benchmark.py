"""The benchmark of the native environments: its settings are those of training, and its table goes into a page."""

import json
import sys

import numpy as np


def test_it_trains_on_pool_tasks_with_dense_rewards_and_timed_observations(tool, monkeypatch, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- steps -->\n<!-- end -->\nbehind\n")
    made = []
    make_vec = tool.gymnasium.make_vec
    monkeypatch.setattr(tool.gymnasium, "make_vec", lambda *a, **k: (made.append(k), make_vec(*a, **k))[1])
    small = ["--ids", "ColumnWise", "--envs", "4", "--pool-tasks", "6", "--seconds", "0.05", "--costs", "roofline"]
    monkeypatch.setattr(sys, "argv", ["environment.py", *small, "--json", "--page", str(page)])
    tool.main()
    wrapped, native = json.loads(capsys.readouterr().out)
    assert (wrapped["number"], native["number"]) == ("sync 16", "native 4")
    for row in (wrapped, native):
        assert row["steps/CPU s"] > 0
        assert row["ms per new task"] > 0
        assert f"{list(row.values())[-1]:#.3g}" in page.read_text()
    for settings in made:
        chosen = {name: settings[name] for name in ("suite", "pool", "pool_tasks", "reward", "observation")}
        assert chosen == {
            "suite": "dlrm4-v2", "pool": "synthetic-2021", "pool_tasks": 6, "reward": "dense", "observation": "timed"
        }  # fmt: skip


def test_legal_actions_are_drawn_from_masks(tool):
    masks = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [0, 0, 0, 1]], np.int8)
    drawn = np.array([tool.legal_actions(masks, np.random.default_rng(n)) for n in range(50)])
    assert set(drawn[:, 0].tolist()) == {1, 3}
    assert drawn[:, 1:].tolist() == [[0, 3]] * 50
