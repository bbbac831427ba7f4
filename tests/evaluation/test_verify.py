"""verify: every stored plan is scored again, and whatever was changed by hand is found."""

from __future__ import annotations

import pytest
from evaluation_toys import BrokenCost, CountCost, DriftingCost, ToySuite, toy_tasks
from verify_toys import TOY, TRUST, edit, forget_run, problem, statuses, unmeasured

from shardgym import load_suite
from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.evaluation import evaluate, verify


@pytest.fixture
def toys(tmp_path):
    """Records of two solvers on three toy tasks, judged by CountCost."""
    suite = ToySuite(toy_tasks())
    evaluate(suite, [TOY + "Halves", TOY + "Lopsided"], out=tmp_path, judge=CountCost.name, oracle="roofline")
    return tmp_path


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
        record["cost"]["per_device"][0][1] = 1.9
        record["cost"]["per_device"][1][1] = 1.9

    edit(toys, 1, lower)
    row = problem(toys, 1)
    assert (row.status, row.reason) == ("mismatch", "stored 1.9 ms, recomputed 2 ms")


def test_a_plan_that_was_exchanged(toys):
    def exchange(record):
        for shard in record["plan"]["shards"]:
            shard["devices"] = [1 - shard["devices"][0]] if shard["table"] == "t0" else shard["devices"]

    edit(toys, 3, exchange)
    assert problem(toys, 3).status == "mismatch"


def test_a_plan_that_does_not_fit(toys):
    edit(toys, 1, lambda record: [shard.update(devices=[0]) for shard in record["plan"]["shards"]])
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
        record["plan"]["shards"][0]["devices"] = [99]
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
    [("random", "label 'random' is the name of another solver"), ("neur\u043eshard", "should match pattern")],
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
    edit(tmp_path, 1, lambda record: record["plan"]["shards"][0].update(devices=[1]))
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


@pytest.mark.parametrize(
    "change", [{"noise": 0.2}, {"repeats": 9}, {"compute": "measured"}, {"communication": "measured"}, {"notes": ["x"]}]
)
def test_labels_of_a_deterministic_cost_that_were_changed(toys, change):
    edit(toys, 2, lambda record: record["cost"].update(change))
    assert problem(toys, 2).reason.startswith(f"{next(iter(change))}: stored ")


def test_a_plan_that_the_judge_can_score_is_not_unmeasured(toys):
    edit(toys, 2, unmeasured)
    assert problem(toys, 2).reason == "recorded as unmeasured, and the judge says 3 ms"


def test_a_plan_that_the_judge_cannot_score_now_either_is_a_failure(tmp_path):
    evaluate(ToySuite(toy_tasks()), [TOY + "Halves"], out=tmp_path, judge=BrokenCost.name, oracle="roofline")
    report = verify([tmp_path], trust=[BrokenCost.name])
    assert [row.status for row in report.rows] == ["ok", "failure", "ok"]
    assert report.rows[1].reason.endswith("now: MeasurementError: the worker died")
    assert report.verdict == "partly verified"


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
        f"failures, not checked, in {other / 'records.jsonl'}: {TOY}GivesUp on task 0",
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


@pytest.mark.parametrize("text", ["# a page\n\nof text\n", '{"a": 1}\n{"a": 2}\n', "\x00\n\x01\n"])
def test_a_file_that_holds_no_records_is_one_error(tmp_path, text):
    path = tmp_path / "notes.md"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"notes\.md is no file of records, its first line is not one: .*records\.jsonl"
    ):
        verify(path)


def test_trust_that_no_record_needs_is_named(toys, capsys):
    assert verify(toys, trust=[*TRUST, "nomod:X"]).unused_trust == [DriftingCost.name, "nomod:X"]
    trust = [part for name in (CountCost.name, "nomod:X") for part in ("--trust", name)]
    for options in ([], ["-q"]):
        assert main(["verify", str(toys), *trust, *options]) == 0
        assert capsys.readouterr().err == "shardgym: warning: --trust nomod:X: no record names it\n"
    assert main(["verify", str(toys), "--trust", "random"]) == 2
    assert "trust: expected module:Class, got str 'random'" in capsys.readouterr().err
