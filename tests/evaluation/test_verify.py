"""verify: every stored plan is scored again, and what disagrees is found."""

import io
import json
import logging
import re
import sys

import pytest
from board_toys import board_of
from evaluation_toys import TOY, CountCost, DriftingCost, ToySuite, edit, pack, toy_tasks

from shardgym import InputError, PlanCost, evaluate, verify
from shardgym.cli import main
from shardgym.leaderboard import load_boards

COSTS = [CountCost.name, DriftingCost.name]


def run(out, *solvers, judge=CountCost.name, count=3):
    evaluate(ToySuite(toy_tasks(count)), [TOY + s for s in solvers], out=out, judge=judge, oracle="roofline")
    return out


@pytest.fixture
def toys(tmp_path):
    """Records of two solvers on three toy tasks, judged by CountCost."""
    return run(tmp_path / "toys", "Halves", "Lopsided")


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Records of three solvers under DriftingCost, in the state of the day they were made."""
    monkeypatch.setattr(DriftingCost, "factor", 1.0)
    return run(tmp_path / "measured", "Halves", "Lopsided", "Mirrored", judge=DriftingCost.name)


def statuses(folder, costs=COSTS):
    return [row.status for row in verify(folder, costs=costs).rows]


def problem(folder, number):
    """Return what is said of the record on a line, the only one that is not ok."""
    report = verify([folder], costs=COSTS)
    assert [row.line for row in report.rows if row.status != "ok"] == [number]
    row = report.rows[number - 1]
    assert (report.ok, str(row) in report.lines()) == (row.status != "mismatch", row.status == "mismatch")
    return f"{row.status}: {row.reason}"


def rename(folder, old, new):
    """Give judge or suite of all records, and of their run, another name."""
    for file in (folder / "records.jsonl", folder / "run.json"):
        file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))


def lower(record):
    record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]


def test_records_are_verified_packed_or_not_and_their_last_digits_may_differ(toys):
    edit(toys, 1, lambda r: r["cost"]["per_device"][1].__setitem__(1, 2 * (1 + 5e-7)))
    for prepare in (lambda folder: folder / "records.jsonl", pack):
        file = prepare(toys)
        report = verify(toys, costs=COSTS)
        assert report.ok
        assert [(row.file, row.line, row.status) for row in report.rows] == [(file, n, "ok") for n in range(1, 7)]
        assert report.lines() == [f"{file}: 6 ok, 0 mismatch, 0 skipped, 0 failure", "verified: 6 of 6 records"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lower, "mismatch: stored 1.2 ms, now 2 ms"),
        (lambda r: r["cost"]["per_device"][1].__setitem__(1, 1.99),
         "mismatch: forward_compute of device 1: stored 1.99 ms, now 2 ms"),
        (lambda r: r["cost"]["per_device"].pop(), "mismatch: stored 1 devices, "),
        (lambda r: r["cost"].update(compute="measured"), "mismatch: stored 2 devices, compute measured"),
        (lambda r: r["plan"]["shards"][0].update(devices=[1]), "mismatch: stored 2 ms, now 3 ms"),
        (lambda r: [shard.update(devices=[0]) for shard in r["plan"]["shards"]],
         "mismatch: the plan is infeasible: device 0 holds 640 bytes, 160 more than its 480"),
        (lambda r: r.update(surprise=1), "mismatch: record"),
    ],
)  # fmt: skip
def test_what_was_changed_in_one_record_is_told(toys, change, said):
    edit(toys, 1, change)
    assert problem(toys, 1).startswith(said)


def test_measured_records_must_have_all_devices_and_say_alike_how_times_came_about(measured):
    edit(measured, 1, lambda r: r["cost"]["per_device"].pop(0))
    edit(measured, 2, lambda r: r["cost"].update(ids_hidden=True))
    edit(measured, 3, lambda r: r["cost"].update(communication="predicted"))
    rows = [row for row in verify(measured, costs=COSTS).rows if row.status == "mismatch"]
    now = "compute measured, communication modelled"
    assert [row.reason.partition(", now ")[0] for row in rows] == [
        f"stored 1 devices, {now}", f"stored 2 devices, {now}, ids hidden",
        "stored 2 devices, compute measured, communication predicted",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids_hidden": True}, "toys/1 two seed 0 records cost.ids_hidden True, but the run has False"),
        ({"task_hash": "0" * 64}, "record: toys/1 two seed 0: the plan is for another task than the record"),
        ({"status": "error"}, "record: toys/1 two seed 0: status 'error' does not agree with the plan and its cost"),
        ({"suite": "quick-v2"}, "quick-v2/1 two seed 0 records suite 'quick-v2', but the run has 'toys'"),
        ({"hardware": "moon"}, "toys/1 two seed 0 records hardware 'moon', but the run has 'lab'"),
        ({"version": "0"}, "toys/1 two seed 0 records judge_version '0', but the run has '1'"),
        ({"cost": "gpu"}, "toys/1 two seed 0 records cost.cost 'gpu', but the run has 'lab-cost'"),
        ({"pace": 2.0, "hardware": "moon"}, "toys/1 two seed 0 records cost.hardware 'moon', but the run has 'lab'"),
        ({"task_index": 2}, "toys/2 two seed 0: the run has no task_index 2"),
        ({"task_index": 0, "solver": "x"}, "toys/0 x seed 0 is about another task than earlier records of that index"),
        ({"solver": "y"}, "toys/1 y seed 0: the run has no solver 'y'"),
        ({"seed": 5}, "toys/1 two seed 5: the run has no seed 5"),
        ({"solver_settings": {"kicks": 9}}, "toys/1 two seed 0 has other settings than earlier records of that solver"),
        ({"solver": "one"}, "toys/1 one seed 0 already has a record on line 2"),
    ],
)
def test_a_record_that_is_not_of_its_run_is_refused_as_boards_refuse_it(tmp_path, change, said):
    outcomes = {"one": [1.0, 2.0], "two": [1.0, 2.0], "x": [None, 1.0]}
    board_of(tmp_path, outcomes, judge_settings={"ids_hidden": False})
    of_cost = {"cost", "version", "pace", "ids_hidden"} & change.keys()
    edit(tmp_path, 4, lambda r: (r["cost"] if of_cost else r).update(change))
    row = verify(tmp_path).rows[3]
    assert (row.status, row.reason, str(row)) == ("mismatch", said, f"mismatch {row.file}:4 {said}")
    with pytest.raises(InputError, match=rf"records\.jsonl:4: {re.escape(said)}; remove the line"):
        load_boards([tmp_path])


def test_a_task_that_is_missing_or_changed_or_of_another_suite(tmp_path):
    run(tmp_path, "Halves", count=9)
    first, second, third = (tmp_path / "tasks" / f"{task.digest}.json" for task in toy_tasks())
    first.unlink()
    second.write_text(third.read_text())
    assert statuses(tmp_path) == ["mismatch"] * 2 + ["ok"] * 7
    rename(tmp_path, "toys", "dlrm4-v2")
    assert verify(tmp_path, costs=COSTS).rows[0].reason.endswith(" is not about task 0 of 'dlrm4-v2', by its digest")
    rename(tmp_path, "dlrm4-v2", "quick-v2")
    with pytest.raises(InputError, match=r"run\.json: num_tasks is 9, the suite has 8"):
        verify(tmp_path, costs=COSTS)


def test_a_line_that_was_cut_off_is_a_mismatch_and_progress_counts_it(toys, monkeypatch, caplog):
    path = toys / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert problem(toys, 6) == "mismatch: the last record is cut off: run the same command to make it again"
    load_boards([toys])
    assert "records.jsonl:6: the last record is cut off" in caplog.text
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    assert not verify(toys, costs=COSTS, progress=True).ok
    assert "| 6/6 [" in terminal.getvalue()


def test_failures_are_counted_and_verify_nothing(tmp_path, toys):
    failing = run(tmp_path / "failing", "Overfull", "GivesUp", "Crashes", count=1)
    assert statuses(failing) == ["failure"] * 3
    assert not verify(failing, costs=COSTS).ok
    report = verify([toys, failing], costs=COSTS)
    assert report.ok
    assert report.lines()[1:] == [
        f"{failing / 'records.jsonl'}: 0 ok, 0 mismatch, 0 skipped, 3 failure", "verified: 6 of 9 records"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("crystal_ball", "no judge 'crystal_ball': unknown cost"),
        ("of_a_stranger:Cost", "no judge 'of_a_stranger:Cost': to import it, pass --cost of_a_stranger:Cost"),
    ],
)
def test_a_folder_never_makes_it_import_a_module(toys, tmp_path, monkeypatch, name, said):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_stranger.py").write_text("raise SystemExit('imported')\n")
    rename(toys, CountCost.name, name)
    assert all(row.status == "skipped" and row.reason.startswith(said) for row in verify(toys, costs=COSTS).rows)


def test_runs_of_an_older_judge_or_of_other_hardware_are_skipped(toys, monkeypatch):
    for field, value, here in (("version", "2", "2 on toy"), ("hardware", "moon", "2 on moon")):
        monkeypatch.setattr(CountCost, field, value)
        found = {(row.status, row.reason) for row in verify(toys, costs=COSTS).rows}
        assert found == {("skipped", f"scored by 1 on toy, here is {here}")}


def test_a_judge_that_has_other_settings_here_is_no_judge(tmp_path, monkeypatch):
    out = run(tmp_path / "lab", "Halves", judge=CountCost("lab"))
    monkeypatch.setattr(CountCost, "settings", lambda self: {"tag": "office"})
    found = {(row.status, row.reason) for row in verify(out, costs=COSTS).rows}
    assert found == {("skipped", "scored with tag='lab', here is tag='office'")}


@pytest.mark.parametrize("factor", [1.0, 1.8, 0.5])
def test_measured_costs_may_drift_together(measured, monkeypatch, factor):
    monkeypatch.setattr(DriftingCost, "factor", factor)
    assert statuses(measured) == ["ok"] * 9


def test_plans_of_a_task_have_one_pace_which_may_be_that_of_another_day(measured):
    for numbers, pace, status in (((4, 5, 6), 1.5, "ok"), ((5,), 1.0, "mismatch")):
        for number in numbers:
            edit(measured, number, lambda r, p=pace: r.update(cost=PlanCost.from_dict(r["cost"]).at_pace(p).to_dict()))
        assert statuses(measured) == ["ok"] * 4 + [status] + ["ok"] * 4


def test_a_measured_cost_that_is_off_the_median_stands_out(measured, monkeypatch):
    monkeypatch.setattr(DriftingCost, "factor", 1.3)
    for number, times, is_off in ((2, 0.6, True), (2, 1.1 / 0.6, False), (2, 1.15, True)):
        edit(measured, number, lambda r, times=times: r["cost"].update(
            per_device=[[times * ms for ms in row] for row in r["cost"]["per_device"]]))  # fmt: skip
        assert statuses(measured)[number - 1] == ("mismatch" if is_off else "ok")
    assert "1.03 times, the median of the file is 1." in problem(measured, 2)


def test_plans_of_one_task_are_measured_in_one_call(measured, toys, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="shardgym")
    assert verify(toys, costs=COSTS).ok
    assert not caplog.text
    sizes, score = [], CountCost.score
    counted = lambda self, task, plans: sizes.append(len(plans)) or score(self, task, plans)  # noqa: E731
    monkeypatch.setattr(CountCost, "score", counted)
    verify([measured], costs=COSTS)
    assert sizes == [3, 3, 3]
    (said,) = caplog.messages
    assert said.endswith("records.jsonl: 3 measured tasks are measured again")


@pytest.mark.parametrize("command", ["verify", "leaderboard"])
def test_what_holds_no_records_of_a_run_is_one_line(toys, capsys, command):
    def said_of(path):
        assert main([command, str(path)]) == 2
        return capsys.readouterr().err.removeprefix(f"shardgym: error: {path} ")

    page, records = toys / "README.md", toys / "records.jsonl"
    assert said_of(page) == "does not exist: expected a records file, or a folder with one\n"
    assert said_of(toys / "tasks") == "holds no records.jsonl: expected the folder of a run\n"
    page.write_text("# A board\n\nof toys\n")
    assert said_of(page) == "is no records file: expected records.jsonl, or the folder of a run\n"
    page.rename(records)
    assert said_of(records) == "is no records file: expected a JSON object on each line\n"
    records.write_text("")
    assert said_of(records) == "is empty: expected a record on each line\n"
    records.write_text("{")
    if command == "leaderboard":
        assert said_of(records) == "holds no records yet: expected at least one whole line\n"
    (toys / "run.json").unlink()
    assert said_of(records) == "has no run.json beside it: expected the folder of a run\n"


def test_the_command_prints_what_disagrees_and_exits_with_1(toys, capsys):
    command = ["verify", str(toys), "--cost", CountCost.name]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified: 6 of 6 records"
    edit(toys, 2, lower)
    assert main(command) == 1
    first, *_, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith(f"mismatch {toys / 'records.jsonl'}:2 toys/0 {TOY}Lopsided seed 0: stored 1.8 ms")
    assert verdict == "NOT VERIFIED: 1 of 6 records disagree"
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"ok": 5, "mismatch": 1, "skipped": 0, "failure": 0}
