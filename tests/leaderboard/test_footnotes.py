"""What stands under a table: judge, oracle, seeds, failures, and what readers must be careful of."""

import dataclasses

import pytest
from board_toys import TASKS, board_of, record, write

from shardgym.costs.simulator.model_card import AGREEMENT, REPEAT, Agreement, ModelAgreement, shipped_agreement
from shardgym.errors import InputError
from shardgym.leaderboard import load_boards, rank
from shardgym.leaderboard.tables import cautions, footer

SAME = "Judge and oracle are the same model, which favours solvers that query it."
PICKED = "WARNING: solvers ran with different seeds: seed 0 for one; seeds 1, 2 for two."
WEIGHTS = "WARNING: records of one with one seed and number of devices were made with different weights."
SESSIONS = "WARNING: plans of one task were measured in different sessions, which may differ by drift."
PROCESSORS = "Solvers ran on different processors (arm, x86), so times per plan are not comparable."
VERSIONS = "Records of one come from several versions of the source file."
MODELLED = "Exchanges were modelled, not measured."


def test_a_table_has_three_lines_below(tmp_path):
    outcomes = {"mine": [1.0, 2.0], "other": [1.0, "infeasible"]}
    assert footer(rank(board_of(tmp_path, outcomes, time_limit_s=0.4))) == [
        "Judge: lab-cost 1 on lab, modelled. Oracle: roofline. Time limit per plan: 0.4 s, exceeded by over 10 % in 4 "
        "of 4 records (mine 2, other 2). Solvers ran with seed 0; lpt, the base, has no cost here.",
        "Failed: 1 of 4 records, not counted: solvers that failed have no rank. Fewer than 6 tasks: no ranks, no "
        "intervals.",
        "Columns, ranks and intervals: docs/boards.md.",
    ]


def test_seeds_of_all_solvers_stand_in_the_first_line(tmp_path):
    board = board_of(tmp_path, {"lpt": [[1.0], [1.0]], "one": [[2.0]]})
    assert "Solvers ran with seed 0 or seeds 0, 1; relative to lpt." in footer(rank(board), "here")[0]


@pytest.mark.parametrize(
    ("rows", "run", "expected"),
    [
        ([record("one", 0, 1.0), record("two", 0, 1.0)], {}, []),
        ([record("one", 0, 1.0, judge="roofline")], {}, [SAME]),
        ([record("one", 0, 1.0, judge="roofline")], {"oracle_settings": {"hardware": "a100"}}, []),
        ([record("one", 0, 1.0, judge="roofline", compute="measured", communication="measured")], {}, []),
        ([record("one", 0, 1.0, compute="measured", communication="modelled")], {}, [MODELLED]),
        ([record("one", 0, 1.0), record("two", 0, 1.0, seed=1), record("two", 0, 1.0, seed=2)], {}, [PICKED]),
        ([record("one", 0, 1.0), record("two", 0, 1.0), record("two", 0, 1.0, seed=1)], {}, []),
        ([record("one", 0, 1.0, session="monday"), record("two", 0, 1.0, session="tuesday")], {}, [SESSIONS]),
        ([record("one", 0, 1.0, session="monday"), record("one", 1, 1.0, session="tuesday")], {}, []),
        ([record("one", n, 1.0, weights_digest=d * 64) for n, d in enumerate("ab")], {}, [WEIGHTS]),
        ([record("one", 0, 1.0, seed=n, weights_digest=d * 64) for n, d in enumerate("ab")], {}, []),
        ([record("one", n, 1.0, versions={"processor": p}) for n, p in enumerate(("x86", "arm"))], {}, [PROCESSORS]),
        ([record("one", n, 1.0, source_digest=d * 64) for n, d in enumerate("ab")], {}, [VERSIONS]),
        ([record("neuroshard", 0, 1.0, solver_settings={"k": 1, "l": 2})], {}, ["neuroshard ran with k=1, l=2."]),
        ([record("mine", 0, 1.0, made_from="random")], {}, ["mine is random."]),
        ([record("mine", 0, 1.0, made_from="ppo", solver_settings={"k": 1})], {}, ["mine is ppo with k=1."]),
    ],
)  # fmt: skip
def test_what_forbids_comparisons_and_settings_are_told(tmp_path, rows, run, expected):
    write(tmp_path, rows, **run)
    (board,) = load_boards([tmp_path])
    assert cautions(board) == expected
    assert footer(rank(board))[2].startswith(" ".join([*expected, "Columns"]))


def test_a_board_says_for_which_links_its_exchanges_were_modelled(tmp_path):
    board = board_of(tmp_path, {"one": [1.0]}, compute="measured", communication="modelled")
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / f"{TASKS[0].digest}.json").write_text(TASKS[0].to_json())
    assert cautions(board) == [
        "Compute was measured on lab; exchanges were modelled, not measured, for the links that the suite states: "
        "'ethernet' of cpu-core devices."
    ]


FOUND = Agreement(
    51, ("lab",), "2026-01-01T00:00:00+00:00",
    {REPEAT: ModelAgreement(0.81, 0.76), "oracle": ModelAgreement(0.6, 0.9, "1-a"),
     "judge": ModelAgreement(0.59, 0.57, "1")},
)  # fmt: skip


@pytest.mark.parametrize(("low", "begin"), [(-0.04, "Screening"), (-0.02, "Held against measurements")])
def test_a_judge_that_may_order_plans_worse_than_a_repeat_makes_a_board_screening(tmp_path, monkeypatch, low, begin):
    tau = 0.79
    found = dataclasses.replace(FOUND, models=FOUND.models | {"judge": ModelAgreement(tau, 0.57, "1", low)})
    board = board_of(tmp_path, {"one": [1.0]}, judge="simulator")
    assert cautions(board) == []  # nothing ships for this hardware
    monkeypatch.setattr("shardgym.leaderboard.tables.shipped_agreement", lambda hardware: found)
    (note,) = cautions(board)
    assert note.startswith(f"{begin}: on 51 tasks (lab), Kendall's tau of this judge with measured costs is {tau}, ")
    assert f"that of another measurement 0.81, and at most {-low:.2f} higher by a 95 % interval. Where" in note
    assert "Where plans differ by less than 5%, the judge agrees " in note
    assert "in 57% of pairs, another measurement in 76%." in note
    assert note.endswith("Measured boards lead.") == (begin == "Screening")
    assert cautions(board_of(tmp_path, {"one": [1.0]})) == []  # by a judge that has not learned
    board = board_of(tmp_path, {"one": [1.0]}, judge="simulator", notes=("outside of what it was trained on: x",))
    assert cautions(board) == ["Notes of the judge: outside of what it was trained on: x (1 records)."]


def test_agreement_is_read_from_beside_the_weights(tmp_path):
    (tmp_path / "lab").mkdir()
    assert shipped_agreement("lab", tmp_path) is None
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json())
    assert shipped_agreement("lab", tmp_path) == FOUND
    (tmp_path / "lab" / AGREEMENT).write_text(FOUND.to_json()[:100])
    with pytest.raises(InputError, match=AGREEMENT):
        shipped_agreement("lab", tmp_path)
