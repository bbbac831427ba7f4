"""The overall table: what a solver scores over all measured suites, and beside it by models.

A score is a geometric mean of costs relative to those of `BASE`, over the tasks of each suite and then over suites,
which weigh alike. Failures count as on boards (`ranking.py`). Only solvers with all records of all suites of a column
have a score in it: one over fewer suites would be of other tasks.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import shardgym
from shardgym.arrays import Floats
from shardgym.errors import InputError
from shardgym.evaluation.result import Result, records_file
from shardgym.leaderboard.boards import BOUNDS, Board, SolverResults, load_boards
from shardgym.leaderboard.ranking import BASE, counted_costs, over_seeds
from shardgym.leaderboard.statistics import Interval, mean_interval_over_suites
from shardgym.leaderboard.tables import Column, duration, figure, json_ready, simulated_caution, table_text

#: The suites of scores, by the memory of their devices. Boards without a score are `quick-v2`, a first look at small
#: tasks, and suites that ask for what few solvers do: cuts by rows, several nodes, memory of hosts.
SUITES = {
    "half-full": ("dlrm4-v2", "dlrm8-v2", "wide8-v2"),  # twice what tables take, so that any balance is possible
    "tight": ("tight4-v2", "tight8-v2"),  # tables fill it by 50, 90 and 97 %
    "unequal": ("hetero4-v2",),  # filled alike, and shared out as 4 to 2 to 1 to 1
}
ALL_SUITES = tuple(itertools.chain(*SUITES.values()))
#: Tasks of the papers' sizes.
GPU_SUITES = ("dlrm4-gpu-v1", "dlrm8-gpu-v1")

MEASURED = "measured"
SIMULATED = "simulated"
#: Columns of scores: the judge and the suites of each. A board is in a folder SUITE-JUDGE.
SCORES = {
    MEASURED: ("fbgemm", ALL_SUITES),
    **{memory: ("fbgemm", suites) for memory, suites in SUITES.items()},
    SIMULATED: ("simulator", ALL_SUITES),
    "GPU-modelled": ("gpu", GPU_SUITES),
}
#: A plan at most this far above a lower bound is proven to be as near to the best one.
PROVEN = 0.05


class Score(NamedTuple):
    """What a solver scores over some suites; the lower, the better."""

    mean: float  #: geometric mean of its costs over those of the base
    interval: Interval | None  #: of 95 %, by a bootstrap over tasks; None for the base, and over too few tasks


@dataclass(frozen=True)
class OverallRow:
    """One solver of the overall table. Figures that do not exist are NaN."""

    solver: str  #: its name
    scores: dict[str, Score]  #: by column of `SCORES`, if it has all records of the column
    failed: int  #: of these records, those without a cost
    records: int  #: of measured boards, or of simulated ones where nothing was measured
    median_s: float  #: time per plan on measured boards
    proven: float  #: share of its plans proven within `PROVEN` of a lower bound, on tasks with a known bound


@dataclass(frozen=True)
class Overall:
    """The overall table, the best solver first."""

    rows: tuple[OverallRow, ...]  #: of solvers with a score
    boards: dict[str, tuple[Board, ...]]  #: that scores are taken over, by column
    bounded: tuple[Board, ...]  #: those with known lower bounds


def shipped_boards() -> Path:
    """Return the folder of the boards of the repository that shardgym is installed from.

    Raises:
        InputError: there is no such folder, as in an installed wheel.
    """
    folder = Path(shardgym.__file__).parents[1] / "leaderboards"
    if not folder.is_dir():
        raise InputError(
            f"{folder} does not exist: expected the boards of the repository; install shardgym from a clone with "
            "'pip install -e .', or name folders of runs"
        )
    return folder


def overall(folder: Path) -> Overall:
    """Score the solvers of the boards in a folder.

    Args:
        folder: holds a folder SUITE-JUDGE per board. What lies below those, boards of other machines, has no part.

    Raises:
        InputError: there is no measured board, boards were measured on different machines, or records are damaged.
    """
    names = {f"{suite}-{judge}" for judge, suites in SCORES.values() for suite in suites}
    bounded = {path.parent.name for path in folder.glob(f"*/{BOUNDS}")}
    files = {name: records_file(folder / name) for name in sorted(names | bounded)}
    boards = {name: load_boards([file])[0] for name, file in files.items() if file is not None}
    of_column = {
        column: tuple(boards[f"{suite}-{judge}"] for suite in suites if f"{suite}-{judge}" in boards)
        for column, (judge, suites) in SCORES.items()
    }
    machines = {board.run.hardware for board in of_column[MEASURED]}
    if len(machines) != 1:
        found = " and ".join(sorted(machines)) or "none"
        raise InputError(f"{folder}: expected boards such as {ALL_SUITES[0]}-fbgemm of one machine, found {found}")

    everyone = {name: SolverResults.of_board(board) for name, board in boards.items()}
    logs = {name: _relative_logs(own, boards[name].num_tasks) for name, own in everyone.items()}
    scores: dict[str, dict[str, Score]] = defaultdict(dict)
    for column, members in of_column.items():
        of_suites = [logs[board.folder.name] for board in members]
        for solver in set.intersection(*map(set, of_suites)) if of_suites else ():
            scores[solver][column] = _score(solver, [own[solver] for own in of_suites])
    measured, simulated = (_records_by_solver(of_column[column]) for column in (MEASURED, SIMULATED))
    proven: dict[str, list[bool]] = defaultdict(list)
    with_bounds = [name for name in sorted(bounded) if name in boards]
    for name in with_bounds:
        known = np.isfinite(boards[name].bound_ms)
        for own in everyone[name]:
            near = own.seed_ms[:, known] <= (1 + PROVEN) * boards[name].bound_ms[known]
            has_record = own.failed[:, known] | np.isfinite(own.seed_ms[:, known])
            proven[own.solver] += near[has_record].tolist()
    rows = [
        OverallRow(
            solver=solver,
            scores=own_scores,
            failed=sum(result.status != "ok" for result in measured[solver] or simulated[solver]),
            records=len(measured[solver] or simulated[solver]),
            median_s=statistics.median([result.solve_time_s for result in measured[solver]] or [math.nan]),
            proven=float(np.mean(proven[solver])) if proven[solver] else math.nan,
        )
        for solver, own_scores in scores.items()
    ]
    first = (MEASURED, SIMULATED, "GPU-modelled")
    rows.sort(key=lambda row: [*(row.scores[c].mean if c in row.scores else math.inf for c in first), row.solver])
    return Overall(tuple(rows), of_column, tuple(boards[name] for name in with_bounds))


def _records_by_solver(boards: tuple[Board, ...]) -> defaultdict[str, list[Result]]:
    records = defaultdict(list)
    for result in itertools.chain(*(board.results for board in boards)):
        records[result.solver].append(result)
    return records


def _relative_logs(everyone: list[SolverResults], num_tasks: int) -> dict[str, Floats]:
    """Return logarithms of relative costs of solvers that have all records, on tasks with a plan of the base."""
    counted, base_ms = counted_costs(everyone, num_tasks)
    kept = np.isfinite(base_ms)
    logs = {own.solver: (over_seeds(np.log(counted[own.solver])) - np.log(base_ms))[kept] for own in everyone}
    known = {solver for solver, own in logs.items() if own.size and np.isfinite(own).all()}
    return {own.solver: logs[own.solver] for own in everyone if own.is_complete and own.solver in known}


def _score(solver: str, logs: list[Floats]) -> Score:
    """Return the score of a solver from logarithms of relative costs, (T,) for each suite."""
    interval = None if solver == BASE else mean_interval_over_suites(logs)
    mean = math.exp(np.mean([own.mean() for own in logs]))
    return Score(mean, interval and Interval(math.exp(interval.low), math.exp(interval.high)))


def render_overall(table: Overall, style: str = "text", *, all_rows: bool = True) -> str:
    """Return the overall table, and below it what it covers.

    Args:
        table: what `overall` returned.
        style: "text" or "md".
        all_rows: whether solvers without a score over all measured suites have a row, too.
    """
    rows = [row for row in table.rows if all_rows or MEASURED in row.scores]
    columns = [
        Column("solver", [row.solver for row in rows]),
        *(Column(column, [_cell(row.scores.get(column), column) for row in rows]) for column in SCORES),
        Column("failed", [f"{row.failed} of {row.records}" if row.records else "-" for row in rows]),
        Column("proven", [figure(row.proven, f"{100 * row.proven:.0f} %") for row in rows]),
        Column("time/plan", [figure(row.median_s, duration(row.median_s)) for row in rows]),
    ]
    bullet = "- " if style == "md" else ""
    return "\n".join([table_text(columns, style), "", *(bullet + line for line in _notes(table))])


def _cell(score: Score | None, column: str) -> str:
    """Return e.g. "0.83 [0.78, 0.88]"; intervals are left out where nothing was measured."""
    if score is None:
        return "-"
    interval = score.interval if column in (MEASURED, *SUITES) else None
    return f"{score.mean:.2f}" + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def _notes(table: Overall) -> list[str]:
    """Say what scores are, and what they cover."""
    boards = table.boards
    run = boards[MEASURED][0].run
    tasks = sum(board.num_tasks for board in boards[MEASURED])
    suites = "; ".join(f"{memory}: {_suites(boards[memory])}" for memory in SUITES if boards[memory])
    notes = [
        f"Scores are costs relative to {BASE}: geometric means over tasks and suites, with 95 % intervals; lower is "
        "better. A solver that lacks records of a suite has no score.",
        f"Measured by {run.judge} {run.judge_version} on {run.hardware}: {tasks} tasks ({suites}).",
        f"Failed: records without a cost, of simulated boards if a solver has no measured one; boards score them as "
        f"{BASE}'s plan.",
    ]
    if boards[SIMULATED]:
        caution = simulated_caution(boards[SIMULATED][0])
        notes.append(" ".join(["Simulated: the same suites, not measured.", *caution]))
    if boards["GPU-modelled"]:
        notes.append(f"GPU-modelled: {_suites(boards['GPU-modelled'])}, not measured.")
    if table.bounded:
        known = sum(int(np.isfinite(board.bound_ms).sum()) for board in table.bounded)
        notes.append(
            f"Proven: plans at most {100 * PROVEN:g} % above a lower bound, on the {known} tasks with a known bound "
            f"({_suites(table.bounded)})."
        )
    return notes


def _suites(boards: tuple[Board, ...]) -> str:
    return ", ".join(board.run.suite for board in boards)


def overall_to_dict(table: Overall) -> dict[str, Any]:
    """Return the overall table JSON-ready; figures that do not exist are None."""
    suites = {column: [board.run.suite for board in boards] for column, boards in table.boards.items()}
    rows = [vars(row) | {"scores": {c: own._asdict() for c, own in row.scores.items()}} for row in table.rows]
    return {"base": BASE, "suites": suites, "rows": [json_ready(row) for row in rows], "notes": _notes(table)}
