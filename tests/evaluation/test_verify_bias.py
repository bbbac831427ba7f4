"""A solver whose measured costs are all off in the same direction, each within its tolerance."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from evaluation_toys import DriftingCost, ToySuite, toy_tasks

from shardgym import PlanCost
from shardgym.evaluation import evaluate, verify
from shardgym.evaluation.verify.bias import biased_solvers, consistent_bias, doubted_solvers
from shardgym.evaluation.verify.checked import Checked
from shardgym.evaluation.verify.drift import Remeasured, measured_problems, relative_to_task
from shardgym.evaluation.verify.report import VerifyReport

TOY = "evaluation_toys:"


def row(solver, task, relative, file="a"):
    return Checked(f"{file}:{task + 1}", "", "ok", "", solver, task, relative)


def remeasured(plan, old, new, session="s"):
    def cost(ms):
        return PlanCost([[ms, 0, 0, 0]], "toy", "1", "lab", session=session)

    return Remeasured(plan, cost(old), cost(new))


def test_a_solver_that_is_always_ten_percent_cheaper_is_named():
    flattered = [row("mine", task, 1 / 0.9 * (1 + 0.01 * (-1) ** task)) for task in range(6)]
    honest = [row("rival", task, 1 + 0.02 * (-1) ** task) for task in range(6)]
    assert biased_solvers(flattered + honest) == [
        "mine is consistently 10 % cheaper in the records than now, over 6 tasks of a"
    ]


def test_a_rival_that_was_made_dearer_is_named():
    assert biased_solvers([row("rival", task, 0.8) for task in range(5)]) == [
        "rival is consistently 25 % dearer in the records than now, over 5 tasks of a"
    ]


@pytest.mark.parametrize(
    ("logs", "suspicious"),
    [
        ([0.1] * 5, True),
        ([0.1] * 4, False),  # too few tasks
        ([0.05] * 9, False),  # less than 5 %: log(1 / 0.95) is 0.0513
        ([0.052] * 9, True),
        ([-0.1] * 5, True),
        ([0.3, -0.14] * 4, False),  # a mean of 0.08, and a standard error of 0.08
        ([0.5, -0.22] * 4, True),  # a mean of 0.14: more than 12 %
        ([], False),
    ],
)
def test_both_the_size_and_the_standard_errors_count(logs, suspicious):
    assert (consistent_bias(logs) is not None) == suspicious


def test_a_solver_does_not_hide_behind_scatter_that_it_makes_itself():
    """Flattered by 15 % on half of the tasks: its own standard error is 0.023, that of the others 0.006."""
    logs = [0.14, 0.0] * 5
    assert consistent_bias(logs) is None
    assert consistent_bias(logs, [0.02, 0.02, 0.5]) == pytest.approx(0.07)
    assert consistent_bias(logs, [0.07, 0.02, 0.5]) is None  # on a machine where everything scatters
    half = [row("mine", task, math.exp(1.3 * log)) for task, log in enumerate(logs)]
    honest = [row(name, task, 1 + 0.01 * (-1) ** task) for name in ("a", "b") for task in range(10)]
    (line,) = biased_solvers(half + honest)
    assert line.startswith("mine is consistently 9 % cheaper in the records than now")


def test_no_scatter_excuses_an_eighth():
    assert consistent_bias([0.127] * 6, [3.0]) is None  # log(1 / 0.88) is 0.1278
    assert consistent_bias([0.129] * 6, [3.0]) == pytest.approx(0.129)


@pytest.mark.parametrize(("relative", "biased", "doubted"), [(1.04, 0, 0), (1.07, 0, 1), (0.93, 0, 1), (1.1, 1, 0)])
def test_what_another_machine_could_do_is_doubted_and_not_refused(relative, biased, doubted):
    rows = [row("mine", task, relative) for task in range(5)]
    assert (len(biased_solvers(rows)), len(doubted_solvers(rows))) == (biased, doubted)
    report = VerifyReport(rows)
    assert report.verdict == ("NOT VERIFIED" if biased else "partly verified" if doubted else "verified")
    assert all("flattered, or a machine that differs" in line for line in report.doubted)
    assert report.to_dict()["doubted"] == report.doubted


def test_the_bound_is_four_standard_errors():
    """Of five values, four at 0.1 - x and one at 0.1 + 4 x: the standard error is x."""
    assert consistent_bias([0.1 - 0.024] * 4 + [0.1 + 4 * 0.024]) == pytest.approx(0.1)
    assert consistent_bias([0.1 - 0.026] * 4 + [0.1 + 4 * 0.026]) is None


def test_several_seeds_of_a_task_count_as_one_task():
    assert biased_solvers([row("mine", task, 1.2) for task in range(4) for _ in range(3)]) == []


def test_files_are_judged_apart():
    assert biased_solvers([row("mine", task, 1.2, file) for file in "ab" for task in range(3)]) == []


def test_relative_takes_out_the_common_drift():
    plans = [remeasured("a", 10, 13), remeasured("b", 20, 26), remeasured("c", 9, 13)]
    assert relative_to_task(plans) == pytest.approx([1, 1, 10 / 9])
    assert measured_problems(plans) == [None] * 3


def test_a_session_of_its_own_does_not_hide_a_solver():
    plans = [remeasured("a", 10, 10), remeasured("b", 20, 20), remeasured("c", 9, 10, "mine")]
    assert relative_to_task(plans)[2] == pytest.approx(10 / 9)


def test_times_of_zero_are_not_compared():
    assert relative_to_task([remeasured("a", 0, 1)]) == [None]
    assert relative_to_task([remeasured("a", 1, 0), remeasured("b", 1, 1)]) == pytest.approx([None, 2.0])
    assert relative_to_task([]) == []


def flatter(folder, solver, factor):
    path = folder / "records.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["solver"] == solver:
            line["cost"]["per_device"] = [[factor * ms for ms in device] for device in line["cost"]["per_device"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "verified"), (0.97, "verified"), (0.88, "NOT VERIFIED")])
def test_costs_that_are_all_a_little_lower_are_found(tmp_path, monkeypatch, factor, verdict):
    """Every plan is within its own 20 %; the machine is 1.3 times slower today, with a ripple of 1 %."""
    names = [TOY + name for name in ("Halves", "Lopsided", "Mirrored")]
    suite = ToySuite(toy_tasks(6))
    evaluate(suite, names, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    score = DriftingCost.score

    def rippled(self, task, plans):
        costs = score(self, task, plans)
        ripple = [1 + 0.01 * math.sin(task.batch_size + 2 * number) for number in range(len(plans))]
        return [dataclasses.replace(c, per_device=c.per_device * r) for c, r in zip(costs, ripple, strict=True)]

    monkeypatch.setattr(DriftingCost, "factor", 1.3)
    monkeypatch.setattr(DriftingCost, "score", rippled)
    flatter(tmp_path, names[1], factor)
    report = verify(tmp_path, trust=[DriftingCost.name])
    assert [row.status for row in report.rows] == ["ok"] * 18
    assert (report.verdict, report.ok) == (verdict, verdict == "verified")
    if not report.ok:
        assert report.footer().splitlines()[1].startswith(f"{names[1]} is consistently 1")
        assert report.to_dict()["biased"] == report.biased
