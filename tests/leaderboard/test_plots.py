"""shardgym plot: files that hold what the table says, equal for equal records."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from test_ranking import board_of

from shardgym import load_suite
from shardgym.cli import main
from shardgym.errors import MissingDependencyError, UnknownNameError
from shardgym.evaluation import evaluate
from shardgym.leaderboard import rank
from shardgym.leaderboard.details import pareto_front
from shardgym.leaderboard.plots import write_plots
from shardgym.leaderboard.ranking import BASE

SOLVERS = ("random", BASE)


def test_the_command_writes_three_plots_that_are_the_same_again(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    monkeypatch.chdir(tmp_path)
    evaluate(load_suite("tiny-v1"), SOLVERS, out="results/a", judge="roofline", oracle="roofline", limit=6)
    assert main(["plot", "results/a"]) == 0
    files = capsys.readouterr().out.split()
    assert files == [f"plots/tiny-v1-roofline-{kind}.svg" for kind in ("profile", "pareto", "groups")]
    first = [(tmp_path / file).read_bytes() for file in files]
    assert all(text.startswith(b"<?xml") for text in first)
    assert main(["plot", "results/a"]) == 0
    assert [(tmp_path / file).read_bytes() for file in files] == first


def test_boards_without_a_base_or_tasks_at_hand_have_no_groups_and_odd_names_make_file_names(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    board = board_of(tmp_path, {"a:B,c=1": [1.0, 2.0], "b (2)": [2.0, "error"]}, suite="../odd name")
    files = write_plots([rank(board)], tmp_path / "plots", "pdf")
    assert [file.name for file in files] == ["odd-name-lab-cost-profile.pdf", "odd-name-lab-cost-pareto.pdf"]
    assert all(file.read_bytes().startswith(b"%PDF") for file in files)
    assert write_plots([rank(board_of(tmp_path, {"a": ["error"]}))], tmp_path / "plots") == []
    with pytest.raises(UnknownNameError, match="unknown format 'gif'"):
        write_plots([rank(board)], tmp_path, "gif")


def test_without_matplotlib_the_error_names_the_extra(tmp_path, monkeypatch):
    ranking = rank(board_of(tmp_path, {"a": [1.0]}))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[data\]"):
        write_plots([ranking], tmp_path)


def test_the_pareto_front_has_what_no_other_solver_dominates():
    """The third is slower and costlier than the second; the fourth and fifth are equal; the last solved nothing."""
    times = np.array([1.0, 2.0, 3.0, 4.0, 4.0, 0.5])
    costs = np.array([5.0, 3.0, 4.0, 1.0, 1.0, np.nan])
    assert pareto_front(times, costs).tolist() == [True, True, False, True, True, False]


def test_boards_of_one_suite_and_judge_have_files_of_their_own(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra 'plot'")
    settings = {"old": {}, "new": {}, "ids": {"judge_settings": {"seed": 1}}}
    hardware = {"old": "old lab", "new": "new lab", "ids": "new lab"}
    rankings = [
        rank(board_of(tmp_path / name, {"a": [1.0, 2.0], BASE: [2.0, 3.0]}, hardware=hardware[name], **settings[name]))
        for name in settings
    ]
    files = write_plots(rankings, tmp_path / "plots")
    assert len({file.name for file in files}) == len(files) == 6
    assert [file.name.removeprefix("toys-lab-cost-").removesuffix("-pareto.svg") for file in files[1::2]] == [
        "old-lab", "new-lab-1", "new-lab-2",
    ]  # fmt: skip
