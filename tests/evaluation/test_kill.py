"""Kill `shardgym run` at any moment: the records are whole and a resume finishes the rest."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from evaluation_toys import toy_tasks

from shardgym.evaluation import read_records
from shardgym.leaderboard import BASE

TASKS, SOLVERS = 15, ("evaluation_toys:Logged", "evaluation_toys:LoggedToo")


def keys(out):
    """Return solver class, or registered name, and task of every whole record."""
    path = out / "records.jsonl"
    return [(r.solver.rpartition(":")[2], f"toys/{r.task_index}") for r in read_records(path)] if path.exists() else []


def test_a_run_that_is_killed_again_and_again_solves_everything_once(tmp_path):
    """Two kills at random moments after the first records appear, then to the end."""
    suite, out, calls = tmp_path / "toys.json", tmp_path / "out", tmp_path / "calls.txt"
    suite.write_text(json.dumps([task.to_dict() for task in toy_tasks(TASKS)]))
    command = [sys.executable, "-m", "shardgym", "run", "--suite", str(suite), "--cost", "roofline", "--oracle",
               "roofline", "--out", str(out), *(part for name in SOLVERS for part in ("--solver", name))]  # fmt: skip
    environment = os.environ | {"SHARDGYM_TEST_CALLS": str(calls), "PYTHONPATH": str(Path(__file__).parents[1])}
    rng, kills = random.Random(2), 0
    for attempt in range(3):
        there = set(keys(out))
        calls.write_text("")
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if attempt < 2:
            while process.poll() is None and not calls.read_text():
                time.sleep(0.002)
            try:
                process.wait(timeout=rng.uniform(0, 0.2))
            except subprocess.TimeoutExpired:
                process.kill()
        _, errors = process.communicate()
        kills += process.returncode == -signal.SIGKILL
        solved = [tuple(line.split()[:2]) for line in calls.read_text().splitlines()]
        assert not there & set(solved), "solved something that had a record"
        assert len(keys(out)) == len(set(keys(out)))
    assert kills >= 1
    assert process.returncode == 0, errors.decode()
    solvers = [name.rpartition(":")[2] for name in (*SOLVERS, BASE)]
    assert sorted(keys(out)) == sorted((name, f"toys/{i}") for name in solvers for i in range(TASKS))
    assert all(line.endswith(b"}\n") for line in (out / "records.jsonl").read_bytes().splitlines(keepends=True))
