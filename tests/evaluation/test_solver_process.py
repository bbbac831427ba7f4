"""Solvers are isolated processes: whatever one does takes its own plan with it, and the run goes on and says so."""

import ctypes
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from evaluation_toys import TOY, CountCost, DriftingCost, Halves, ToySuite, toy_tasks

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.evaluation import evaluate, read_records
from shardgym.evaluation.running_solver import RunningSolver
from shardgym.evaluation.solver_spec import SolverSpec

THIS = "test_solver_process:"


class OnTheSecondTask(Halves):
    """Does something odd on the task with a batch of 65, and counts its calls."""

    calls = 0

    def solve(self, task, cost, seed=0):
        self.calls += 1
        if task.batch_size == 65:
            self.odd()
        return super().solve(task, cost)

    def odd(self):
        raise NotImplementedError


class Leaves(OnTheSecondTask):
    def odd(self):
        os._exit(0)


class Segfaults(OnTheSecondTask):
    def odd(self):
        ctypes.string_at(0)


class PressesKeys(OnTheSecondTask):
    def odd(self):
        raise KeyboardInterrupt("no user did that")


class NeverEnds(OnTheSecondTask):
    def odd(self):
        while True:
            time.sleep(60)


class ReadsTheTerminal(OnTheSecondTask):
    def odd(self):
        raise ValueError(f"read {sys.stdin.read()!r} and {os.read(0, 10)!r}")


class ReplacesTheClock(Halves):
    """As libraries do that freeze the time."""

    def solve(self, task, cost, seed=0):
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        time.perf_counter = time.process_time = lambda: 0.0
        return super().solve(task, cost)


class PrintsInC(Halves):
    def solve(self, task, cost, seed=0):
        os.write(1, b"from C\n")
        print("from Python")
        subprocess.run(["echo", "from a child"], check=True)
        return super().solve(task, cost)


class LeavesWhenMade(Halves):
    def __init__(self):
        os._exit(0)


class RefusesToBeMade(Halves):
    def __init__(self):
        raise KeyboardInterrupt("not me")


class Asks(Halves):
    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost)
        cost.evaluate(task, [plan])
        return plan


class Talks(Halves):
    def solve(self, task, cost, seed=0):
        logging.getLogger("shardgym.solvers.talks").info("seed %d", seed)
        Path(tempfile.mkdtemp(), "left").touch()
        return super().solve(task, cost)


def run(out, *names, limit=3, **options):
    options = {"judge": CountCost(), "oracle": "roofline", "timeout_s": 60.0} | options
    return evaluate(ToySuite(toy_tasks()), [THIS + name for name in names], out=out, limit=limit, **options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Leaves", "its process ended with exit code 0"),
        ("Segfaults", "its process was killed by signal 11 (SIGSEGV)"),
        ("PressesKeys", "KeyboardInterrupt: no user did that"),
        ("NeverEnds", "its process took longer than 1.5 s and was stopped"),
        ("ReadsTheTerminal", "ValueError: read '' and b''"),
    ],
)
def test_a_solver_takes_only_its_own_plan_with_it(tmp_path, caplog, name, reason):
    results = run(tmp_path, name, "Halves", timeout_s=1.5 if "1.5 s" in reason else 60.0)
    assert [r.status for r in results] == ["ok", "ok", "error", "ok", "ok", "ok"]
    assert results[2].reason.startswith(reason)
    assert len(read_records(tmp_path / "records.jsonl")) == 6
    if reason.startswith("its process"):  # is told at once
        assert f"test_solver_process:{name} on toys/1, seed 0: {reason}" in caplog.text


@pytest.mark.parametrize(("name", "why"), [
    ("LeavesWhenMade", "its process ended with exit code 0"), ("RefusesToBeMade", "KeyboardInterrupt: not me"),
])  # fmt: skip
def test_a_solver_that_cannot_be_made_is_an_error_before_anything_is_solved(tmp_path, name, why):
    with pytest.raises(InputError, match=f"'{THIS}{name}' cannot be made: {why}"):
        run(tmp_path / "out", name, "Halves")
    assert not (tmp_path / "out").exists()


