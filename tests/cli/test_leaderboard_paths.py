"""leaderboard without a path, after runs into several folders."""

from __future__ import annotations

import pytest

from shardgym.cli import main

ROOFLINE = ["--cost", "roofline", "--oracle", "roofline", "--limit", "1"]


@pytest.fixture(autouse=True)
def results(tmp_path, monkeypatch, capsys):
    """One solver twice on tiny-v1, with two oracles, once on quick-v1, each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    for out, suite, oracle in (
        ("tiny", "tiny-v1", "roofline"), ("again", "tiny-v1", "torchrec_rating"), ("quick", "quick-v1", "roofline"),
    ):  # fmt: skip
        run = ["run", "--suite", suite, *ROOFLINE, "--oracle", oracle, "--solver", "size_greedy"]
        assert main([*run, "--out", f"results/{out}"]) == 0
    capsys.readouterr()


def titles(capsys, *options):
    assert main(["leaderboard", *options, "--format", "md"]) == 0
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("##")]


def test_all_of_results_is_shown_and_doubles_have_a_table_each(capsys):
    assert titles(capsys) == [
        "## tiny-v1: 1 of 12 tasks, judged by roofline, results/again",
        "## tiny-v1: 1 of 12 tasks, judged by roofline, results/tiny",
        "## quick-v1: 1 of 10 tasks, judged by roofline",
    ]


def test_one_suite_is_not_kept_from_its_table_by_another(capsys):
    assert titles(capsys, "--suite", "quick-v1") == ["## quick-v1: 1 of 10 tasks, judged by roofline"]


def test_a_run_whose_judge_solvers_could_query_says_so(capsys):
    assert main(["leaderboard", "--suite", "quick-v1"]) == 0
    assert "Judge and oracle are the same model" in capsys.readouterr().out
