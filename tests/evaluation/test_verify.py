"""verify: every stored plan is scored again, and what disagrees is found."""

import io
import json
import sys

import pytest
from evaluation_toys import TOY, CountCost, DriftingCost, ToySuite, edit, pack, toy_tasks

from shardgym import InputError, evaluate, load_suite, verify
from shardgym.cli import main

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


def lower(record):
    record["cost"]["per_device"] = [[0.6 * ms for ms in row] for row in record["cost"]["per_device"]]


def test_untouched_records_are_verified_packed_or_not(toys):
    for prepare in (lambda folder: folder / "records.jsonl", pack):
        file = prepare(toys)
        report = verify(toys, costs=COSTS)
        assert report.ok
        assert [(row.file, row.line, row.status) for row in report.rows] == [(file, n, "ok") for n in range(1, 7)]
        assert report.lines() == [f"{file}: 6 ok, 0 mismatch, 0 skipped, 0 failure", "verified: 6 of 6 records"]


def test_progress_counts_records(toys, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    edit(toys, 2, lambda record: record.update(schema="shardgym.result/0"))
    assert not verify(toys, costs=COSTS, progress=True).ok
    assert "| 6/6 [" in terminal.getvalue()


def test_records_of_a_suite_of_shardgym_need_no_task_files(tmp_path):
    evaluate(load_suite("quick-v2"), ["random"], out=tmp_path, judge="roofline", oracle="roofline", limit=2)
    assert statuses(tmp_path, costs=[]) == ["ok", "ok"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lower, "mismatch: stored 1.2 ms, now 2 ms"),
        (lambda r: r["cost"]["per_device"][1].__setitem__(1, 1.99), "mismatch: stored 2 ms, now 2 ms"),
        (lambda r: r["cost"]["per_device"].pop(), "mismatch: stored 2 ms, now 2 ms"),
        (lambda r: r["plan"]["shards"][0].update(devices=[1]), "mismatch: stored 2 ms, now 3 ms"),
        (lambda r: [shard.update(devices=[0]) for shard in r["plan"]["shards"]],
         "mismatch: the plan is infeasible: device 0 holds 640 bytes, 160 more than its 480"),
        (lambda r: r.update(surprise=1), "mismatch: record"),
        (lambda r: r.update(task_hash="0" * 64), "mismatch: record: the plan is for another task"),
        (lambda r: r.update(suite="quick-v2"), "mismatch: task 0 of suite 'quick-v2' has digest"),
        (lambda r: r.update(suite="quick-v2", task_index=99), "mismatch: suite 'quick-v2' has 8 tasks"),
        (lambda r: r.update(judge="crystal_ball"), "skipped: no judge 'crystal_ball': unknown cost"),
        (lambda r: r["cost"].update(version="0"), "skipped: scored by 0 on toy, here is 1 on toy"),
        (lambda r: r["cost"].update(hardware="moon"), "skipped: scored by 1 on moon, here is 1 on toy"),
    ],
)  # fmt: skip
def test_what_was_changed_in_one_record_is_told(toys, change, said):
    edit(toys, 1, change)
    assert problem(toys, 1).startswith(said)


def test_the_last_digits_may_differ(toys):
    edit(toys, 1, lambda r: r["cost"]["per_device"][1].__setitem__(1, 2 * (1 + 5e-7)))
    assert statuses(toys) == ["ok"] * 6


def test_a_task_file_that_is_missing_or_changed(toys):
    first, second, third = (task.digest for task in toy_tasks())
    (toys / "tasks" / f"{first}.json").unlink()
    (toys / "tasks" / f"{second}.json").write_text((toys / "tasks" / f"{third}.json").read_text())
    assert statuses(toys) == ["mismatch"] * 4 + ["ok"] * 2


def test_a_line_that_was_cut_off_is_skipped(toys):
    path = toys / "records.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert problem(toys, 6) == "skipped: cut off while it was written"


def test_failures_are_counted_and_verify_nothing(tmp_path, toys):
    failing = run(tmp_path / "failing", "Overfull", "GivesUp", "Crashes", count=1)
    assert statuses(failing) == ["failure"] * 3
    assert not verify(failing, costs=COSTS).ok
    report = verify([toys, failing], costs=COSTS)
    assert report.ok
    assert report.lines()[1:] == [
        f"{failing / 'records.jsonl'}: 0 ok, 0 mismatch, 0 skipped, 3 failure", "verified: 6 of 9 records"
    ]  # fmt: skip


def test_a_folder_never_makes_it_import_a_module(toys, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_a_stranger.py").write_text("raise SystemExit('imported')\n")
    edit(toys, 1, lambda record: record.update(judge="of_a_stranger:Cost"))
    assert problem(toys, 1) == "skipped: no judge 'of_a_stranger:Cost': to import it, pass --cost of_a_stranger:Cost"
    assert statuses(toys, costs=[]) == ["skipped"] * 6


@pytest.mark.parametrize("factor", [1.0, 1.8, 0.5])
def test_measured_costs_may_drift_together(measured, monkeypatch, factor):
    monkeypatch.setattr(DriftingCost, "factor", factor)
    assert statuses(measured) == ["ok"] * 9


def test_a_measured_cost_that_is_off_the_median_stands_out(measured, monkeypatch):
    monkeypatch.setattr(DriftingCost, "factor", 1.3)
    for number, times, is_off in ((2, 0.6, True), (2, 1.1 / 0.6, False), (2, 1.15, True)):
        edit(measured, number, lambda r, times=times: r["cost"].update(
            per_device=[[times * ms for ms in row] for row in r["cost"]["per_device"]]))  # fmt: skip
        assert statuses(measured)[number - 1] == ("mismatch" if is_off else "ok")
    assert "1.03 times, the median of the file is 1." in problem(measured, 2)


def test_plans_of_one_task_are_measured_in_one_call(measured, monkeypatch):
    sizes, score = [], CountCost.score
    counted = lambda self, task, plans: sizes.append(len(plans)) or score(self, task, plans)  # noqa: E731
    monkeypatch.setattr(CountCost, "score", counted)
    verify([measured], costs=COSTS)
    assert sizes == [3, 3, 3]


def test_paths_that_hold_nothing_and_files_too_large_are_errors(tmp_path, toys, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no records"):
        verify([tmp_path / "empty"])
    with pytest.raises(InputError, match="does not exist"):
        verify([tmp_path / "nowhere"])
    with (toys / "records.jsonl").open("ab") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(InputError, match="has more than 256 MiB"):
        verify(toys)


def test_the_command_prints_what_disagrees_and_exits_with_1(toys, capsys):
    command = ["verify", str(toys), "--cost", CountCost.name]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "verified: 6 of 6 records"
    edit(toys, 2, lower)
    assert main(command) == 1
    first, *_, verdict = capsys.readouterr().out.splitlines()
    assert first.startswith(f"mismatch {toys / 'records.jsonl'}:2 toys/0 {TOY}Lopsided seed 0: stored 1.8 ms")
    assert verdict == "NOT VERIFIED: 5 of 6 records"
    assert main([*command, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"] == {"ok": 5, "mismatch": 1, "skipped": 0, "failure": 0}
