"""verify holds records to the run that they are of, and says what it could not check."""

from __future__ import annotations

import json

import pytest
from evaluation_toys import CountCost, DriftingCost, ToySuite, toy_tasks

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.evaluation import SolverSpec, evaluate, verify

TOY = "evaluation_toys:"
HALVES, LOPSIDED = TOY + "Halves", TOY + "Lopsided"


@pytest.fixture
def toys(tmp_path):
    """Records of two solvers on three toy tasks, judged by CountCost."""
    evaluate(ToySuite(toy_tasks()), [HALVES, LOPSIDED], out=tmp_path, judge=CountCost.name, oracle="roofline")
    return tmp_path


def checked(folder):
    return verify([folder], trust=[CountCost.name, DriftingCost.name])


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def write(folder, lines):
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def edit(folder, number, **fields):
    lines = records(folder)
    lines[number - 1].update(fields)
    write(folder, lines)


FAILED = {"plan": None, "cost": None, "reason": "table 't3' fits nowhere"}


@pytest.mark.parametrize("status", ["infeasible", "error", "unmeasured"])
def test_a_solved_record_that_is_rewritten_as_a_failure_is_not_verified(toys, status):
    """Nothing shows that the solver failed, so the verdict must not say that all is well."""
    edit(toys, 4, status=status, **FAILED)
    report = checked(toys)
    assert report.rows[3].status == "failure"
    assert (report.ok, report.verdict) == (True, "partly verified")
    assert report.footer().splitlines() == [
        "partly verified: 6 records, 5 ok, 0 mismatch, 0 skipped, 0 unreadable, 1 failed (not checked)",
        f"failures, not checked, in {toys / 'records.jsonl'}: {LOPSIDED} on task 1",
    ]
    assert report.to_dict()["counts"]["failure"] == 1


def test_failures_are_partly_verified_with_exit_code_0(toys, capsys):
    edit(toys, 4, status="error", **FAILED)
    assert main(["verify", str(toys), "--trust", CountCost.name]) == 0
    assert "partly verified: 6 records" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"solver": "magic"}, "run.json has no solver 'magic'"),
        ({"seed": 7}, "run.json has no seed 7, only 0"),
        ({"task_index": 3}, "run.json has 3 tasks, the record is about task 3"),
        ({"oracle": "simulator"}, "of oracle 'simulator', this run has 'roofline'"),
        ({"judge": "roofline"}, "of judge 'roofline', this run has 'evaluation_toys:CountCost'"),
        ({"judge_settings": {"tag": "toy"}}, "of judge_settings"),
        ({"time_limit_s": 9.0}, "of time_limit_s 9.0, this run has None"),
        ({"suite": "toys-v2"}, "of suite 'toys-v2'"),
        ({"solver_settings": {"k": 1}}, 'solver settings {"k":1}, the solver\'s first record has {}'),
    ],
)
def test_a_record_that_is_not_of_the_run_is_a_mismatch(toys, fields, reason):
    edit(toys, 5, **fields)
    report = checked(toys)
    assert [row.status for row in report.rows] == ["ok"] * 4 + ["mismatch", "ok"]
    assert reason in report.rows[4].reason
    assert report.verdict == "NOT VERIFIED"


def test_a_failure_that_is_not_of_the_run_is_a_mismatch(toys):
    edit(toys, 5, status="error", solver="magic", **FAILED)
    assert checked(toys).rows[4].status == "mismatch"


def test_another_version_in_one_record_does_not_skip_it(toys):
    edit(toys, 5, cost=records(toys)[4]["cost"] | {"version": "0"})
    report = checked(toys)
    assert report.rows[4].status == "mismatch"
    assert "judge_version '0', this run has '1'" in report.rows[4].reason


def test_a_record_about_another_task_of_the_suite_is_a_mismatch(toys):
    """It is the record of task 2 under the index of task 1."""
    lines = records(toys)
    lines[3] = lines[5] | {"task_index": 1}
    write(toys, lines)
    row = checked(toys).rows[3]
    assert (row.status, "the file's first record of task 1 has" in row.reason) == ("mismatch", True)


def test_records_that_are_missing_are_named(toys):
    lines = records(toys)
    write(toys, [lines[0], lines[3], lines[4]])
    report = checked(toys)
    assert (report.ok, report.verdict) == (True, "partly verified")
    missing = f"{HALVES} on task 1; {LOPSIDED} on tasks 0, 2"
    assert report.gaps == [f"3 records missing in {toys / 'records.jsonl'}: {missing}"]
    assert report.footer().splitlines()[-1] == report.gaps[0]
    assert report.to_dict()["gaps"] == report.gaps


def test_missing_records_of_several_seeds(tmp_path):
    suite = ToySuite(toy_tasks())
    evaluate(suite, [HALVES], out=tmp_path, judge=CountCost.name, oracle="roofline", seeds=(3, 4), limit=1)
    run = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(run | {"num_tasks": 10**5}))
    (gap,) = checked(tmp_path).gaps
    tasks = f"on tasks 1-{10**5 - 1}"
    assert gap.endswith(f"{HALVES} with seed 3 {tasks}; {HALVES} with seed 4 {tasks}")


def test_a_file_without_run_json_is_partly_verified(toys):
    (toys / "run.json").unlink()
    report = checked(toys)
    assert (report.ok, report.verdict) == (True, "partly verified")
    assert report.gaps == [f"no run.json of {toys / 'records.jsonl'}: which records it should hold is not known"]


def test_a_damaged_run_json_is_an_error(toys):
    (toys / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json"):
        checked(toys)


def test_settings_of_a_solver_may_be_what_they_are_in_all_records(tmp_path):
    spec = SolverSpec(TOY + "Tuned", {"k": 1})
    evaluate(ToySuite(toy_tasks()), [spec], out=tmp_path, judge=CountCost.name, oracle="roofline")
    assert checked(tmp_path).verdict == "verified"


@pytest.mark.parametrize("kind", [str, lambda path: path, lambda path: [path], lambda path: iter([str(path)])])
def test_one_path_or_several(toys, kind):
    assert len(verify(kind(toys), trust=[CountCost.name]).rows) == 6
