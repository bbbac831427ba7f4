"""The overall table: scores by hand, who has one, and what is said where boards are not there."""

import json
import math

import numpy as np
import pytest
from board_toys import board_of, record, write

import shardgym
from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.leaderboard import BASE, load_boards, rank
from shardgym.leaderboard.overall import ALL_SUITES, GPU_SUITES, SCORES, overall, render_overall
from shardgym.leaderboard.statistics import mean_interval
from shardgym.tasks.suites import suite_names

ONES = [1.0] * 6
#: Of six tasks each: geometric means 2 and 0.25 of "mine", which score 0.5 ** 0.5; 1 and 4 of "other", which score 2.
OUTCOMES = {
    "dlrm4-v2": {BASE: ONES, "mine": [1.0, 4.0] * 3, "other": ONES, "some": ONES},
    "tight4-v2": {BASE: [2.0] * 6, "mine": [0.5] * 6, "other": [8.0] * 6},
}


def boards_of(folder, outcomes, judge="fbgemm", hardware="lab", **fields):
    for suite, table in outcomes.items():
        board_of(folder / f"{suite}-{judge}", table, suite=suite, judge=judge, hardware=hardware, **fields)


def row_of(folder, solver):
    return next(row for row in overall(folder).rows if row.solver == solver)


def test_a_score_is_the_geometric_mean_over_suites_of_geometric_means_over_tasks(tmp_path):
    boards_of(tmp_path, OUTCOMES)
    scores = {row.solver: {c: s.mean for c, s in row.scores.items()} for row in overall(tmp_path).rows}
    assert list(scores) == ["mine", BASE, "other", "some"]
    assert scores["mine"] == pytest.approx({"measured": 0.5**0.5, "half-full": 2.0, "tight": 0.25})
    assert scores["other"] == pytest.approx({"measured": 2.0, "half-full": 1.0, "tight": 4.0})


def test_suites_weigh_alike_however_many_tasks_they_have(tmp_path):
    outcomes = {"dlrm4-v2": {BASE: ONES * 5, "mine": [2.0] * 30}, "tight4-v2": {BASE: ONES, "mine": [8.0] * 6}}
    boards_of(tmp_path, outcomes)
    assert row_of(tmp_path, "mine").scores["measured"].mean == pytest.approx(4.0)


def test_a_solver_that_lacks_a_suite_or_a_record_has_no_score_over_them(tmp_path):
    few = {**OUTCOMES, "tight4-v2": {**OUTCOMES["tight4-v2"], "other": [8.0] * 5 + [None]}}
    boards_of(tmp_path, few)
    assert set(row_of(tmp_path, "some").scores) == {"half-full"}
    assert set(row_of(tmp_path, "other").scores) == {"half-full"}
    text = render_overall(overall(tmp_path), "md", all_rows=False)
    assert ("mine" in text, "other" in text) == (True, False)
    assert "| some " in render_overall(overall(tmp_path), "md")


def test_a_failure_counts_as_the_plan_of_the_base_and_is_counted(tmp_path):
    boards_of(tmp_path, {"dlrm4-v2": {BASE: [4.0] * 6, "mine": ["infeasible", *ONES[1:]], "never": ["error"] * 6}})
    row = row_of(tmp_path, "mine")
    assert row.scores["measured"].mean == pytest.approx(0.25 ** (5 / 6))
    assert (row.failed, row.records, row.median_s) == (1, 6, 0.5)
    assert "never" not in {row.solver for row in overall(tmp_path).rows}


def test_intervals_are_the_same_every_time_and_those_of_the_board_for_one_suite(tmp_path):
    costs = np.random.default_rng(1).lognormal(size=(2, 9))
    boards_of(tmp_path, {s: {BASE: [1.0] * 9, "mine": c.tolist()} for s, c in zip(OUTCOMES, costs, strict=True)})
    first, again = (row_of(tmp_path, "mine").scores for _ in range(2))
    assert first == again
    assert first["measured"].interval.contains(first["measured"].mean)
    assert first["measured"].interval != first["tight"].interval
    assert first["tight"].interval == pytest.approx(np.exp(mean_interval(np.log(costs[1]))))
    assert row_of(tmp_path, BASE).scores["measured"].interval is None


