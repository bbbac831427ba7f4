"""Zero-shot: policies that ship, on tasks that differ from those they were trained on along one axis at a time.

    python benchmarks/generalisation.py [--tasks 30] [--seeds 3] [--json] [--page docs/solvers.md]

Every axis is a fixed split: draws from the test half of a pool, which no policy has seen, sized like dlrm4-v2 but for
one thing. Policies have their weights for four devices, or for any number where these are all there are, three seeds
each, and are not trained any further. Solvers ask the simulator's oracle, its judge scores. A figure is the geometric
mean of costs over those of `lpt`; a failure counts as the plan of `lpt`, and how many tasks failed is told behind it.
Below the policies are the floors of their environments, and a search.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tabulate import tabulate

from baselines.learning import solver as learned
from shardgym import ShardingTask, load_suite, make_cost, make_solver
from shardgym.errors import NoFeasiblePlanError, ShardGymError
from shardgym.solver import Solver
from shardgym.suites.sources import DrawnSource

sys.path.append(str(Path(__file__).parents[1] / "tools"))
from fill_pages import fill

#: Sizes the tasks.
SUITE = "dlrm4-v2"
#: Of the draws: no suite has it.
SEED = 20_261_123
#: What differs, in all groups of the suite. Widths and numbers are none that policies were trained on.
AXES: dict[str, dict[str, Any]] = {
    "as in training": {},
    "more tables": {"num_tables": (60, 90), "max_total_bytes": 3 * 2013265920},
    "more devices": {"num_devices": 8},
    "tighter memory": {"fullness": 0.8},
    "other widths": {"dims": (12, 24, 48, 96, 192)},
    "other skew": {"pool": "synthetic-2022", "batch_size": 16384},
}
#: Solvers that ship with weights, and the suites whose training tasks they were fitted on.
POLICIES = {
    "ppo_columns": "dlrm4-v2+dlrm8-v2+wide8-v2+tight4-v2+tight8-v2+hetero4-v2",
    "ppo": "dlrm4-v1",
    "dreamshard": "dlrm4-v1",
    "autoshard": "dlrm4-v1",
}
OTHERS = ("lookahead_columns", "lookahead", "neuroshard")
BASE = "lpt"


def main() -> int:
    """Run the benchmark and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=30, help="of each axis (%(default)s)")
    parser.add_argument("--seeds", type=int, default=3, help="of the weights (%(default)s)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--page", type=Path, help="whose block 'zero-shot' gets the table")
    arguments = parser.parse_args()
    try:
        rows = table({axis: tasks_of(axis, arguments.tasks) for axis in AXES}, range(arguments.seeds))
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments.page:
        fill(arguments.page, "zero-shot", rows)
    print(json.dumps(rows, indent=1) if arguments.json else tabulate(rows, headers="keys", disable_numparse=True))
    return 0


def tasks_of(axis: str, count: int) -> list[ShardingTask]:
    """Draw the tasks of an axis; groups of the suite take turns."""
    source = load_suite(SUITE).source
    assert isinstance(source, DrawnSource)
    changed = dict(AXES[axis])
    of_spec = {name: changed.pop(name) for name in ("pool", "batch_size") if name in changed}
    groups = tuple(dataclasses.replace(group, count=count, draws=(), **changed) for group in source.groups)
    spec = dataclasses.replace(source.spec, seed=SEED, groups=groups, **of_spec)
    drawn = DrawnSource(spec, Path(f"generalisation: {axis}"))
    return [drawn.build(index, f"{axis}/{index}") for index in range(count)]


def table(tasks: dict[str, list[ShardingTask]], seeds: range) -> list[dict[str, Any]]:
    """Return a row per solver with a figure per axis."""
    oracle = make_cost("simulator")
    judge = make_cost("simulator", role="judge")

    def costs_ms(solver: Solver, of_axis: list[ShardingTask]) -> np.ndarray[Any, Any]:
        found = []
        for task in of_axis:
            try:
                plan = solver.solve(task, oracle, seed=0)
            except NoFeasiblePlanError:
                found.append(np.nan)
            else:
                found.append(judge.evaluate(task, [plan])[0].total_ms)
        return np.array(found)

    base = {axis: costs_ms(make_solver(BASE), of_axis) for axis, of_axis in tasks.items()}
    rows = []
    for name in (*POLICIES, *OTHERS):
        solvers = policy(name, seeds) if name in POLICIES else [make_solver(name)]
        row: dict[str, Any] = {"solver": name, "trained on": POLICIES.get(name, "-")}
        for axis, of_axis in tasks.items():
            known = np.isfinite(base[axis])
            found = np.stack([costs_ms(solver, of_axis) for solver in solvers])[:, known]
            failed = np.isnan(found)
            ratios = np.where(failed, 1.0, found / base[axis][known])
            figure = f"{np.exp(np.log(ratios).mean()):.3f}"
            row[axis] = f"{figure} ({failed.mean():.0%} failed)" if failed.any() else figure
        rows.append(row)
    return rows


def policy(name: str, seeds: range) -> list[Solver]:
    """Return a policy with the weights above of each seed, whatever tasks have."""
    folder = Path(learned.__file__).parents[1] / "weights" / name / POLICIES[name]
    return [make_solver(name, weights=folder / f"seed-{seed}") for seed in seeds]


if __name__ == "__main__":
    sys.exit(main())
