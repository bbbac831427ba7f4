"""How well two complete runs agree: `python benchmarks/agreement.py FOLDER FOLDER`.

Prints Kendall's tau over all plans, its mean over tasks (plans of one task against each other), the median
difference of a plan's cost after the drift between the runs is taken out, and the ranking of solvers in both.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from scipy.stats import kendalltau
from tabulate import tabulate

from shardgym.evaluation.result import Key
from shardgym.evaluation.store import RECORDS, read_records
from shardgym.leaderboard import load_boards, rank


def costs_of(folder: Path) -> dict[Key, float]:
    """Return the cost of every plan in a folder, by task, solver and seed."""
    return {r.key: r.total_ms for r in read_records(folder / RECORDS) if r.status == "ok"}


def tau(pairs: np.ndarray) -> float:
    """Return Kendall's tau-b between the columns of `pairs`, shape (n, 2)."""
    return float(kendalltau(pairs[:, 0], pairs[:, 1]).statistic)


def main(first: Path, second: Path) -> None:
    """Print the comparison."""
    one, two = costs_of(first), costs_of(second)
    pairs = {key: (one[key], two[key]) for key in one if key in two}
    by_task: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for key, pair in pairs.items():
        by_task[key[0]].append(pair)
    everything = np.array(list(pairs.values()))
    ratios = everything[:, 1] / everything[:, 0]
    drift = float(np.median(ratios))
    taus = [t for rows in by_task.values() if not np.isnan(t := tau(np.array(rows)))]
    print(tabulate([
        ["plans", len(pairs)],
        ["Kendall tau over all plans", f"{tau(everything):.3f}"],
        ["Kendall tau within a task, mean over tasks", f"{statistics.mean(taus):.3f}"],
        ["drift of the second run", f"{100 * (drift - 1):+.1f} %"],
        ["median difference without drift", f"{100 * float(np.median(np.abs(ratios / drift - 1))):.1f} %"],
    ], tablefmt="plain"))  # fmt: skip
    for folder in (first, second):
        rows = rank(load_boards([folder])[0]).rows
        print(f"ranking of {folder.name}: {', '.join(('1= ' if row.tied else '') + row.solver for row in rows)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python benchmarks/agreement.py FOLDER FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
