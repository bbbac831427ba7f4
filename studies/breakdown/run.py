"""What plans of a board spend their time on, as judged and as predicted, and what balance alone could gain.

    python studies/breakdown/run.py leaderboards/dlrm4-v1-fbgemm [--weights FOLDER] [--json]

For every solver, geometric means over tasks that all solvers have solved: the cost; compute of the slowest device over
that of the mean device; the least a device spends in exchanges, which is transfer without waiting. "balanced" is mean
compute plus that least exchange: what a plan of the same shards would cost if no device waited for another.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from shardgym import CostModel, load_suite, make_cost
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PHASES
from shardgym.errors import InputError, ShardGymError
from shardgym.evaluation.result import Result, read_records, record_files

_COMM = [PHASES.index("forward_comm"), PHASES.index("backward_comm")]


def main() -> int:
    """Read the records and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="of a run")
    parser.add_argument("--weights", type=Path, help="folder of 'shardgym pretrain'; the package's if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        rows = breakdown(arguments.folder, make_cost("simulator", weights=arguments.weights))
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=".3f"))
    return 0


def breakdown(folder: Path, oracle: CostModel) -> list[dict[str, Any]]:
    """Return a row per solver, cheapest first."""
    results = solved_by_all([result for file in record_files([folder]) for result in read_records(file)])
    suite = load_suite(results[0].suite)
    found: dict[str, list[list[float]]] = defaultdict(list)
    for result in results:
        (predicted,) = oracle.evaluate(suite[result.task_index], [result.plan])
        found[result.solver].append([*parts(result.cost.per_device), *parts(predicted.per_device)])
    rows = [row(solver, np.array(values)) for solver, values in found.items()]
    return sorted(rows, key=lambda row: row["ms"])


def solved_by_all(results: list[Result]) -> list[Result]:
    """Return the records of tasks that every solver has a cost for.

    Raises:
        InputError: there is no such task.
    """
    ok = [result for result in results if result.status == "ok"]
    solvers = {result.solver for result in results}
    by_task: dict[int, set[str]] = defaultdict(set)
    for result in ok:
        by_task[result.task_index].add(result.solver)
    shared = [result for result in ok if by_task[result.task_index] == solvers]
    if not shared:
        raise InputError(f"{len(results)} records: expected a task that every solver has a cost for, got none")
    return shared


def parts(per_device: Any) -> list[float]:
    """Return cost, imbalance of compute, transfer and balanced cost of one plan."""
    compute = per_device[:, COMPUTE_COLUMNS].sum(axis=1)
    comm = per_device[:, _COMM].min(axis=0).sum()
    return [per_device.sum(axis=1).max(), compute.max() / compute.mean(), comm, compute.mean() + comm]


def row(solver: str, values: np.ndarray) -> dict[str, Any]:
    """Average over tasks."""
    mean = np.exp(np.log(values).mean(axis=0)).tolist()
    return {
        "solver": solver, "tasks": len(values), "ms": mean[0], "imbalance": mean[1], "transfer ms": mean[2],
        "balanced ms": mean[3], "predicted ms": mean[4], "predicted imbalance": mean[5],
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