def test_a_process_that_died_between_tasks_costs_nothing():
    """It is the solver of all tasks until it dies: one process, made once."""
    solver = RunningSolver(SolverSpec(THIS + "Halves"), CountCost(), timeout_s=60.0)
    try:
        solver.start()
        pids = []
        for _ in range(2):
            assert solver.solve(toy_tasks()[0], 0).plan is not None
            pids.append(solver._child.pid)
        os.kill(pids[0], signal.SIGKILL)
        while not solver._child.dead:
            time.sleep(0.01)
        assert solver.solve(toy_tasks()[0], 0).plan is not None
        assert pids[0] == pids[1] != solver._child.pid
    finally:
        solver.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_what_solvers_log_is_logged_here_and_their_temporary_files_are_gone(tmp_path, caplog, monkeypatch):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    with caplog.at_level(logging.INFO, "shardgym"):
        run(tmp_path / "out", "Talks", seeds=[7], limit=1)
    assert ("shardgym.solvers.talks", logging.INFO, "seed 7") in caplog.record_tuples
    assert not list(scratch.iterdir())


def test_classes_and_objects_of_this_session_work_in_processes_too(tmp_path):
    class Local(Halves):
        """Nothing can import it."""

        def __init__(self, why="", lock=None):
            self.why, self.lock = why, lock

    options = {"out": tmp_path, "judge": CountCost(), "oracle": "roofline", "limit": 1}
    (made,) = evaluate(ToySuite(toy_tasks()), [Local(why="not")], **options)
    assert made.source_digest == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert (made.status, made.resolved_settings) == ("ok", {"why": "not", "lock": None})
    with pytest.raises(InputError, match=r"cannot pickle.*: give a name or module:Class, or .*isolate=False"):
        evaluate(ToySuite(toy_tasks()), [Local(lock=threading.Lock())], **options)


def test_solvers_with_the_same_plan_share_one_measurement(tmp_path, monkeypatch):
    scored = []
    score = CountCost.score
    monkeypatch.setattr(CountCost, "score", lambda *given: scored.append(len(given[2])) or score(*given))
    solvers = [TOY + "Halves", SolverSpec(TOY + "Halves", label="again"), TOY + "Lopsided"]
    options = {"out": tmp_path, "oracle": "roofline", "limit": 1}
    first = evaluate(ToySuite(toy_tasks()), solvers, judge=DriftingCost("lab"), **options)
    assert scored == [2]
    assert first[0].cost == first[1].cost != first[2].cost
    more = [*solvers, SolverSpec(TOY + "Lopsided", label="more")]
    every = evaluate(ToySuite(toy_tasks()), more, judge=DriftingCost("lab"), **options)
    assert scored == [2, 2]
    assert [result.cost for result in every] == [first[0].cost, first[1].cost, first[2].cost, first[2].cost]


def test_an_oracle_that_measures_is_asked_in_this_process(tmp_path):
    oracle = DriftingCost("lab")
    (record,) = run(tmp_path, "Asks", oracle=oracle, limit=1)
    assert (record.status, oracle.calls) == ("ok", [("toys/0", 1)])
    with pytest.raises(InputError, match=r"isolate: oracle .* measures, so solvers run in this process: leave it out"):
        run(tmp_path, "Asks", oracle=oracle, limit=1, isolate=True)


def test_time_is_taken_by_the_run_whatever_a_solver_makes_of_its_clocks(tmp_path):
    results = run(tmp_path, "ReplacesTheClock")
    assert [r.status for r in results] == ["ok"] * 3
    assert all(r.solve_time_s >= 0.05 and r.cpu_time_s >= 0.05 for r in results)


def test_what_solvers_print_does_not_get_into_json(tmp_path, capfd):
    command = ["run", "--suite", "tiny-v1", "--cost", "roofline", "--out", str(tmp_path), "--limit", "1", "--json"]
    assert main([*command, "--solver", THIS + "PrintsInC"]) in (0, 1)
    printed = capfd.readouterr()
    assert json.loads(printed.out)["files"]
    assert printed.err.count("from ") == 3


class Sleeps:
    """A solver that tells where its temporary files are and takes long."""

    def solve(self, task, cost, seed=0):
        folder = tempfile.mkdtemp()
        Path(os.environ["SHARDGYM_TEST_CALLS"]).write_text(folder)
        time.sleep(60)


def test_sigterm_leaves_no_temporary_folders(tmp_path):
    told = tmp_path / "told.txt"
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    environment = os.environ | {"SHARDGYM_TEST_CALLS": str(told), "PYTHONPATH": os.pathsep.join(folders)}
    command = ["run", "--suite", "tiny-v1", "--cost", "roofline", "--solver", THIS + "Sleeps", "--limit", "1"]
    with subprocess.Popen(
        [sys.executable, "-m", "shardgym", *command, "--out", str(tmp_path / "out")],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not (told.exists() and told.read_text()):
            time.sleep(0.02)
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert errors.splitlines()[-1] == "shardgym: error: terminated; the same command resumes the run"
    assert not Path(told.read_text()).parent.exists()
