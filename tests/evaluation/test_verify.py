"""verify: every stored plan is scored again, and whatever was changed by hand is found."""

from __future__ import annotations

import dataclasses
import json

import pytest
from evaluation_toys import BrokenCost, CountCost, DriftingCost, ToySuite, toy_tasks

from shardgym import load_suite
from shardgym.errors import InputError
from shardgym.evaluation import evaluate, verify

TOY = "evaluation_toys:"
TRUST = [CountCost.name, DriftingCost.name]


@pytest.fixture
def toys(tmp_path):
    """Records of two solvers on three toy tasks, judged by CountCost."""
    suite = ToySuite(toy_tasks())
    evaluate(suite, [TOY + "Halves", TOY + "Lopsided"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    return tmp_path


def edit(folder, number, change):
    """Change the record on line `number` by hand."""
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines()
    record = json.loads(lines[number - 1])
    change(record)
    lines[number - 1] = json.dumps(record)
    path.write_text("\n".join(lines) + "\n")


def forget_run(folder):
    """Records without their run.json are held to nothing but themselves."""
    (folder / "run.json").unlink()


def statuses(folder, **options):
    return [row.status for row in verify([folder], **{"trust": TRUST} | options).rows]


def problem(folder, number):
    report = verify([folder], trust=TRUST)
    assert not report.ok
    assert [row.status == "ok" for row in report.rows] == [i + 1 != number for i in range(len(report.rows))]
    return report.rows[number - 1]


def test_untouched_records_are_verified(toys):
    report = verify([toys], trust=TRUST)
    assert report.ok
    assert statuses(toys) == ["ok"] * 6
    assert report.rows[0].where == f"{toys / 'records.jsonl'}:1"
    assert report.footer() == "verified: 6 records, 6 ok, 0 mismatch, 0 skipped, 0 unreadable"


def test_records_of_a_suite_of_shardgym_need_no_task_files(tmp_path):
    evaluate(load_suite("quick-v1"), ["random"], out=tmp_path, judge="roofline", oracle="roofline", limit=2)
    assert statuses(tmp_path) == ["ok", "ok"]


def test_a_cost_that_was_lowered(toys):
    def lower(record):
        record["cost"]["per_device"][0][0] = 1.9
        record["cost"]["per_device"][1][0] = 1.9

    edit(toys, 1, lower)
    row = problem(toys, 1)
    assert (row.status, row.reason) == ("mismatch", "stored 1.9 ms, recomputed 2 ms")


def test_a_plan_that_was_exchanged(toys):
    def exchange(record):
        for shard in record["plan"]["shards"]:
            shard["device"] = 1 - shard["device"] if shard["table"] == "t0" else shard["device"]

    edit(toys, 3, exchange)
    assert problem(toys, 3).status == "mismatch"


def test_a_plan_that_does_not_fit(toys):
    edit(toys, 1, lambda record: [shard.update(device=0) for shard in record["plan"]["shards"]])
    assert problem(toys, 1).reason == (
        "the plan is infeasible: device 0 holds 640 bytes, 160 more than its 480; "
        "largest of its 4 shards: 't3' 160, 't2' 160, 't1' 160"
    )


def test_hardware_that_was_renamed(toys):
    forget_run(toys)
    edit(toys, 2, lambda record: record.update(hardware="supercomputer"))
    assert "cost is of toy, the record says supercomputer" in problem(toys, 2).reason


def test_a_deterministic_cost_of_other_hardware_than_its_judge_says(toys):
    def rename(record):
        record["hardware"] = record["cost"]["hardware"] = "supercomputer"

    edit(toys, 2, rename)
    assert problem(toys, 2).status == "mismatch"


def test_too_few_devices(toys):
    edit(toys, 1, lambda record: record["cost"]["per_device"].pop())
    assert problem(toys, 1).reason == "cost of 1 devices, the task has 2"


@pytest.mark.parametrize(
    "damage", [{"surprise": 1}, {"status": "fine"}, {"task_hash": "0" * 64}, {"plan": None}, {"seed": -1}]
)
def test_a_damaged_record_is_unreadable(toys, damage):
    edit(toys, 4, lambda record: record.update(damage))
    assert problem(toys, 4).status == "unreadable"


def test_a_truncated_file(toys):
    path = toys / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    report = verify([toys], trust=TRUST)
    assert (report.rows[5].status, report.verdict) == ("skipped", "partly verified")
    assert report.rows[5].reason.startswith("cut off while it was written")
    assert "1 record missing" in report.footer()


def test_a_failure_that_is_confirmed_does_not_stand_for_costs_that_are_not(toys):
    """All costs are of a judge that is not at hand; one record holds a plan that is infeasible indeed."""
    forget_run(toys)
    for line in range(1, 7):
        edit(toys, line, lambda record: record.update(judge="crystal_ball"))

    def broken(record):
        record["plan"]["shards"][0]["device"] = 99
        record.update(status="infeasible", reason="device 99 does not exist")
        record["cost"] = None

    edit(toys, 1, broken)
    report = verify([toys], trust=TRUST)
    assert [row.status for row in report.rows] == ["ok"] + ["skipped"] * 5
    assert (report.ok, report.verdict) == (False, "NOT VERIFIED")
    assert "nothing verified in" in report.footer()


@pytest.mark.parametrize(("paths", "trust"), [(3, []), (["."], "evaluation_toys:CountCost"), ([3], [])])
def test_arguments_of_another_kind_are_refused(paths, trust):
    with pytest.raises(InputError, match="expected a"):
        verify(paths, trust=trust)


@pytest.mark.parametrize(
    ("solver", "reason"),
    [("random", "label 'random' is the name of another solver"), ("neur\u043eshard", "expected at most 60 letters")],
)
def test_labels_that_no_run_accepts_are_mismatches(toys, solver, reason):
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(solver=solver, made_from="dim_greedy"))
    assert reason in problem(toys, 1).reason


def test_a_record_that_is_there_twice(toys):
    path = toys / "records.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    assert problem(toys, 7).status == "mismatch"


def test_a_task_file_that_is_missing_or_changed(toys):
    first, second, third = (task.digest for task in toy_tasks())
    (toys / "tasks" / f"{first}.json").unlink()
    (toys / "tasks" / f"{second}.json").write_text((toys / "tasks" / f"{third}.json").read_text())
    assert statuses(toys) == ["unreadable"] * 4 + ["ok"] * 2


def test_a_suite_of_shardgym_cannot_be_claimed_with_easier_tasks(toys):
    """The task file next to the records does not count for a name that shardgym knows."""
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(suite="quick-v1"))
    assert problem(toys, 1).status == "unreadable"


