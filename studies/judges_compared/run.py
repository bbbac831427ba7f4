"""How much costlier other solvers' plans are than those of `neuroshard_plus`, by the simulated and by the measured judge.

    python studies/judges_compared/run.py SUITE [...]

The boards are those of `leaderboards/`. A figure is the geometric mean over the tasks that both boards have and both
solvers solve on both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from shardgym import read_results

BOARDS = Path(__file__).parents[2] / "leaderboards"
JUDGES = {"simulated": "simulator", "measured": "fbgemm"}
BASE = "neuroshard_plus"
RIVALS = ("neuroshard", "column_greedy", "lpt")


def table(suites: Sequence[str]) -> str:
    """Return a Markdown table with a row for each suite."""
    rows = [{"suite": f"`{suite}`", **_row(suite)} for suite in suites]
    return tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True)


def costlier(costs: Sequence[pd.DataFrame], solver: str) -> tuple[int, list[float]]:
    """Return the number of common tasks, and for every judge how much costlier the solver's plans are, as a share.

    Args:
        costs: of each judge; a row for each task, a column for each solver, NaN where it found no plan.
        solver: that is compared with `neuroshard_plus`.
    """
    ratios = pd.concat([cost[solver] / cost[BASE] for cost in costs], axis=1).dropna()
    return len(ratios), list(np.exp(np.log(ratios).mean()) - 1)


def _row(suite: str) -> dict[str, str]:
    costs = [_costs(BOARDS / f"{suite}-{judge}") for judge in JUDGES.values()]
    cells = {}
    for solver in RIVALS:
        number, shares = costlier(costs, solver)
        cells |= {f"{solver}: {judge}": f"{share:+.1%}" for judge, share in zip(JUDGES, shares, strict=True)}
        cells[f"{solver}: tasks"] = str(number)
    return cells


def _costs(folder: Path) -> pd.DataFrame:
    results = read_results(folder / "records.jsonl.xz")  # the solvers of seed 0, not those of `three-seeds`
    solved = results[results["status"] == "ok"]
    return solved.pivot(index="task_index", columns="solver", values="total_ms")


if __name__ == "__main__":
    print(table(sys.argv[1:]))
