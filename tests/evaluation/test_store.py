"""A folder of records cannot be spoilt by accident: ranks stay, drops are clean, changed sources are told."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from evaluation_toys import CountCost, Halves, Lopsided, ToySuite, Tuned, toy_tasks
from verify_toys import pack

from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation import SolverSpec, drop_records, evaluate, read_records, verify
from shardgym.leaderboard import load_boards, rank, render
from shardgym.tasks.suites.spec import CostChoice, Track

TOY = "evaluation_toys:"


def run(out, *solvers, **options):
    options = {"judge": CountCost.name, "oracle": "roofline", "isolate": False} | options
    return evaluate(ToySuite(toy_tasks()), solvers, out=out, **options)


@pytest.fixture
def out(tmp_path):
    """Two solvers with seed 0 on all three tasks."""
    run(tmp_path, TOY + "Halves", TOY + "Lopsided")
    return tmp_path


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".jsonl", ".json")}


@pytest.mark.parametrize(
    ("solvers", "options", "lacks"),
    [
        (
            ["Halves", "Lopsided"],
            {"seeds": [1], "limit": 1},
            "Halves, evaluation_toys:Lopsided, which would lack seed 1",
        ),
        (["Halves"], {"seeds": [1]}, "Lopsided, which would lack seed 1"),
        (["Mirrored"], {"seeds": [1]}, "Halves, evaluation_toys:Lopsided, which would lack seed 1"),
    ],
)
def test_a_run_that_would_take_ranks_away_is_refused(out, solvers, options, lacks):
    before = files(out)
    with pytest.raises(InputError, match=f"{lacks} and lose their rank: .*or allow it with --extend"):
        run(out, *(TOY + name for name in solvers), **options)
    assert files(out) == before
    run(out, *(TOY + name for name in solvers), extend=True, **options)


def test_more_tasks_are_refused_for_some_solvers_alone(tmp_path):
    run(tmp_path, TOY + "Halves", TOY + "Lopsided", limit=1)
    with pytest.raises(InputError, match="Lopsided, which would lack tasks 1-2 and lose"):
        run(tmp_path, TOY + "Halves")
    assert len(run(tmp_path, TOY + "Halves", TOY + "Lopsided")) == 6


def test_what_keeps_all_ranks_needs_no_option(out):
    """A solver more, and a seed more with all of them."""
    run(out, TOY + "Mirrored", limit=1)
    run(out, TOY + "Mirrored")
    assert len(run(out, *(TOY + name for name in ("Halves", "Lopsided", "Mirrored")), seeds=[5])) == 9


def test_dropping_a_seed_gives_the_ranks_back(out):
    before = (out / "records.jsonl").read_bytes()
    run(out, TOY + "Mirrored", seeds=[1], limit=1, extend=True)
    assert drop_records(out, seeds=[1], solvers=[TOY + "Mirrored"]) == 1
    assert (out / "records.jsonl").read_bytes() == before
    assert verify(out, trust=[CountCost.name]).verdict == "verified"
    assert len([path for path in out.iterdir() if path.suffix == ".old"]) == 1


def test_tasks_and_solvers_can_be_dropped(out):
    assert drop_records(out, solvers=[TOY + "Halves"], limit=1) == 5
    info = json.loads((out / "run.json").read_text())
    assert (info["solvers"], info["num_tasks"]) == ([TOY + "Lopsided"], 1)
    assert [(r.solver, r.task_index) for r in read_records(out / "records.jsonl")] == [(TOY + "Lopsided", 0)]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ({"solvers": ["Halfs"]}, UnknownNameError, "unknown solver of"),
        ({"seeds": [4]}, UnknownNameError, "unknown seed of .*: known: 0"),
        ({"limit": 3}, InputError, "limit 3: expected fewer than the 3 tasks"),
        ({}, InputError, "nothing to drop"),
        ({"seeds": [0]}, InputError, "nothing would be left"),
    ],
)
def test_what_cannot_be_dropped_is_told_and_changes_nothing(out, what, error, message):
    before = files(out)
    with pytest.raises(error, match=message):
        drop_records(out, **what)
    assert files(out) == before


def test_a_folder_of_something_else_is_left_alone(tmp_path):
    with pytest.raises(InputError, match="is no folder of a run"):
        drop_records(tmp_path, seeds=[0])


@pytest.mark.parametrize("resume", ["missing", "failed", "changed", "all"])
def test_a_run_into_packed_records_is_told_how_to_unpack_them(out, resume):
    path = pack(out)
    before = path.read_bytes()
    with pytest.raises(InputError, match=rf"unpack it with 'xz -d {re.escape(str(path))}', or give another folder$"):
        run(out, TOY + "Halves", resume=resume)
    with pytest.raises(InputError, match="unpack it with"):
        drop_records(out, solvers=[TOY + "Halves"])
    assert path.read_bytes() == before
    assert not (out / "records.jsonl").exists()
    path.with_suffix("").write_bytes(lzma.decompress(before))
    with pytest.raises(InputError, match=r"expected one of them"):
        run(out, TOY + "Halves", resume=resume)
    path.unlink()
    assert len(run(out, TOY + "Mirrored")) == 3


def test_packed_records_are_reported_ranked_and_verified(out):
    expected = run(out, TOY + "Halves", resume="none")
    before = render([rank(board) for board in load_boards([out])])
    pack(out)
    assert texts(run(out, TOY + "Halves", resume="none")) == texts(expected)
    assert render([rank(board) for board in load_boards([out])]) == before
    report = verify(out, trust=[CountCost.name])
    assert report.verdict == "verified"
    assert len(report.rows) == 6
    assert report.rows[0].where == f"{out / 'records.jsonl.xz'}:1"


def test_records_hold_all_arguments_and_the_digest_of_the_source(out):
    (record, *_) = run(out, SolverSpec(TOY + "Tuned"), limit=1)
    assert (record.solver_settings, record.resolved_settings) == ({}, {"k": 0})
    source = Path(sys.modules["evaluation_toys"].__file__).read_bytes()
    assert record.source_digest == hashlib.sha256(source).hexdigest()


def test_a_changed_source_is_told_and_can_be_solved_again(tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "my_changing_solver.py"
    code = "from evaluation_toys import {0}\nclass Mine({0}):\n    pass\n"
    source.write_text(code.format("Halves"))
    sets = {"isolate": True}  # every run imports it afresh
    assert [r.total_ms for r in run(tmp_path / "out", "my_changing_solver:Mine", limit=1, **sets)] == [2.0]
    source.write_text(code.format("Lopsided") + "    # another size\n")
    assert [r.total_ms for r in run(tmp_path / "out", "my_changing_solver:Mine", limit=1, **sets)] == [2.0]
    assert "the source of my_changing_solver:Mine has changed since 1 records were made" in caplog.text
    report = verify(tmp_path / "out", trust=[CountCost.name, "my_changing_solver:Mine"], solve=True)
    assert report.rows[0].reason.endswith("the source of the solver has changed since")
    changed = run(tmp_path / "out", "my_changing_solver:Mine", limit=1, resume="changed", **sets)
    assert [r.total_ms for r in changed] == [3.0]


def test_a_record_without_a_digest_is_not_told(out, caplog):
    (record, *_) = run(out, SolverSpec(TOY + "Tuned"), limit=1)
    path = out / "records.jsonl"
    text = path.read_text()
    for digest, is_told in (("", False), ("0" * 64, True)):
        caplog.clear()
        path.write_text(text.replace(record.source_digest, digest))
        run(out, SolverSpec(TOY + "Tuned"), limit=1)
        assert ("has changed since" in caplog.text) == is_told, digest


@pytest.mark.parametrize("isolate", [True, False])
def test_classes_and_solvers_that_were_made_take_part(tmp_path, isolate):
    """A class by the name that makes it again; an object with the arguments that it keeps."""

    class Local(Halves):
        """Cannot be pickled."""

    results = run(tmp_path, Local, Lopsided, Tuned(3), limit=1, isolate=isolate)
    assert [r.solver for r in results] == ["test_store:Local", TOY + "Lopsided", TOY + "Tuned"]
    assert [r.solver_settings for r in results] == [{}, {}, {"k": 3}]
    assert [r.status for r in results] == ["ok"] * 3
    report = verify(tmp_path, trust=[CountCost.name, TOY + "Lopsided", TOY + "Tuned"], solve=True)
    assert report.gaps == [
        "1 not solved again: the solver is 'test_store:Local': to import it, pass --trust test_store:Local"
    ]


def test_a_registered_class_has_its_registered_name(tmp_path):
    from baselines.greedy import SizeGreedy

    assert {r.solver for r in run(tmp_path, SizeGreedy, limit=1)} == {"size_greedy"}


def test_judge_and_oracle_come_from_a_track(tmp_path):
    track = Track(CostChoice(CountCost.name, {"tag": "lab"}), CostChoice("roofline"))
    (record,) = run(tmp_path / "own", TOY + "Halves", judge=None, oracle=None, track=track, limit=1)
    assert (record.judge, record.judge_settings, record.oracle) == (CountCost.name, {"tag": "lab"}, "roofline")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"track": "simulator"}, "track: a track is judge and oracle with their settings: leave those out"),
        ({"judge": None, "oracle": None}, "suite 'toys' has no tracks: give judge and oracle"),
        ({"oracle": None}, "oracle: expected the name of a cost or a cost model, got None"),
    ],
)
def test_half_a_track_is_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        run(tmp_path / "out", TOY + "Halves", **options)
    assert not (tmp_path / "out").exists()


def texts(results):
    return [result.to_json() for result in results]


class Vandal(Halves):
    """Does something to the folder of the run on the task with a batch of 65, or on the last one."""

    def __init__(self, what="", batch_size=65):
        self.what = what
        self.batch_size = batch_size

    def solve(self, task, cost, seed=0):
        folder = Path(os.environ["SHARDGYM_TEST_CALLS"])
        records = folder / "records.jsonl"
        if task.batch_size == self.batch_size and self.what == "edit":
            records.write_text(records.read_text().replace("2.0", "9.0"))
        elif task.batch_size == self.batch_size and self.what == "pipe":
            records.unlink()
            os.mkfifo(records)
        elif task.batch_size == self.batch_size and self.what == "folder":
            shutil.rmtree(folder)
        elif task.batch_size == self.batch_size:
            (folder / self.what).unlink()
        return super().solve(task, cost)


@pytest.mark.parametrize("batch_size", [65, 66])
@pytest.mark.parametrize("what", ["records.jsonl", "run.json", "edit", "pipe"])
def test_records_outlive_a_solver_that_changes_or_removes_them(tmp_path, monkeypatch, caplog, what, batch_size):
    monkeypatch.setenv("SHARDGYM_TEST_CALLS", str(tmp_path))
    vandal = SolverSpec("test_store:Vandal", {"what": what, "batch_size": batch_size})
    results = run(tmp_path, TOY + "Halves", vandal, TOY + "Lopsided", isolate=True)
    assert texts(read_records(tmp_path / "records.jsonl")) == texts(results)
    assert verify(tmp_path, trust=[CountCost.name]).verdict == "verified"
    assert f"somebody changed or removed files of {tmp_path}" in caplog.text
    assert len(list(tmp_path.glob("*.old"))) == (what != "records.jsonl")


def test_a_full_disk_is_told_as_that(tmp_path, monkeypatch):
    """Nothing is moved aside: the records that were there are whole."""
    run(tmp_path, TOY + "Halves", limit=1)
    before = (tmp_path / "records.jsonl").read_bytes()
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    with pytest.raises(InputError, match="only a part could be written; is the disk full"):
        run(tmp_path, TOY + "Halves")
    monkeypatch.undo()
    assert (tmp_path / "records.jsonl").read_bytes() == before
    assert not list(tmp_path.glob("*.old"))


def test_a_pipe_for_tracebacks_loses_them_and_nothing_else(tmp_path, caplog):
    os.mkfifo(tmp_path / "errors.log")
    assert [r.status for r in run(tmp_path, TOY + "Crashes", TOY + "Halves", limit=1)] == ["error", "ok"]
    assert "a traceback is lost" in caplog.text


def test_a_folder_that_is_removed_is_there_again(tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.setenv("SHARDGYM_TEST_CALLS", str(out))
    results = run(out, TOY + "Crashes", SolverSpec("test_store:Vandal", {"what": "folder"}), TOY + "Crashes")
    assert texts(read_records(out / "records.jsonl")) == texts(results)


def test_records_are_saved_elsewhere_where_the_folder_takes_none(tmp_path, monkeypatch):
    monkeypatch.setenv("SHARDGYM_TEST_CALLS", str(tmp_path / "out"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    write = Path.rename
    monkeypatch.setattr(Path, "rename", lambda self, target: (_ for _ in ()).throw(PermissionError("read-only")))
    with pytest.raises(InputError, match=r"was changed during the run, the records are in (.*): read-only") as caught:
        run(tmp_path / "out", SolverSpec("test_store:Vandal", {"what": "edit"}))
    monkeypatch.setattr(Path, "rename", write)
    (saved,) = tmp_path.glob("shardgym-records-*/records.jsonl")
    assert str(saved) in str(caught.value)
    assert [r.task_index for r in read_records(saved)] == [0]
