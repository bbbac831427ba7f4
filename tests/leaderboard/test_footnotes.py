"""What stands under a table: own measure, seeds, settings of solvers, and how far a simulated judge can be trusted."""

from __future__ import annotations

import dataclasses
import json

import pytest
from evaluation_toys import CountCost, DriftingCost, Halves, ToySuite, toy_tasks
from test_ranking import board_of, record, rows_of

from shardgym import PlanCost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator.model_card import AGREEMENT, Agreement, BoardAgreement, ModelAgreement, shipped_agreement
from shardgym.errors import InputError
from shardgym.evaluation import evaluate
from shardgym.evaluation.result import Result
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.notes import cautions, footer
from shardgym.leaderboard.notes import notes as notes_on

ONE, TWO = "evaluation_toys:Halves", "evaluation_toys:Lopsided"

# Judge and oracle

SAME = "Judge and oracle are the same model: solvers that query it are compared in a circle."


def run_with(out, solver, **costs):
    evaluate(ToySuite(toy_tasks()), [solver], out=out, **costs)


def own_measure_notes(folder):
    (board,) = load_boards([folder])
    return [note for note in notes_on(rank(board)) if "Judge and oracle" in note]


def test_the_same_analytic_model_is_told(tmp_path):
    run_with(tmp_path, ONE, judge="roofline", oracle="roofline")
    assert own_measure_notes(tmp_path) == [SAME]


@pytest.mark.parametrize(
    "costs",
    [
        {"judge": "roofline", "oracle": CountCost()},
        {"judge": "roofline", "oracle": "roofline", "oracle_settings": {"hardware": "a100"}},
        {"judge": CountCost(), "oracle": CountCost("other")},
        {"judge": DriftingCost(), "oracle": DriftingCost()},
        {"judge": "simulator", "judge_settings": {"role": "judge"}, "oracle": "simulator"},
    ],
    ids=["other model", "other settings", "settings of objects", "measured", "simulators"],
)
def test_other_models_settings_and_measurements_are_not(tmp_path, costs):
    run_with(tmp_path, ONE, **costs)
    assert own_measure_notes(tmp_path) == []


def test_solvers_are_named_where_others_had_another_oracle(tmp_path):
    run_with(tmp_path / "a", ONE, judge="roofline", oracle="roofline")
    run_with(tmp_path / "b", TWO, judge="roofline", oracle=CountCost())
    assert own_measure_notes(tmp_path) == [SAME.replace("oracle are", f"oracle of {ONE} are")]


def test_nothing_was_marked_where_nothing_has_a_cost(tmp_path):
    run_with(tmp_path, "evaluation_toys:GivesUp", judge="roofline", oracle="roofline")
    assert own_measure_notes(tmp_path) == []


def test_without_run_json_the_settings_of_the_oracle_are_not_known(tmp_path):
    board_of(tmp_path, {"one": [1.0]}, oracle="lab-cost")
    (note,) = own_measure_notes(tmp_path)
    assert "have the same name, and no run.json tells the oracle's settings: if they are the judge's, solvers" in note


# Seeds


def run_seeds(out, *solvers, seeds):
    evaluate(ToySuite(toy_tasks()), list(solvers), out=out, judge=CountCost(), oracle="roofline", seeds=seeds)


def ranked(*folders):
    (board,) = load_boards(folders)
    return rank(board)


def about_seeds(ranking):
    return [note for note in notes_on(ranking) if "seed" in note and not note.startswith("Settings of the judge")]


@pytest.mark.parametrize(
    ("seeds", "note"),
    [
        ((0,), "Every solver ran with seed 0."),
        ((3,), "Every solver ran with seed 3."),
        ((0, 2), "Every solver ran with seeds 0, 2; a task's cost is the geometric mean over them."),
    ],
)
def test_seeds_that_all_have_are_named(tmp_path, seeds, note):
    run_seeds(tmp_path, ONE, TWO, seeds=seeds)
    ranking = ranked(tmp_path)
    assert about_seeds(ranking) == [note]
    assert {row.completeness for row in ranking.rows} == {1.0}