def test_an_index_beyond_the_suite(toys):
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(suite="quick-v1", task_index=99))
    assert "quick-v1' has 10 tasks" in problem(toys, 1).reason


def test_failures_are_not_checked_unless_their_plan_shows_them(tmp_path):
    """A plan that is recorded as infeasible is checked to be; a solver that gave none is not called again."""
    suite = ToySuite(toy_tasks(1))
    solvers = [TOY + name for name in ("Overfull", "GivesUp", "Crashes")]
    evaluate(suite, solvers, out=tmp_path, judge=CountCost.name, oracle="roofline")
    assert statuses(tmp_path) == ["ok", "failure", "failure"]
    edit(tmp_path, 1, lambda record: record["plan"]["shards"][0].update(device=1))
    assert statuses(tmp_path) == ["mismatch", "failure", "failure"]


def test_nothing_verified_is_not_ok(tmp_path):
    evaluate(ToySuite(toy_tasks(1)), [TOY + "GivesUp"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    report = verify([tmp_path])
    assert not report.ok
    assert report.footer().startswith("NOT VERIFIED")


def test_a_judge_that_a_record_names_is_not_imported_unless_trusted(toys):
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(judge="subprocess:run", judge_settings={"args": ["false"]}))
    report = verify([toys], trust=TRUST)
    assert (report.rows[0].status, report.ok) == ("skipped", True)
    assert "pass --trust subprocess:run" in report.rows[0].reason
    assert statuses(toys, trust=[]) == ["skipped"] * 6


def test_a_judge_that_does_not_exist_here_is_skipped(toys):
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(judge="crystal_ball"))
    assert statuses(toys) == ["skipped"] + ["ok"] * 5


