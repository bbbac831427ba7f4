"""Solvers are guests: whatever one does takes its own plan with it, and the run goes on and says so."""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from evaluation_toys import CountCost, DriftingCost, Halves, ToySuite, toy_tasks

from shardgym.cli import main
from shardgym.errors import InputError
from shardgym.evaluation import evaluate, read_records, verify
from shardgym.evaluation.solver_process import SolverProcess
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


class EndsGenerators(OnTheSecondTask):
    def odd(self):
        raise GeneratorExit


class ReturnsTwice(OnTheSecondTask):
    def odd(self):
        os.fork()


class LeavesACopy(OnTheSecondTask):
    """The copy goes on and holds what the process held."""

    def odd(self):
        if os.fork():
            os._exit(3)
        time.sleep(60)


class ClosesEverything(OnTheSecondTask):
    def odd(self):
        os.closerange(3, 100)


class NeverEnds(OnTheSecondTask):
    def odd(self):
        while True:
            time.sleep(60)


class HoldsTheInterpreter(OnTheSecondTask):
    """No thread of the process runs meanwhile."""

    def odd(self):
        ctypes.PyDLL(None).sleep(60)


class ReadsTheTerminal(OnTheSecondTask):
    def odd(self):
        raise ValueError(f"read {sys.stdin.read()!r} and {os.read(0, 10)!r}")


class ReplacesTheClock(OnTheSecondTask):
    """As libraries do that freeze the time."""

    def odd(self):
        time.perf_counter = lambda: 0.0


class LeavesWhenMade(Halves):
    def __init__(self):
        os._exit(0)


class RefusesToBeMade(Halves):
    def __init__(self):
        raise KeyboardInterrupt("not me")


class Talks(Halves):
    def solve(self, task, cost, seed=0):
        logging.getLogger("shardgym.solvers.talks").info("seed %d", seed)
        Path(tempfile.mkdtemp(), "left").touch()
        return super().solve(task, cost)


class Asks(Halves):
    """Queries a measured oracle, which works in another process."""

    def solve(self, task, cost, seed=0):
        plan = super().solve(task, cost)
        (answer,) = cost.evaluate(task, [plan])
        assert (answer.total_ms, cost.hardware, cost.settings()) == (2.0, "lab", {"tag": "lab"})
        return plan


def run(out, *names, limit=3, **options):
    options = {"judge": CountCost(), "oracle": "roofline", "timeout_s": 0.5} | options
    return evaluate(ToySuite(toy_tasks()), [THIS + name for name in names], out=out, limit=limit, **options)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Leaves", "its process ended with exit code 0"),
        ("Segfaults", "its process was killed by signal 11 (SIGSEGV)"),
        ("PressesKeys", "KeyboardInterrupt: no user did that"),
        ("EndsGenerators", "GeneratorExit"),
        ("LeavesACopy", "its process ended with exit code 3"),
        ("ClosesEverything", "its process"),
        ("NeverEnds", "it took longer than 0.5 s and was stopped"),
        ("HoldsTheInterpreter", "it took longer than 0.5 s and was stopped"),
        ("ReadsTheTerminal", "ValueError: read '' and b''"),
        ("ReplacesTheClock", "its call cannot be recorded: Answer: seconds: expected at least 0.0, got -"),
    ],
)
def test_a_solver_takes_only_its_own_plan_with_it(tmp_path, name, reason):
    results = run(tmp_path, name, "Halves")
    assert [r.status for r in results] == ["ok", "ok", "error", "ok", "ok", "ok"]
    assert results[2].reason.startswith(reason)
    assert len(read_records(tmp_path / "records.jsonl")) == 6


def test_the_end_of_a_solver_is_told_at_once(tmp_path, caplog):
    run(tmp_path, "Leaves")
    text = "test_solver_process:Leaves on toys/1, seed 0: its process ended with exit code 0; the run goes on"
    assert text in caplog.text


def test_a_solver_that_forks_and_returns_twice_has_one_record(tmp_path):
    results = run(tmp_path, "ReturnsTwice")
    assert [r.status for r in results] == ["ok"] * 3
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(("name", "why"), [
    ("LeavesWhenMade", "its process ended with exit code 0"), ("RefusesToBeMade", "KeyboardInterrupt: not me"),
])  # fmt: skip
def test_a_solver_that_cannot_be_made_is_an_error_before_anything_is_solved(tmp_path, name, why):
    with pytest.raises(InputError, match=f"'{THIS}{name}' cannot be made: {why}"):
        run(tmp_path / "out", name, "Halves")
    assert not (tmp_path / "out").exists()


