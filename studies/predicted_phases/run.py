"""What the oracle predicts of each phase of a step, over what the measured boards have.

    python studies/predicted_phases/run.py [SUITE ...]

Phases are means over devices, those of exchanges with waiting; ratios are geometric means over the tasks of a board on
the processor whose steps the simulator learned. `cuts` are shards for each table.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from tabulate import tabulate

from shardgym import load_suite, make_cost
from shardgym.costs.plan_cost import PHASES
from shardgym.evaluation.result import read_records

BOARDS = Path(__file__).parents[2] / "leaderboards"
PROCESSOR = "cpu-intel-family6-model167-avx512-2c"
SUITES = ("dlrm4-v2", "tight4-v2", "dlrm8-v2", "tight8-v2", "wide8-v2")
SOLVERS = ("lpt", "neuroshard", "neuroshard_plus", "ppo_columns")


def main() -> None:
    """Print a row for every suite and solver, and write them beside this script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", default=SUITES)
    oracle = make_cost("simulator")
    rows = []
    for name in parser.parse_args().suites:
        suite = load_suite(name)
        ratios = defaultdict(list)
        for record in read_records(BOARDS / f"{name}-fbgemm" / PROCESSOR / "records.jsonl.xz"):
            if record.solver not in SOLVERS or record.plan is None or record.cost is None:
                continue
            task = suite[record.task_index]
            (predicted,) = oracle.evaluate(task, [record.plan])
            of_phases = predicted.per_device.mean(axis=0) / record.cost.per_device.mean(axis=0)
            total = predicted.total_ms / record.total_ms
            ratios[record.solver].append([len(record.plan.shards) / task.num_tables, total, *of_phases])
        for solver, found in ratios.items():
            values = np.exp(np.log(found).mean(axis=0)).tolist()
            figures = dict(zip(("cuts", "total", *PHASES), values, strict=True))
            rows.append({"suite": name, "solver": solver, "tasks": len(found)} | figures)
    print(tabulate(rows, headers="keys", floatfmt=".2f", tablefmt="github"))
    with Path(__file__).with_name("result.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(rows[0])
        writer.writerows([f"{v:.4f}" if isinstance(v, float) else v for v in row.values()] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
