"""Run a part of the boards again and say how far it agrees: `python tools/reproduce.py [--minutes N] [--out DIR]`.

The part: on `dlrm4-v1` and `dlrm8-v1`, simulated, the first ten tasks; on `quick-v1`, measured with FBGEMM kernels, as
many tasks as fit into the minutes. Solvers and seed are those of the README's table. For every board it prints how many
plans are the same ones, Kendall's tau between the order of the solvers then and now, and for every solver the geometric
mean over tasks of its cost now over its cost then, with a 95 % bootstrap interval. Where times are measured, costs are
relative to those of the base on the same task first, so that the speed of the machine cancels.

Exit code 1 when a claim of the README (`CLAIMS`) no longer holds, when costs of a simulated board differ, or when a
board could not be run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.errors import ShardGymError
from shardgym.evaluation import read_records
from shardgym.evaluation.result import RECORDS, Key, Result
from shardgym.leaderboard.statistics import Interval, bootstrap_mean
from shardgym.pretraining.assess import kendall_tau

ROOT = Path(__file__).parents[1]
BASE = "size_lookup_greedy"
SOLVERS = ("random", "size_greedy", "dim_greedy", "lookup_greedy", BASE, "neuroshard", "neuroshard_plus")
#: Of costs that a deterministic judge gives the same plan here and there.
SAME = 1e-6
#: Of a solver's mean cost on a simulated board, where processors round another plan into the lead.
TOLERATED = 0.01


class Part(NamedTuple):
    """A part of a board that is run again.

    Attributes:
        board: folder below leaderboards/.
        suite: its suite.
        cost: its judge.
        limit: number of tasks; None for all.
    """

    board: str
    suite: str
    cost: str
    limit: int | None

    @property
    def measured(self) -> bool:
        """Whether times are taken here."""
        return self.cost == "fbgemm"


PARTS = (
    Part("dlrm4-v1-simulator", "dlrm4-v1", "simulator", 10),
    Part("dlrm8-v1-simulator", "dlrm8-v1", "simulator", 10),
    Part("quick-v1-fbgemm", "quick-v1", "fbgemm", None),
)


class Claim(NamedTuple):
    """What the README's table says: plans of a solver cost less than those of each rival, in the geometric mean."""

    solver: str
    rivals: Sequence[str]


CLAIMS = tuple(Claim(solver, SOLVERS[:5]) for solver in ("neuroshard", "neuroshard_plus"))


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the measured board (default: 10)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reproduce", help="where new records go")
    parser.add_argument(
        "--board", action="append", choices=[part.board for part in PARTS], help="only these; repeatable"
    )
    options = parser.parse_args(arguments)
    failed: list[str] = []
    for part in PARTS:
        if options.board and part.board not in options.board:
            continue
        try:
            run_again(part, options.out / part.board, 60 * options.minutes)
            old = read_records(ROOT / "leaderboards" / part.board / RECORDS)
            failed += compare(part, old, read_records(options.out / part.board / RECORDS))
        except ShardGymError as error:
            failed.append(f"{part.board}: {error}")
    print("\n".join(["", *failed, "NOT REPRODUCED" if failed else "reproduced: every claim holds"]))
    return 1 if failed else 0


def run_again(part: Part, out: Path, seconds: float) -> None:
    """Run the solvers into a folder, which goes on where it was; a measured run is ended when its time is over."""
    command = ["run", "--suite", part.suite, "--cost", part.cost, "--out", str(out), "--json"]
    command += [word for solver in SOLVERS for word in ("--solver", solver)]
    command += [] if part.limit is None else ["--limit", str(part.limit)]
    print(f"{part.board}: shardgym {' '.join(command)}", file=sys.stderr, flush=True)
    with subprocess.Popen([sys.executable, "-m", "shardgym", *command], stdout=subprocess.DEVNULL) as process:
        try:
            process.wait(seconds if part.measured else None)
        except subprocess.TimeoutExpired:
            process.terminate()  # what is recorded stays


def compare(part: Part, old: Sequence[Result], new: Sequence[Result]) -> list[str]:
    """Print how far new records agree with old ones; return what does not."""
    stored = {r.key: r for r in old if r.status == "ok"}
    fresh = {r.key: r for r in new if r.status == "ok" and r.key in stored}
    tasks = sorted(set.intersection(*({k[0] for k in fresh if k[1] == solver} for solver in SOLVERS)))
    if not tasks:
        return [f"{part.board}: no task was solved by all solvers here and there: give it more --minutes"]
    then, now = (costs_of(records, tasks) for records in (stored, fresh))
    same = [_plan(stored[key]) == _plan(fresh[key]) for key in fresh]
    rows: list[dict[str, Any]] = []
    failed = []
    for solver in SOLVERS:
        logs = np.log(now[solver] / then[solver])
        if part.measured:
            logs = logs - np.log(now[BASE] / then[BASE])
        interval = bootstrap_mean(logs)
        ratio = float(np.exp(logs.mean()))
        rows.append({"solver": solver, "now / then": f"{ratio:.4f}", "95 % interval": _text(interval)})
        if not part.measured and abs(ratio - 1) > TOLERATED:
            failed.append(f"{part.board}: costs of {solver} are {ratio:.4f} times those of the board")
    if not part.measured:
        moved = [k for k in fresh if _plan(stored[k]) == _plan(fresh[k])
                 and abs(fresh[k].total_ms / stored[k].total_ms - 1) > SAME]  # fmt: skip
        failed += [f"{part.board}: {len(moved)} equal plans have other costs"] if moved else []
    means = [np.array([np.log(costs[solver]).mean() for solver in SOLVERS]) for costs in (then, now)]
    print(f"\n{part.board}: {len(tasks)} tasks, {sum(same)} of {len(same)} plans are the same ones, "
          f"Kendall's tau of the order of solvers {kendall_tau(*means):.2f}\n")  # fmt: skip
    print(tabulate(rows, headers="keys", disable_numparse=True), flush=True)
    for claim in CLAIMS if part.measured else ():
        for rival in claim.rivals:
            logs = np.log(now[claim.solver] / now[rival])
            interval = bootstrap_mean(logs)
            verdict = (
                "open" if interval is None or interval.contains(0.0) else "holds" if interval.high < 0 else "FAILS"
            )
            ratio = float(np.exp(logs.mean()))
            print(f"  {verdict}: {claim.solver} {ratio:.3f} times {rival}, {_text(interval)}")
            if verdict == "FAILS":
                failed.append(f"README: {claim.solver} is no longer cheaper than {rival} ({ratio:.3f} times)")
    return failed


def costs_of(records: Mapping[Key, Result], tasks: Sequence[int]) -> dict[str, Floats]:
    """Return the costs of every solver on tasks, with the first seed that there is."""
    first: dict[tuple[int, str], float] = {}
    for (task, solver, _), result in sorted(records.items()):
        first.setdefault((task, solver), result.total_ms)
    return {solver: np.array([first[task, solver] for task in tasks]) for solver in SOLVERS}


def _plan(result: Result) -> str:
    return "" if result.plan is None else result.plan.digest


def _text(interval: Interval | None) -> str:
    return "too few tasks" if interval is None else f"{np.exp(interval.low):.3f} .. {np.exp(interval.high):.3f}"


if __name__ == "__main__":
    sys.exit(main())