def test_another_version_of_the_judge_is_skipped(toys, monkeypatch):
    monkeypatch.setattr(CountCost, "version", "2")
    assert statuses(toys) == ["skipped"] * 6


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Records of three solvers under DriftingCost, in the state of the day they were made."""
    monkeypatch.setattr(DriftingCost, "factor", 1.0)
    solvers = [TOY + name for name in ("Halves", "Lopsided", "Mirrored")]
    evaluate(ToySuite(toy_tasks()), solvers, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    return tmp_path


@pytest.mark.parametrize(("factor", "status"), [(1.0, "ok"), (1.8, "ok"), (0.5, "ok"), (4.0, "mismatch")])
def test_measured_costs_may_drift_together(measured, monkeypatch, factor, status):
    monkeypatch.setattr(DriftingCost, "factor", factor)
    assert statuses(measured) == [status] * 9


def test_a_measured_cost_that_was_lowered_stands_out(measured, monkeypatch):
    monkeypatch.setattr(DriftingCost, "factor", 1.3)

    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]

    edit(measured, 2, lower)
    assert "times the drift of its task" in problem(measured, 2).reason


def test_a_forged_session_does_not_save_a_lowered_cost(measured):
    """Alone it would be held to a drift of 2 only. The task is named, too: no run measures its plans apart."""
    def lower(record):
        record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]
        record["cost"]["session"] = "mine"

    edit(measured, 2, lower)
    assert "1.67 times the drift of its task" in problem(measured, 2).reason
    (gap,) = verify([measured], trust=TRUST).gaps
    assert gap.startswith(f"times of several sessions on task 0 of {measured / 'records.jsonl'}: a run measures all")


def test_times_of_several_sessions_are_never_wholly_verified(measured):
    for line in (2, 5, 9):
        edit(measured, line, lambda record: record["cost"].update(session="later"))
    report = verify([measured], trust=TRUST)
    assert (report.ok, report.verdict) == (True, "partly verified")
    assert "on tasks 0-2 of" in report.gaps[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"communication": "measured"}, "communication: stored 'measured', now 'modelled'"),
        ({"compute": "predicted"}, "compute: stored 'predicted', now 'measured'"),
        ({"repeats": 2100}, "repeats: stored 2100, now 1"),
    ],
)
def test_labels_of_measured_costs_are_compared(measured, change, reason):
    edit(measured, 2, lambda record: record["cost"].update(change))
    assert problem(measured, 2).reason == reason


def test_time_that_was_moved_to_another_phase_is_found(measured):
    """The total is as it was."""
    edit(measured, 2, lambda record: record["cost"].update(
        per_device=[[0.0, 0.0, 0.0, sum(row)] for row in record["cost"]["per_device"]]
    ))  # fmt: skip
    assert "forward_compute is 0% of the times that are stored and 100% now" in problem(measured, 2).reason


def test_equal_plans_of_one_session_must_have_equal_stored_costs(tmp_path, monkeypatch):
    solvers = [TOY + name for name in ("Halves", "Spies", "Lopsided")]
    evaluate(ToySuite(toy_tasks(1)), solvers, out=tmp_path, judge=DriftingCost.name, oracle="roofline")
    assert statuses(tmp_path) == ["ok"] * 3
    edit(tmp_path, 1, lambda record: record["cost"]["per_device"][0].__setitem__(0, 1.99))
    assert statuses(tmp_path) == ["mismatch", "mismatch", "ok"]


@pytest.fixture
def disturb(monkeypatch):
    """Return a function: from now on, so many measurements see plans with 3 shards on device 0 take twice as long."""
    def install(times):
        calls, score = [], DriftingCost._evaluate

        def disturbed(self, task, plans):
            calls.append(task.name)
            factors = [2.0 if calls.count(task.name) <= times and len(p.on(0)) == 3 else 1.0 for p in plans]
            costs = zip(score(self, task, plans), factors, strict=True)
            return [dataclasses.replace(c, per_device=c.per_device * f) for c, f in costs]

        monkeypatch.setattr(DriftingCost, "_evaluate", disturbed)
        return calls

    return install


@pytest.mark.parametrize(("times", "status", "measurements"), [(0, "ok", 1), (1, "ok", 2), (2, "ok", 3)])
def test_a_disturbed_measurement_is_made_again(measured, disturb, times, status, measurements):
    calls = disturb(times)
    assert statuses(measured) == [status] * 9
    assert calls == [f"toys/{i}" for i in range(3) for _ in range(measurements)]


def test_what_disagrees_three_times_is_a_mismatch(measured, disturb):
    calls = disturb(3)
    assert statuses(measured) == ["ok", "mismatch", "ok"] * 3
    assert len(calls) == 9


def test_measured_costs_of_other_hardware_are_skipped(measured):
    def rename(record):
        record["hardware"] = record["cost"]["hardware"] = "supercomputer"

    forget_run(measured)
    edit(measured, 1, rename)
    assert statuses(measured) == ["skipped"] + ["ok"] * 8


def test_plans_of_one_task_are_measured_again_in_one_call(measured, monkeypatch):
    sizes, score = [], CountCost._evaluate
    counted = lambda self, task, plans: sizes.append(len(plans)) or score(self, task, plans)  # noqa: E731
    monkeypatch.setattr(CountCost, "_evaluate", counted)
    verify([measured], trust=TRUST)
    assert sizes == [3, 3, 3]


@pytest.mark.parametrize(
    "change", [{"noise": 0.2}, {"repeats": 9}, {"compute": "measured"}, {"communication": "measured"}, {"notes": ["x"]}]
)
def test_labels_of_a_deterministic_cost_that_were_changed(toys, change):
    edit(toys, 2, lambda record: record["cost"].update(change))
    assert problem(toys, 2).reason.startswith(f"{next(iter(change))}: stored ")


def unmeasured(record):
    empty = [[None] * 4 for _ in record["cost"]["per_device"]]
    record["cost"].update(per_device=empty, reason="the worker died")
    record.update(status="unmeasured", reason="the worker died")


def test_a_plan_that_the_judge_can_score_is_not_unmeasured(toys):
    edit(toys, 2, unmeasured)
    assert problem(toys, 2).reason == "recorded as unmeasured, and the judge says 3 ms"


def test_a_plan_that_the_judge_cannot_score_now_either_is_a_failure(tmp_path):
    evaluate(ToySuite(toy_tasks()), [TOY + "Halves"], out=tmp_path, judge=BrokenCost.name, oracle="roofline")
    report = verify([tmp_path], trust=[BrokenCost.name])
    assert [row.status for row in report.rows] == ["ok", "failure", "ok"]
    assert report.rows[1].reason.endswith("now: MeasurementError: the worker died")
    assert report.verdict == "partly verified"


def test_an_unmeasured_plan_of_a_measured_cost_is_a_failure(measured):
    edit(measured, 2, unmeasured)
    assert statuses(measured) == ["ok", "failure"] + ["ok"] * 7


def test_an_error_has_no_plan(toys):
    edit(toys, 2, lambda record: (unmeasured(record), record.update(status="error")))
    assert problem(toys, 2).reason.startswith("recorded as an error")


def test_a_file_of_which_nothing_was_verified_is_not_hidden_by_another(toys, tmp_path):
    other = tmp_path / "other"
    evaluate(ToySuite(toy_tasks(1)), [TOY + "GivesUp"], out=other, judge=CountCost.name, oracle="roofline")
    report = verify([toys], trust=TRUST)
    assert not report.ok
    assert report.footer().splitlines() == [
        "NOT VERIFIED: 7 records, 6 ok, 0 mismatch, 0 skipped, 0 unreadable, 1 failed (not checked)",
        f"nothing verified in {other / 'records.jsonl'}",
        f"failures, not checked, in {other / 'records.jsonl'}: {TOY}GivesUp on tasks 0",
    ]


def test_costs_that_were_skipped_make_it_partly_verified(toys):
    forget_run(toys)
    edit(toys, 1, lambda record: record.update(judge="crystal_ball"))
    report = verify([toys], trust=TRUST)
    assert report.ok
    assert report.footer().startswith("partly verified: 6 records, 5 ok")


def test_paths_that_hold_nothing_are_errors(tmp_path):
    with pytest.raises(InputError, match="holds no records"):
        verify([tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        verify([tmp_path / "nowhere"])