def test_a_run_whose_solver_exits_does_not_end_with_0(tmp_path, capsys):
    suite = tmp_path / "toys.json"
    suite.write_text(json.dumps([task.to_dict() for task in toy_tasks()]))
    command = ["run", "--suite", str(suite), "--cost", "roofline", "--out", str(tmp_path / "out")]
    assert main([*command, "--solver", THIS + "LeavesWhenMade"]) == 2
    assert main([*command, "--solver", THIS + "Leaves"]) == 1
    assert "on task 1, error: its process ended with exit code 0" in capsys.readouterr().err


def test_a_process_that_died_between_tasks_costs_nothing():
    """It is the solver of all tasks until it dies: one process, made once."""
    host = SolverProcess(SolverSpec(THIS + "Halves"), CountCost(), timeout_s=5.0)
    task = toy_tasks()[0]
    try:
        host.start()
        pids = []
        for _ in range(2):
            assert host.solve(task, 0, None, None).failure is None
            pids.append(host._pid)
        os.kill(pids[0], signal.SIGKILL)
        time.sleep(0.1)
        assert host.solve(task, 0, None, None).failure is None
        assert pids[0] == pids[1] != host._pid
    finally:
        host.close()
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


def test_an_oracle_that_measures_stays_with_the_run(tmp_path):
    """Its calls are counted here, not in the process of a solver."""
    oracle = DriftingCost("lab")
    (record,) = run(tmp_path, "Asks", oracle=oracle, limit=1)
    assert record.status == "ok", record.reason
    assert oracle.calls == [("toys/0", 1)]


def test_a_solver_that_never_ends_is_not_solved_again(tmp_path, monkeypatch):
    monkeypatch.setattr(NeverEnds, "odd", lambda self: None)
    run(tmp_path, "NeverEnds", limit=2, judge=CountCost.name)
    monkeypatch.undo()
    trust = [CountCost.name, THIS + "NeverEnds"]
    report = verify(tmp_path, trust=trust, solve=True, timeout_s=0.5)
    assert report.verdict == "partly verified"
    assert f"1 not solved again: {THIS}NeverEnds takes longer than 0.5 s: --timeout gives it more" in report.gaps


class Hungry(Halves):
    """Asks for 64 GiB, as settings of a stranger's record may make a solver do."""

    def __init__(self, gibibytes=0):
        self.gibibytes = gibibytes

    def solve(self, task, cost, seed=0):
        multiprocessing.RawArray("b", 1)  # what a process has besides
        assert len(bytearray(self.gibibytes * 2**30)) == self.gibibytes * 2**30
        return super().solve(task, cost)


def test_memory_can_be_limited():
    for gibibytes, failure in [(0, None), (64, "error")]:
        spec = SolverSpec(THIS + "Hungry", {"gibibytes": gibibytes})
        host = SolverProcess(spec, CountCost(), timeout_s=20.0, max_bytes=2**30)
        try:
            host.start()
            attempt = host.solve(toy_tasks()[0], 0, None, None)
            assert attempt.failure == failure
            assert failure is None or "MemoryError" in attempt.reason
        finally:
            host.close()


def test_processes_end_with_the_run(tmp_path):
    """The run is killed while a solver sleeps: nobody is left to stop it."""
    code = (
        "import os, sys; sys.path[:0] = sys.argv[1:3]; from evaluation_toys import *\n"
        "class Sleeps:\n"
        "    def solve(self, task, cost, seed=0):\n"
        "        print(os.getpid(), flush=True); time.sleep(60)\n"
        "import shardgym\n"
        "from shardgym.evaluation import evaluate\n"
        "sys.modules['mine'] = sys.modules['__main__']\n"
        "evaluate(ToySuite(toy_tasks()), ['mine:Sleeps'], out=sys.argv[3], judge=CountCost(), oracle='roofline')\n"
    )
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen([sys.executable, "-c", code, *folders], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        process.kill()
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text().split()[2]:
            return
        time.sleep(0.05)
    raise AssertionError("the solver's process outlived the run")


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
    command = [
        "run",
        "--suite",
        "tiny-v1",
        "--cost",
        "roofline",
        "--solver",
        "test_solver_process:Sleeps",
        "--limit",
        "1",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "shardgym", *command, "--out", str(tmp_path / "out")],
        env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        while process.poll() is None and not (told.exists() and told.read_text()):
            time.sleep(0.02)
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 143
    assert errors.splitlines()[-1] == "shardgym: error: terminated"
    assert not Path(told.read_text()).parent.exists()
