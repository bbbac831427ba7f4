"""Run a part of the boards again and say how far it agrees: `python tools/reproduce.py [--minutes N] [--out DIR]`.

The part: on `dlrm4-v2` and `dlrm8-v2`, simulated, the first ten tasks; on `quick-v1`, measured with FBGEMM kernels, as
many tasks as fit into the minutes. Solvers are those of the README's table, seed 0; on a board that it does not show,
those of them that have plans for six of the tasks there. For every board it prints how many plans are the same ones,
Kendall's tau between the order of the solvers then and now, and for every solver the geometric mean over tasks of its
cost now over its cost then, with a 95 % bootstrap interval. Where times are measured, costs are relative to those of
the base on the same task first, so that the speed of the machine cancels.

Then it gives a verdict on every claim that a table of the README makes: on each figure relative to the base, on each
two solvers of different rank that its records tell apart, and on each number of failures. A claim holds, is open where
the tasks are too few or too noisy to tell, or fails: the other solver is clearly cheaper now, the figure is off by more
than verify forgives a solver, or more plans fail.

Exit code 1 when a claim fails, when costs of a simulated board differ, when a board could not be run again on enough
tasks, or when the README has a table that is not run again.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.costs.base import is_repeatable
from shardgym.errors import InputError, ShardGymError
from shardgym.evaluation import read_records
from shardgym.evaluation.result import PACKED_RECORDS, RECORDS, Key, Result
from shardgym.leaderboard import BASE
from shardgym.leaderboard.statistics import MIN_TASKS, Interval, clearly_ahead, mean_interval
from shardgym.pretraining.assess import kendall_tau

ROOT = Path(__file__).parents[1]
#: Of the README's table.
SOLVERS = ("random", "size_lookup_greedy", BASE, "neuroshard", "neuroshard_plus")
#: Of costs that a deterministic judge gives the same plan here and there.
SAME = 1e-6
#: Of a solver's mean cost on a simulated board, where processors round another plan into the lead.
TOLERATED = 0.01
#: Of a solver's mean cost on a measured board: it was off by 6 % on a machine that took 1.2 times as long.
MEASURED = 0.08
#: Seconds that a run which is told to end may take for it.
_END_S = 30.0
_BLOCK = re.compile(r"<!-- table: leaderboards/(\S+) -->\n(.*?)<!-- end -->", re.DOTALL)


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
        return not is_repeatable(self.cost)


PARTS = (
    Part("dlrm4-v2-simulator", "dlrm4-v2", "simulator", 10),
    Part("dlrm8-v2-simulator", "dlrm8-v2", "simulator", 10),
    Part("quick-v1-fbgemm", "quick-v1", "fbgemm", None),
)


class ClaimedRow(NamedTuple):
    """What a row of a table of the README says.

    Attributes:
        solver: its name.
        ratio: of its costs over those of the base.
        failed: share of records without a cost.
    """

    solver: str
    ratio: float
    failed: float


class Verdict(NamedTuple):
    """What became of a claim: "holds", "open" or "FAILS", and the claim with the figures of now."""

    outcome: str
    claim: str


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the measured board (default: 10)")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "reproduce", help="where new records go")
    parser.add_argument(
        "--board", action="append", choices=[part.board for part in PARTS], help="only these; repeatable"
    )
    options = parser.parse_args(arguments)
    tables = readme_tables((ROOT / "README.md").read_text(encoding="utf-8"))
    again = {part.board for part in PARTS}
    failed = [f"README: no part runs {board} again, whose table it shows" for board in tables if board not in again]
    verdicts: list[Verdict] = []
    for part in PARTS:
        if options.board and part.board not in options.board:
            continue
        rows = tables.get(part.board, [])
        out = options.out / part.board
        try:
            old = read_records(ROOT / "leaderboards" / part.board / PACKED_RECORDS)
            failed += run_again(part, solvers_of(part, old, rows), out, 60 * options.minutes)
            differing, own = compare(part, old, read_records(out / RECORDS), rows)
        except ShardGymError as error:
            failed.append(f"{part.board}: {error}")
            continue
        failed += differing
        verdicts += own
    failed += [f"README: FAILS: {verdict.claim}" for verdict in verdicts if verdict.outcome == "FAILS"]
    counts = {outcome: sum(v.outcome == outcome for v in verdicts) for outcome in ("holds", "open", "FAILS")}
    told = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print("\n".join(["", *failed, f"claims of the README: {told}", "NOT REPRODUCED" if failed else "reproduced"]))
    return 1 if failed else 0


def readme_tables(text: str) -> dict[str, list[ClaimedRow]]:
    """Return what the tables of a page claim, by the folder below leaderboards/ that each is made from."""
    tables = {}
    for board, block in _BLOCK.findall(text):
        lines = [
            [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line[:1] == "|"
        ]
        header, _, *rows = lines
        cells = [dict(zip(header, row, strict=True)) for row in rows]
        tables[board] = [
            ClaimedRow(
                row["solver"],
                float(row[f"vs {BASE}"]),
                float(row["failed"].rstrip(" %")) / 100,
            )
            for row in cells
        ]
    return tables


def solvers_of(part: Part, old: Sequence[Result], claimed: Sequence[ClaimedRow]) -> list[str]:
    """Return the solvers of a claimed table, else those of `SOLVERS` with enough plans in the records of the board.

    Raises:
        InputError: nobody has enough of them.
    """
    if claimed:
        return [row.solver for row in claimed]
    solved = {(r.solver, r.task_index) for r in old if r.status == "ok" and r.task_index < (part.limit or math.inf)}
    counts = Counter(solver for solver, _ in solved)
    chosen = [solver for solver in SOLVERS if counts[solver] >= MIN_TASKS]
    if not chosen:
        raise InputError(f"no solver of {', '.join(SOLVERS)} has plans for {MIN_TASKS} of the tasks on the board")
    return chosen


def run_again(part: Part, solvers: Sequence[str], out: Path, seconds: float) -> list[str]:
    """Run solvers into a folder, whose older records are moved aside; a measured run is ended when its time is over.

    Returns:
        Why it could not be run; nothing where it was, with failures or without.
    """
    command = ["run", "--suite", part.suite, "--cost", part.cost, "--out", str(out), "--resume", "all", "--json"]
    command += [word for solver in solvers for word in ("--solver", solver)]
    command += [] if part.limit is None else ["--limit", str(part.limit)]
    print(f"{part.board}: shardgym {' '.join(command)}", file=sys.stderr, flush=True)
    with subprocess.Popen([sys.executable, "-m", "shardgym", *command], stdout=subprocess.DEVNULL) as process:
        try:
            code = process.wait(seconds if part.measured else None)
        except subprocess.TimeoutExpired:
            process.terminate()  # what is recorded stays
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            return []
    return [] if code in (0, 1) else [f"{part.board}: the run ended with exit code {code}"]


def compare(
    part: Part, old: Sequence[Result], new: Sequence[Result], claimed: Sequence[ClaimedRow] = ()
) -> tuple[list[str], list[Verdict]]:
    """Print how far new records agree with old ones; return what differs and should not, and verdicts on claims."""
    solvers = solvers_of(part, old, claimed)
    stored = {r.key: r for r in old if r.status == "ok"}
    fresh = {r.key: r for r in new if r.status == "ok" and r.key in stored}
    tasks = sorted(set.intersection(*({k[0] for k in fresh if k[1] == solver} for solver in solvers)))
    if len(tasks) < MIN_TASKS:
        few = f"{len(tasks)} tasks were solved by all solvers here and there, expected at least {MIN_TASKS}"
        return [f"{part.board}: {few}{': give it more --minutes' if part.measured else ''}"], []
    then, now = (costs_of(records, tasks, solvers) for records in (stored, fresh))
    same = [_plan(stored[key]) == _plan(fresh[key]) for key in fresh]
    rows: list[dict[str, Any]] = []
    failed = []
    for solver in solvers:
        logs = np.log(now[solver] / then[solver])
        if part.measured:
            logs = logs - np.log(now[BASE] / then[BASE])
        ratio = float(np.exp(logs.mean()))
        rows.append({"solver": solver, "now / then": f"{ratio:.4f}", "95 % interval": _text(mean_interval(logs))})
        if not part.measured and abs(ratio - 1) > TOLERATED:
            failed.append(f"{part.board}: costs of {solver} are {ratio:.4f} times those of the board")
    if not part.measured:
        moved = [k for k in fresh if _plan(stored[k]) == _plan(fresh[k])
                 and abs(fresh[k].total_ms / stored[k].total_ms - 1) > SAME]  # fmt: skip
        failed += [f"{part.board}: {len(moved)} equal plans have other costs"] if moved else []
    means = [np.array([np.log(costs[solver]).mean() for solver in solvers]) for costs in (then, now)]
    tags = {result.hardware for result in fresh.values()} - {result.hardware for result in stored.values()}
    where = f", on {', '.join(sorted(tags))}" if tags else ""
    print(f"\n{part.board}: {len(tasks)} tasks{where}, {sum(same)} of {len(same)} plans are the same ones, "
          f"Kendall's tau of the order of solvers {kendall_tau(*means):.2f}\n")  # fmt: skip
    print(tabulate(rows, headers="keys", disable_numparse=True), flush=True)
    verdicts = list(check_claims(claimed, then, now, new))
    print("\n".join([""] * bool(verdicts) + [f"  {outcome}: {claim}" for outcome, claim in verdicts]), flush=True)
    return failed, verdicts


def check_claims(
    claimed: Sequence[ClaimedRow], then: Mapping[str, Floats], now: Mapping[str, Floats], new: Sequence[Result]
) -> Iterator[Verdict]:
    """Yield a verdict on every claim of a table.

    Args:
        claimed: its rows.
        then: costs by solver on the tasks that are compared, in the records of the table.
        now: the same in new records.
        new: all new records.
    """
    for row in claimed:
        if row.solver != BASE:
            logs = np.log(now[row.solver] / now[BASE])
            off = logs - np.log(then[row.solver] / then[BASE])
            outcome = "holds"
            if abs(np.exp(off.mean()) - 1) > MEASURED:
                interval = mean_interval(off)
                outcome = "open" if interval is None or interval.contains(0.0) else "FAILS"
            told = f"{row.solver} costs {row.ratio:.3f} times {BASE}"
            yield Verdict(outcome, f"{told}; here {np.exp(logs.mean()):.3f} times, {_text(mean_interval(logs))}")
        ran = [result for result in new if result.solver == row.solver]
        failures = sum(result.status != "ok" for result in ran)
        told = f"{row.solver} fails on {row.failed:.3g} of all tasks; here on {failures} of {len(ran)}"
        # A table rounds shares to three digits.
        yield Verdict("holds" if failures <= (row.failed + 0.0005) * len(ran) else "FAILS", told)
    ahead = clearly_ahead(np.log([then[row.solver] for row in claimed])) if claimed else np.zeros((0, 0))
    for first, second in np.argwhere(ahead):
        solver, other = claimed[first].solver, claimed[second].solver
        logs = np.log(now[solver] / now[other])
        interval = mean_interval(logs)
        outcome = "open" if interval is None or interval.contains(0.0) else "holds"
        if interval is not None and interval.low > 0:
            outcome = "FAILS"
        told = f"{solver} is clearly ahead of {other}"
        yield Verdict(outcome, f"{told}; here {np.exp(logs.mean()):.3f} times its cost, {_text(interval)}")


def costs_of(records: Mapping[Key, Result], tasks: Sequence[int], solvers: Sequence[str]) -> dict[str, Floats]:
    """Return the costs of solvers on tasks, with the first seed that there is."""
    first: dict[tuple[int, str], float] = {}
    for (task, solver, _), result in sorted(records.items()):
        first.setdefault((task, solver), result.total_ms)
    return {solver: np.array([first[task, solver] for task in tasks]) for solver in solvers}


def _plan(result: Result) -> str:
    return "" if result.plan is None else result.plan.digest


def _text(interval: Interval | None) -> str:
    return "too few tasks" if interval is None else f"{np.exp(interval.low):.3f} .. {np.exp(interval.high):.3f}"


if __name__ == "__main__":
    sys.exit(main())