def test_models_have_columns_of_their_own(tmp_path):
    boards_of(tmp_path, OUTCOMES)
    boards_of(tmp_path, {"dlrm4-v2": {BASE: ONES, "mine": [3.0] * 6, "dreamer": ["error", *ONES[1:]]}}, "simulator")
    boards_of(tmp_path, {"dlrm8-gpu-v1": {BASE: ONES, "mine": [5.0] * 6}}, "gpu", "gpu-modelled")
    found = {column: score.mean for column, score in row_of(tmp_path, "mine").scores.items()}
    by_hand = {"measured": 0.5**0.5, "half-full": 2, "tight": 0.25, "simulated": 3, "GPU-modelled": 5}
    assert found == pytest.approx(by_hand)
    assert set(row_of(tmp_path, "dreamer").scores) == {"simulated"}
    assert math.isnan(row_of(tmp_path, "dreamer").median_s)
    assert [(row_of(tmp_path, s).failed, row_of(tmp_path, s).records) for s in ("mine", "dreamer")] == [(0, 12), (1, 6)]
    text = render_overall(overall(tmp_path))
    assert "1 of 6" in next(line for line in text.splitlines() if line.startswith("dreamer "))
    assert text.splitlines()[-4:] == [
        "Measured by fbgemm 1 on lab: 12 tasks (half-full: dlrm4-v2; tight: tight4-v2).",
        "Failed: records without a cost, of simulated boards if a solver has no measured one; boards score them as "
        "lpt's plan.",
        "Simulated: the same suites, not measured.",
        "GPU-modelled: dlrm8-gpu-v1, not measured.",
    ]


def test_plans_near_a_lower_bound_are_proven(tmp_path):
    """Costs of 1 and 2 over a bound of 0.96: four of six plans are within 5 %, a failure is not."""
    boards_of(tmp_path, OUTCOMES)
    table = {BASE: ONES, "mine": [1.0, 1.0, 1.0, 1.0, 2.0, "error"], "some": [1.0, 2.0, *[None] * 4]}
    boards_of(tmp_path, {"production-v1": table}, "gpu", "gpu-modelled")
    folder = tmp_path / "production-v1-gpu"
    bounds = {"judge": "gpu", "judge_version": "1", "bounds_ms": {}}
    bounds["bounds_ms"] = {result.task_hash: 0.96 for result in load_boards([folder])[0].results}
    (folder / "bounds.json").write_text(json.dumps(bounds))
    assert row_of(tmp_path, "mine").proven == pytest.approx(4 / 6)
    assert row_of(tmp_path, "some").proven == 0.5  # of its plans
    assert math.isnan(row_of(tmp_path, "other").proven)
    assert "Proven: plans at most 5 % above a lower bound, on the 6 tasks with a known bound (production-v1)." in (
        render_overall(overall(tmp_path))
    )
    (ranking,) = map(rank, load_boards([folder]))
    assert ranking.rows[0].over_bound == pytest.approx(1 / 0.96)
    (folder / "bounds.json").write_text(json.dumps(bounds | {"judge_version": "0"}))
    with pytest.raises(InputError, match="is for gpu 0, but the board for gpu 1: run "):
        overall(tmp_path)


def test_boards_of_other_machines_lie_below_and_do_not_count(tmp_path):
    boards_of(tmp_path, OUTCOMES)
    before = overall(tmp_path).rows
    below = tmp_path / "dlrm4-v2-fbgemm" / "other"
    write(below, [record("mine", n, 9.0, suite="dlrm4-v2", judge="fbgemm", hardware="other") for n in range(6)])
    assert overall(tmp_path).rows == before
    boards_of(tmp_path, {"wide8-v2": OUTCOMES["dlrm4-v2"]}, hardware="other")
    with pytest.raises(InputError, match="expected boards such as dlrm4-v2-fbgemm of one machine, found lab and other"):
        overall(tmp_path)


def test_without_boards_one_line_says_what_is_expected(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(shardgym, "__file__", str(tmp_path / "shardgym" / "__init__.py"))
    assert main(["leaderboard"]) == 2
    assert capsys.readouterr().err == (
        f"shardgym: error: {tmp_path}/leaderboards does not exist: expected the boards of the repository; install "
        "shardgym from a clone with 'pip install -e .', or name folders of runs\n"
    )
    (tmp_path / "leaderboards").mkdir()
    assert main(["leaderboard"]) == 2
    assert "expected boards such as dlrm4-v2-fbgemm of one machine, found none" in capsys.readouterr().err


def test_the_command_prints_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaderboards").mkdir()
    boards_of(tmp_path / "leaderboards", OUTCOMES)
    monkeypatch.setattr(shardgym, "__file__", str(tmp_path / "shardgym" / "__init__.py"))
    assert main(["leaderboard"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["solver", *SCORES, "failed", "proven", "time/plan"]
    assert lines[2].startswith("mine ")
    assert main(["leaderboard", "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["suites"]["measured"] == ["dlrm4-v2", "tight4-v2"]
    assert page["rows"][0]["scores"]["half-full"]["mean"] == pytest.approx(2.0)
    assert page["rows"][0]["proven"] is None
    assert main(["leaderboard", "--format", "html"]) == 2
    assert "needs folders of boards" in capsys.readouterr().err


def test_suites_of_scores_are_suites():
    assert {*ALL_SUITES, *GPU_SUITES} <= set(suite_names())
