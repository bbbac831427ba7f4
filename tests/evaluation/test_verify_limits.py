"""What verify does for somebody else's files, and for how long."""

from __future__ import annotations

import dataclasses
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from evaluation_toys import CountCost, DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY, TRUST, edit

from shardgym import make_cost
from shardgym.cli import main
from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.evaluation import evaluate, verify
from shardgym.evaluation.incumbent import Budget
from shardgym.evaluation.verify.check import TASK_LIMITS, TimeIsOver, beyond_limits, interrupted_after

SOLVERS = [TOY + name for name in ("Halves", "Lopsided", "Mirrored")]


class PatientCost(DriftingCost):
    """Measures for as long as records say."""

    name = "test_verify_limits:PatientCost"
    limits = {"rounds": 50}  # noqa: RUF012
    asked: list[int] = []  # noqa: RUF012

    def __init__(self, rounds: int = 7) -> None:
        super().__init__()
        self.asked.append(rounds)
        self._rounds = rounds

    def settings(self):
        return {"rounds": self._rounds}


def measured(folder, judge=PatientCost.name, tasks=None):
    evaluate(ToySuite(tasks or toy_tasks()), SOLVERS, out=folder, judge=judge, oracle="roofline")
    return folder


def ask_for(folder, **settings):
    """Let all records and the run ask for other settings of the judge."""
    for number in range(1, 10):
        edit(folder, number, lambda record: record["judge_settings"].update(settings))
    info = json.loads((folder / "run.json").read_text())
    info["judge_settings"].update(settings)
    (folder / "run.json").write_text(json.dumps(info))


@pytest.mark.parametrize("rounds", [51, 10**400, 1e300])
def test_a_measured_judge_is_not_asked_for_more_than_files_may(tmp_path, rounds):
    ask_for(measured(tmp_path), rounds=rounds)
    PatientCost.asked.clear()
    report = verify(tmp_path, trust=[PatientCost.name])
    assert PatientCost.asked == []
    assert not report.ok
    assert {row.status for row in report.rows} == {"skipped"}
    assert report.rows[0].reason.startswith("its judge has rounds=")
    assert "files may ask for at most 50: --beyond-limits" in report.rows[0].reason
    assert "nothing verified in" in report.footer()


def test_limits_are_lifted_by_a_flag_and_reached_without_one(tmp_path, capsys):
    folder = measured(tmp_path)
    ask_for(folder, rounds=50)
    command = ["verify", "-q", str(folder), "--trust", PatientCost.name]
    assert main(command) == 0
    ask_for(folder, rounds=51)
    assert main(command) == 1
    assert capsys.readouterr().out.count("files may ask for at most 50") == 1
    assert main([*command, "--beyond-limits"]) == 0


def test_what_our_boards_were_measured_with_is_within_the_limits():
    with make_cost("roofline") as cost:
        assert beyond_limits(cost.settings(), cost.limits) is None
    settings = {
        "device": "cpu",
        "workers": 1,
        "rounds": 7,
        "warmups": 2,
        "iterations": 3,
        "timeout_s": 120.0,
        "seed": 0,
    }
    assert beyond_limits(settings, FbgemmCost.limits) is None
    assert set(FbgemmCost.limits) < set(settings)
    for name, limit in FbgemmCost.limits.items():
        assert f"{name}=" in (beyond_limits(settings | {name: 2 * limit}, FbgemmCost.limits) or "")


@pytest.mark.parametrize(("judge", "status"), [(DriftingCost.name, "skipped"), (CountCost.name, "ok")])
def test_a_huge_task_is_not_measured_at_the_word_of_a_file(tmp_path, judge, status):
    """It is scored by a judge that computes."""
    small, large = toy_tasks(2)
    large = dataclasses.replace(large, batch_size=TASK_LIMITS["batch_size"] + 1)
    folder = measured(tmp_path, judge, [small, large])
    rows = verify(folder, trust=TRUST).rows
    assert [row.status for row in rows] == ["ok"] * 3 + [status] * 3
    assert ("its task has batch_size=262145, files may ask" in rows[3].reason) == (status == "skipped")
    assert {row.status for row in verify(folder, trust=TRUST, obey_limits=False).rows} == {"ok"}


def test_a_judge_that_never_ends_is_stopped_when_the_time_is_over(tmp_path, monkeypatch):
    """The last two of three tasks; what was verified before stays, and the verdict names the others."""
    folder = measured(tmp_path, DriftingCost.name)
    score = DriftingCost.score

    def slow(self, task, plans):
        while task.name != "toys/0":
            time.sleep(0.01)
        return score(self, task, plans)

    monkeypatch.setattr(DriftingCost, "score", slow)
    report = verify(folder, trust=TRUST, budget_s=0.3)
    assert [row.status for row in report.rows] == ["ok"] * 3 + ["skipped"] * 6
    assert report.unfinished == [f"stopped after 0.3 s, not scored again: tasks 1-2 of {folder / 'records.jsonl'}"]
    assert not report.ok
    assert report.footer().splitlines()[1] == report.unfinished[0]


@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_the_time_is_for_all_paths_and_for_solving_too(tmp_path, capsys, quiet):
    for name in ("one", "two"):
        assert main(["run", "--suite", "tiny-v1", "--limit", "1", "--cost", "roofline", "--solver", "random",
                     "--out", str(tmp_path / name), "--no-isolate"]) == 0  # fmt: skip
    paths = [str(tmp_path / "one"), str(tmp_path / "two")]
    assert main(["verify", *paths, "--solve", "--minutes", "5", *quiet]) == 0
    capsys.readouterr()
    assert main(["verify", *paths, "--solve", "--minutes", "1e-9", *quiet]) == 1
    out = capsys.readouterr().out
    for name in ("one", "two"):
        assert f"not scored again: task 0 of {tmp_path / name / 'records.jsonl'}" in out
    assert "not solved again: " in out


def test_a_solver_that_is_solving_when_the_time_is_over_is_stopped(tmp_path, monkeypatch):
    folder = measured(tmp_path, CountCost.name)
    with pytest.raises(TimeIsOver), interrupted_after(Budget(0.0)):
        time.sleep(5)
    monkeypatch.setattr("evaluation_toys.Halves.solve", lambda self, task, cost, seed=0: time.sleep(60))
    report = verify(folder, trust=[*TRUST, *SOLVERS], solve=True, budget_s=1.5)
    assert not report.ok
    assert report.unfinished[-1] == "stopped after 1.5 s, not solved again: 9 records"


def test_a_thread_is_not_interrupted_and_ends_between_tasks(tmp_path):
    folder = measured(tmp_path, CountCost.name)
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(verify, folder, trust=[*TRUST, *SOLVERS], budget_s=1e-9).result()
    assert report.unfinished == [f"stopped after 1e-09 s, not scored again: tasks 0-2 of {folder / 'records.jsonl'}"]