def test_a_solver_with_another_seed_in_the_same_folder_leaves_all_incomplete(tmp_path):
    """run.json asks every solver for both seeds, as tables do."""
    run_seeds(tmp_path, ONE, seeds=[0])
    run_seeds(tmp_path, TWO, seeds=[1])
    ranking = ranked(tmp_path)
    assert {(row.ranks, row.completeness) for row in ranking.rows} == {(None, 0.5)}
    assert about_seeds(ranking) == [
        f"WARNING: solvers ran with different seeds: seed 0 for {ONE}; seed 1 for {TWO}.",
        f"Asked for and without any record: seed 1 for {ONE}; seed 0 for {TWO}.",
    ]
    run_seeds(tmp_path, ONE, TWO, seeds=[0, 1])
    assert [row.completeness for row in ranked(tmp_path).rows] == [1.0, 1.0]


def test_a_solver_without_any_record_lacks_its_seeds(tmp_path):
    run_seeds(tmp_path, ONE, seeds=[0, 1])
    info = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(info | {"solvers": [*info["solvers"], "later"]}))
    assert about_seeds(ranked(tmp_path)) == [
        "Every solver ran with seeds 0, 1; a task's cost is the geometric mean over them."
    ]
    assert rows_of(ranked(tmp_path))["later"].completeness == 0.0


def test_a_seed_that_is_missing_on_one_task_counts(tmp_path):
    """Three tasks and two seeds: five of six records."""
    run_seeds(tmp_path, ONE, seeds=[0, 1])
    path = tmp_path / "records.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    (row,) = ranked(tmp_path).rows
    assert (row.ranks, row.completeness) == (None, pytest.approx(5 / 6))


def test_folders_of_different_seeds_are_complete_and_warned_of(tmp_path):
    run_seeds(tmp_path / "a", ONE, seeds=[0])
    run_seeds(tmp_path / "b", TWO, seeds=[1, 2])
    ranking = ranked(tmp_path)
    assert [row.completeness for row in ranking.rows] == [1.0, 1.0]
    assert about_seeds(ranking) == [
        f"WARNING: solvers ran with different seeds: seed 0 for {ONE}; seeds 1, 2 for {TWO}. "
        "A task's cost is the geometric mean over a solver's own seeds."
    ]


def test_more_of_the_first_seeds_are_no_reason_for_a_warning(tmp_path):
    run_seeds(tmp_path / "a", ONE, seeds=[0])
    run_seeds(tmp_path / "b", TWO, seeds=[0, 1, 2])
    assert about_seeds(ranked(tmp_path)) == [
        f"Solvers ran with different seeds: seed 0 for {ONE}; seeds 0, 1, 2 for {TWO}. "
        "A task's cost is the geometric mean over a solver's own seeds."
    ]


def test_records_alone_ask_for_the_seeds_that_they_hold(tmp_path):
    rows = [record("a", task, 1.0, seed) for task, seed in ((0, 0), (0, 1), (1, 0))] + [record("b", 0, 1.0)]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    rows = rows_of(ranked(tmp_path))
    assert (rows["a"].completeness, rows["b"].completeness) == (0.75, 0.5)


def test_the_time_limit_is_overrun_once_or_several_times(tmp_path):
    board = board_of(tmp_path, {"slow": [1.0], "slower": [1.0, 1.0]}, time_limit_s=1.0, solve_time_s=5.0)
    notes = notes_on(rank(board))
    assert "slow overran the time limit once." in notes
    assert "slower overran the time limit 2 times." in notes


# Settings of solvers


def test_settings_are_named_and_defaults_are_not(tmp_path):
    board = board_of(tmp_path, {"mine": [1.0, 3.0]}, solver_settings={"beam_width": 1, "levels": 2})
    assert "Settings of mine: beam_width=1, levels=2." in notes_on(rank(board))
    assert not any("Settings of mine" in note for note in notes_on(rank(board_of(tmp_path, {"mine": [1.0, 3.0]}))))


