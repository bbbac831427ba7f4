"""Do three seeds of `ppo_columns` say the same by measurement?

    python studies/learned_seeds/run.py [--out studies/learned_seeds/result.csv]

The folders beside this script hold plans of seeds 1 and 2, each measured beside the plan of `lpt`; those of seed 0, and
of `neuroshard` and `neuroshard_plus`, are in the board's records of the same processor. They were measured at other
times, so each cost is taken relative to that of `lpt` which was measured beside it. A ratio is the geometric mean over
tasks of the policy's relative cost over that of a rival; intervals are those of the boards.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
from paired import paired_ratio
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.evaluation.result import RunInfo, read_records, record_files

HERE = Path(__file__).parent
BOARDS = Path(__file__).parents[2] / "leaderboards"
POLICY = "ppo_columns"
RIVALS = ("lpt", "neuroshard", "neuroshard_plus")


def main() -> None:
    """Print a row for every seed, and for their mean, against every rival, with a column for every suite."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="CSV file to write the rows to, besides printing them")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for folder in sorted(path for path in HERE.iterdir() if path.is_dir()):
        rows += rows_of(folder)
    table: dict[tuple[str, Any], dict[str, Any]] = {}
    for row in rows:
        cells = table.setdefault((row["over"], row["seed"]), {"over": f"`{row['over']}`", "seed": row["seed"]})
        cells[f"`{row['suite']}`"] = f"{row['ratio']:.3f} ({row['from']:.3f} to {row['to']:.3f})"
    print(tabulate(table.values(), headers="keys", tablefmt="pipe", disable_numparse=True))
    if arguments.out:
        with arguments.out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: f"{v:.4f}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a suite, whose name the folder has."""
    (own_file,) = record_files([folder])
    hardware = RunInfo.of(own_file).hardware
    measured = record_files([BOARDS / f"{folder.name}-fbgemm"])
    (board_file,) = [file for file in measured if RunInfo.of(file).hardware == hardware]
    board = logs_over_lpt(board_file)
    again = logs_over_lpt(own_file)
    seeds = {0: board[POLICY, 0]} | {seed: found for (solver, seed), found in again.items() if solver == POLICY}
    mean = np.mean(list(seeds.values()), axis=0)
    rows = []
    for rival in RIVALS:
        for name, own in {**seeds, "mean": mean}.items():
            ratio = paired_ratio(np.exp(own), np.exp(board[rival, 0]))
            of = {"suite": folder.name, "hardware": hardware, "over": rival, "seed": name, "tasks": len(own)}
            rows.append(of | ratio)
    return rows


def logs_over_lpt(file: Path) -> dict[tuple[str, int], Floats]:
    """Return the logarithms of costs over that of `lpt` with the same seed, by solver and seed, each of shape (T,).

    Raises:
        SystemExit: a plan is missing or failed, so tasks would be compared that not all solved.
    """
    costs: dict[tuple[str, int], dict[int, float]] = {}
    for record in read_records(file):
        if record.status != "ok":
            raise SystemExit(f"{file}: {record.solver} failed on task {record.task_index}: {record.reason}")
        costs.setdefault((record.solver, record.seed), {})[record.task_index] = record.total_ms
    logs = {key: np.log([of_tasks[task] for task in sorted(of_tasks)]) for key, of_tasks in costs.items()}
    if len({len(own) for own in logs.values()}) > 1:
        raise SystemExit(f"{file}: solvers have different numbers of tasks")
    return {(solver, seed): own - logs["lpt", seed] for (solver, seed), own in logs.items()}


if __name__ == "__main__":
    main()
