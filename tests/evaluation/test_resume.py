"""Stopping and continuing: nothing is solved twice, nothing is mixed, nothing is lost."""

import dataclasses
import logging

import pytest
from evaluation_toys import TOY, CountCost, DriftingCost, ToySuite, toy_tasks

from shardgym.errors import InputError
from shardgym.evaluation import evaluate, read_records
from shardgym.files import only_writer


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """Return a function that tells how often Logged was called since it was last asked."""
    path = tmp_path / "calls.txt"
    monkeypatch.setenv("SHARDGYM_TEST_CALLS", str(path))

    def count() -> int:
        number = len(path.read_text().splitlines()) if path.exists() else 0
        path.unlink(missing_ok=True)
        return number

    return count


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def run(out, *solvers, tasks=None, judge=None, oracle="roofline", **options):
    suite = options.pop("suite", None) or ToySuite(tasks if tasks is not None else toy_tasks())
    return evaluate(suite, [TOY + s for s in solvers], out=out, judge=judge or CountCost(), oracle=oracle, **options)


def lines(out):
    return (out / "records.jsonl").read_bytes().splitlines(keepends=True)


def test_tasks_and_solvers_are_added_to_records_that_stay_as_they_are(out, calls):
    """Not a byte of them is written again."""
    run(out, "Logged", limit=1)
    before, _ = lines(out), calls()
    results = run(out, "Logged", "Halves")
    assert (len(results), calls()) == (6, 2)
    assert lines(out)[:1] == before
    assert [r.to_json() for r in run(out, "Logged", "Halves")] == [r.to_json() for r in results]
    assert calls() == 0


def test_failures_stay(out, tmp_path, monkeypatch):
    broken = tmp_path / "broken"
    broken.touch()
    monkeypatch.setenv("SHARDGYM_TEST_BROKEN", str(broken))
    assert {r.status for r in run(out, "FixedByNow")} == {"error"}
    broken.unlink()
    assert {r.status for r in run(out, "FixedByNow")} == {"error"}


def test_all_starts_afresh_and_keeps_the_old_file(out, calls):
    run(out, "Logged")
    old, _ = b"not JSON\n" + (out / "records.jsonl").read_bytes(), calls()
    (out / "records.jsonl").write_bytes(old)
    assert len(run(out, "Logged", judge=CountCost("other"), resume="all")) == 3
    assert calls() == 3
    (aside,) = out.glob("records-*.old")
    assert aside.read_bytes() == old


@pytest.mark.parametrize("cut", [1, 30, -1])
def test_a_last_line_that_was_cut_off_is_dropped_and_made_again(out, calls, caplog, cut):
    run(out, "Logged")
    calls()
    whole = lines(out)
    (out / "records.jsonl").write_bytes(b"".join(whole[:2]) + whole[2][:cut])
    with caplog.at_level(logging.WARNING):
        results = run(out, "Logged")
    assert calls() == 1
    assert len(results) == 3
    assert lines(out)[:2] == whole[:2]
    assert "records.jsonl:3: dropped a record that was cut off" in caplog.text


@pytest.mark.parametrize("damage", [b"{}\n", b"not JSON\n", b"\n", b'{"a": NaN}\n', b"\xff\xfe\n"])
def test_any_other_damaged_line_is_an_error_that_names_file_and_line(out, damage):
    run(out, "Halves")
    whole = lines(out)
    (out / "records.jsonl").write_bytes(whole[0] + damage + whole[2])
    before = (out / "records.jsonl").read_bytes()
    with pytest.raises(InputError, match=r"records\.jsonl:2: .*; remove the line, or restore the file or run"):
        run(out, "Halves")
    assert (out / "records.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"judge": CountCost("other")}, "judge_settings"),
        ({"judge": "roofline"}, "judge"),
        ({"oracle": TOY + "CountCost"}, "oracle"),
        ({"suite": ToySuite(toy_tasks(), name="toys-v2")}, "suite"),
        ({"time_limit_s": 3.0}, "time_limit_s"),
        ({"judge": type("Newer", (CountCost,), {"version": "2"})()}, "judge_version"),
    ],
)
def test_records_of_something_else_are_never_mixed(out, change, named):
    run(out, "Halves")
    before = lines(out)
    with pytest.raises(InputError, match=f"holds records of {named} .*give another folder"):
        run(out, "Lopsided", **change)
    (out / "run.json").unlink()
    with pytest.raises(InputError, match=rf"records\.jsonl:1: .* records (hardware|{named}) .*, but the run has "):
        run(out, "Lopsided", **change)
    assert lines(out) == before


@pytest.mark.parametrize("changed", [[dataclasses.replace(toy_tasks()[2], batch_size=99)], []])
def test_a_task_that_changed_or_is_gone_is_found_also_where_nothing_is_to_do(out, changed):
    """Task 2, and the run asks for task 0."""
    run(out, "Halves")
    tasks = [*toy_tasks(2), *changed]
    before = lines(out)
    named = f"not '{changed[0].name}'" if changed else "of 2"
    with pytest.raises(InputError, match=f"records of suite 'toys' with another task 2, {named}: give another"):
        run(out, "Halves", tasks=tasks, limit=1)
    assert lines(out) == before


def test_what_is_found_and_what_is_to_do_is_said(out, caplog):
    with caplog.at_level(logging.INFO, logger="shardgym"):
        run(out, "Halves", limit=1)
        assert not caplog.text
        run(out, "Halves")
        assert "1 records found, 2 to solve (--resume all to start afresh)" in caplog.text
        run(out, "Halves")
        assert "3 records found, 0 to solve" in caplog.text


def test_records_of_a_solver_whose_file_and_weights_changed_are_named(out, monkeypatch, caplog):
    monkeypatch.setattr("evaluation_toys.Halves.weights_digest", "1" * 64, raising=False)
    run(out, "Halves", limit=1, isolate=False)
    run(out, "Halves", limit=2, isolate=False)
    assert not caplog.text
    monkeypatch.setattr("shardgym.evaluation.running_solver.source_digest", lambda cls: "0" * 64)
    monkeypatch.setattr("evaluation_toys.Halves.weights_digest", "2" * 64)
    run(out, "Halves", isolate=False)
    assert f"the source file of '{TOY}Halves' changed after its earlier records were made" in caplog.text
    assert f"the weights of '{TOY}Halves' changed" in caplog.text
    assert "and they stay: give it a new label, or --resume all" in caplog.text


def test_two_runs_cannot_write_into_one_folder(out):
    with only_writer(out), pytest.raises(InputError, match="another run is writing"):
        run(out, "Halves")
    assert len(run(out, "Halves")) == 3


def test_measured_plans_are_measured_again_together_with_a_new_one(out, monkeypatch, caplog):
    """The machine is twice as slow today: old and new times of a task must still be of one session."""
    run(out, "Lopsided", judge=DriftingCost())
    monkeypatch.setattr(DriftingCost, "factor", 2.0)
    with caplog.at_level(logging.INFO, logger="shardgym"):
        results = run(out, "Lopsided", "Halves", judge=DriftingCost())
    assert "measures 3 plans of earlier records again, together with the new ones" in caplog.text
    assert {r.cost.session for r in results} == {"day of 2.0"}
    assert [r.total_ms for r in results if r.task_index == 0] == [6.0, 4.0]
    assert sorted(r.to_json() for r in read_records(out / "records.jsonl")) == sorted(r.to_json() for r in results)