def test_a_solver_that_comes_with_shardgym_and_ran_with_settings_stands_below_the_table(tmp_path):
    """Else a rival could be weakened under its own name."""
    note = "Non-default settings: neuroshard with beam_width=1."
    board = board_of(tmp_path, {"neuroshard": [1.0, 3.0]}, solver_settings={"beam_width": 1})
    assert note in cautions(board)
    assert note in footer(rank(board))[2]
    assert "Non-default settings" not in footer(rank(board_of(tmp_path, {"neuroshard": [1.0, 3.0]})))[2]
    labelled = board_of(tmp_path, {"narrow": [1.0]}, solver_settings={"beam_width": 1}, made_from="neuroshard")
    assert cautions(labelled) == []


def test_records_of_one_solver_with_different_settings_are_a_warning(tmp_path):
    rows = [record("mine", 0, 1.0), record("mine", 1, 1.0, solver_settings={"beam_width": 1})]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (board,) = load_boards([tmp_path])
    assert "WARNING: records of mine were made with different settings: none; beam_width=1." in notes_on(rank(board))


# Measured judges


# Simulated judges

TASKS = toy_tasks(3)
FOUND = Agreement(
    "dlrm4-v1", 12, 16, "2026-01-01T00:00:00+00:00", "lab", ModelAgreement(0.9, 0.05),
    {"oracle": ModelAgreement(0.89, 0.06, version="1-a"), "judge": ModelAgreement(0.87, 0.07, version="1-b")},
)  # fmt: skip


def notes_of(folder, outcomes, judge="simulator"):
    """Footnotes of {solver: notes of the judge per task}."""
    lines = []
    for solver, column in outcomes.items():
        for index, notes in enumerate(column):
            cost = PlanCost([[0, 1, 0, 0, 0]] * 2, judge, "1-b", "lab", "predicted", "predicted", notes=notes)
            lines.append(Result(
                suite="toys", task_index=index, task_hash=TASKS[index].digest, solver=solver, seed=0, judge=judge,
                oracle="simulator", hardware="lab", status="ok", solve_time_s=0.5, started="2026-01-01T00:00:00+00:00",
                plan=Halves().solve(TASKS[index], None), cost=cost,
            ).to_json())  # fmt: skip
    (folder / "records.jsonl").write_text("".join(line + "\n" for line in lines))
    (board,) = load_boards([folder])
    return notes_on(rank(board))


def test_unfamiliar_plans_are_counted_by_solver_with_the_features(tmp_path):
    far, wide = (f"{UNFAMILIAR}: pooling_factor",), (f"{UNFAMILIAR}: columns per device", "something else")
    notes = notes_of(tmp_path, {"mine": [far, wide, ()], "random": [(), (), ()], "other": [far, (), ()]})
    assert f"Plans {UNFAMILIAR} (columns per device, pooling_factor): mine 2 of 3, other 1 of 3." in notes
    assert "Note of the judge: something else" in notes
    assert not any(note.startswith(f"Note of the judge: {UNFAMILIAR}") for note in notes)


def test_a_board_of_familiar_plans_says_so(tmp_path):
    assert f"No plan was {UNFAMILIAR}." in notes_of(tmp_path, {"mine": [(), (), ()]})


def test_other_judges_get_no_such_notes(tmp_path):
    assert not any(UNFAMILIAR in note or "agrees" in note for note in notes_of(tmp_path, {"mine": [()]}, "fbgemm"))


def test_the_judges_agreement_with_measurements_stands_below(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgym.leaderboard.notes.shipped_agreement", lambda hardware: FOUND)
    (note,) = (n for n in notes_of(tmp_path, {"mine": [()]}) if "Kendall" in n)
    assert note.startswith("Over 16 random and good plans on each of 12 tasks of dlrm4-v1, Kendall's tau of this judge")
    assert "is 0.870 on average; that of a measurement with its own repeat is 0.900" in note


def test_a_judge_that_was_not_compared_is_said_to_be_so(tmp_path, monkeypatch):
    monkeypatch.setattr("shardgym.leaderboard.notes.shipped_agreement", lambda hardware: None)
    assert "How well this judge agrees with measurements is not on record." in notes_of(tmp_path, {"mine": [()]})


def test_agreement_is_read_from_beside_the_weights(tmp_path):
    (tmp_path / "lab").mkdir()
    assert shipped_agreement("lab", tmp_path) is None
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json())
    assert shipped_agreement("lab", tmp_path) == FOUND
    assert FOUND.sentence("1-c") is None
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json()[:100])
    with pytest.raises(InputError, match=AGREEMENT):
        shipped_agreement("lab", tmp_path)


