"""Run parts of three boards again and verify them: `python tools/reproduce.py [--minutes N] [--out DIR]`.

The solvers of the README's table run on the first ten or twenty tasks of two simulated boards, and for as many minutes
on those of its measured board. The new records are verified, and the costs of every solver, geometric mean over tasks,
are held against those of the board: they may differ by 1 % where a simulator judges. Where times are measured, costs
are over those of the base on the same task, and 8 % is allowed unless the 95 % interval holds no difference as well.
Exit code 1 where a solver's costs differ by more, a run or its check fails, or too few tasks were solved.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym import load_suite
from shardgym.evaluation import read_records
from shardgym.evaluation.result import PACKED_RECORDS, RECORDS, Result
from shardgym.leaderboard import BASE
from shardgym.leaderboard.statistics import MIN_TASKS, mean_interval

ROOT = Path(__file__).parents[1]


class Part(NamedTuple):
    """A part of a board: its suite, its judge, how many tasks, and by how much costs of a solver may differ."""

    suite: str
    cost: str
    limit: int
    allowed: float


PARTS = (
    Part("dlrm4-v2", "simulator", 10, 0.01),
    Part("dlrm8-v2", "simulator", 20, 0.01),  # some of the rules fail on most
    Part("quick-v2", "fbgemm", 8, 0.08),
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the measured board (default: 10)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reproduce", help="where new records go")
    options = parser.parse_args(arguments)
    failed: list[str] = []
    for part in PARTS:
        out = options.out / f"{part.suite}-{part.cost}"
        failed += run_again(part, out, 60 * options.minutes)
        old = read_records(ROOT / "leaderboards" / out.name / PACKED_RECORDS)
        failed += compare(part, old, read_records(out / RECORDS))
    print("\n".join(["", *failed, "NOT REPRODUCED" if failed else "reproduced"]))
    return 1 if failed else 0


def run_again(part: Part, out: Path, seconds: float) -> list[str]:
    """Run the solvers into a folder and verify it; a measured run ends when its time is over. Returns what failed."""
    command = ["run", "--suite", part.suite, "--cost", part.cost, "--limit", str(part.limit), "--out", str(out)]
    command += ["--resume", "all"]
    command += [word for solver in load_suite("quick-v2").solvers for word in ("--solver", solver)]
    failed = []
    for words in (command, ["verify", str(out)]):
        with subprocess.Popen([sys.executable, "-m", "shardgym", *words]) as process:
            try:
                code = process.wait(seconds if part.cost == "fbgemm" and words is command else None)
            except subprocess.TimeoutExpired:
                process.terminate()  # what is recorded stays
                code = 0
        if code:
            failed.append(f"{out.name}: 'shardgym {words[0]}' ended with exit code {code}")
    return failed


def compare(part: Part, old: list[Result], new: list[Result]) -> list[str]:
    """Print how far new costs of every solver are from old ones; returns the solvers whose costs differ too much."""
    costs: list[dict[tuple[int, str], float]] = [
        {(r.task_index, r.solver): r.total_ms for r in sorted(of, key=lambda r: -r.seed) if r.status == "ok"}
        for of in (old, new)
    ]
    shared = costs[0].keys() & costs[1].keys()
    rows = []
    failed = []
    # A solver that had plans on the board may have none any more.
    for solver in sorted({r.solver for r in new} & {name for _, name in costs[0]}):
        tasks = [task for task, name in shared if name == solver and (task, BASE) in shared]
        logs = np.array([np.log(costs[1][task, solver] / costs[0][task, solver]) for task in tasks])
        if part.cost == "fbgemm":
            logs -= np.array([np.log(costs[1][task, BASE] / costs[0][task, BASE]) for task in tasks])
        ratio = float(np.exp(logs.mean())) if tasks else np.nan
        interval = mean_interval(logs)
        rows.append({"solver": solver, "tasks": len(tasks), "now / then": ratio})
        if interval is None:
            failed.append(f"{part.suite}: {solver} has {len(tasks)} tasks in common, expected at least {MIN_TASKS}")
        elif abs(ratio - 1) > part.allowed and not (part.cost == "fbgemm" and interval.contains(0.0)):
            failed.append(f"{part.suite}: costs of {solver} are {ratio:.3f} times those of the board")
    print(f"\n{part.suite}, judged by {part.cost}\n\n{tabulate(rows, headers='keys', floatfmt='.4f')}")
    return failed or ([] if rows else [f"{part.suite}: no records in common"])


if __name__ == "__main__":
    sys.exit(main())