@pytest.mark.parametrize(("right", "begin"), [(0.57, "Screening"), (0.7, "Held against measurements")])
def test_a_judge_that_misorders_close_plans_makes_a_board_screening(tmp_path, monkeypatch, right, begin):
    of_judge = {"judge": BoardAgreement(0.59, right, "1-b"), "oracle": BoardAgreement(0.6, 0.9, "1-a")}
    again = BoardAgreement(0.81, 0.76, "")
    found = dataclasses.replace(
        FOUND, board_tasks=51, board_hardware=("lab",), board_models=of_judge, board_repeat=again
    )
    monkeypatch.setattr("shardgym.leaderboard.notes.shipped_agreement", lambda hardware: found)
    (note,) = (n for n in notes_of(tmp_path, {"mine": [()]}) if "51 measurements of tasks of boards (lab)" in n)
    assert note.startswith(f"{begin}: ")
    assert f"tau of this judge is 0.59, and of pairs that differ by less than 5% it orders {right:.0%}" in note
    assert "as measured; of another measurement, 0.81 and 76%." in note
    assert ("Differences below 5% say nothing" in note) == (begin == "Screening")


# Learned solvers


def test_weights_and_training_time_of_a_learned_solver_stand_below(tmp_path):
    trained = {"weights_digest": "a" * 64, "training_time_s": 90.0}
    notes = notes_on(rank(board_of(tmp_path, {"mine": [1.0, 2.0]}, **trained)))
    assert f"mine is learned, weights {'a' * 12} (trained for 1.5 min); time/plan is without training." in notes


@pytest.mark.parametrize(("index", "seed", "is_warned_of"), [(1, 0, True), (0, 1, False)])
def test_a_solver_with_several_weights_for_one_seed_is_warned_of(tmp_path, index, seed, is_warned_of):
    rows = [record("mine", 0, 1.0, weights_digest="a" * 64)]
    rows.append(record("mine", index, 1.0, seed=seed, weights_digest="b" * 64))
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (board,) = load_boards([tmp_path])
    warning = "WARNING: records of mine with one seed and number of devices were made with different weights."
    assert (warning in notes_on(rank(board))) == is_warned_of


# The lines under a table


def test_a_table_has_three_lines_below_and_the_last_says_where_the_rest_is(tmp_path):
    board = board_of(tmp_path, {"mine": [1.0, 2.0], "other": [1.0, "infeasible"]}, solver_settings={"k": 1})
    assert footer(rank(board)) == [
        "Judge: lab-cost 1 on lab, modelled. Oracle: roofline. Solvers ran with seed 0; "
        "lpt, the base, has no cost here.",
        "Failed: 1 of 4 records, which count nothing: who failed has no rank. Fewer than 6 tasks: no ranks, no "
        "intervals.",
        "Columns, ranks and intervals: docs/boards.md; more notes: shardgym leaderboard --details.",
    ]


def test_what_forbids_comparisons_stands_below_the_table_and_the_rest_does_not(tmp_path):
    rows = [record("mine", 0, 1.0), record("mine", 1, 1.0, solver_settings={"k": 1}), record("other", 0, 1.0, seed=4)]
    (tmp_path / "records.jsonl").write_text("".join(row.to_json() + "\n" for row in rows))
    (board,) = load_boards([tmp_path])
    different, settings = cautions(board)
    assert different.startswith("WARNING: solvers ran with different seeds")
    assert settings.startswith("WARNING: records of mine were made with different settings")
    assert footer(rank(board))[2].startswith(f"{different} {settings} Columns")
    assert notes_on(rank(board))[:2] == [different, settings]
