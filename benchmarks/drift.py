"""Plans under drift: keeping the first, planning every step anew, and moving as far as it pays.

    python benchmarks/drift.py [--page]

A drift is ten tasks with the same tables, whose statistics change. At each task a job may change its plan, which then
stays in use for a number of training steps (`INTERVALS`). There are three jobs:

- keep: stays with the plan for the first task;
- anew: takes the solver's plan for each task, whatever is in use;
- migrate: gives the solver the plan in use, so that it permutes devices to move little, and moves if by the oracle the
  interval makes up for the time of the moves.

The solver asks the oracle of the suite, its judge says what steps take. Moves take the time of the busiest link, with
training paused and nothing else (`shardgym.plans.migration`); what checkpoints, compiling and warming caches take is
not counted. Printed are, as means over drifts: milliseconds of a step, bytes that move in all changes together and
those of them that cross network cards, and the time of all steps and moves relative to `keep`.
With --page, the table goes into benchmarks/README.md.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from fill_pages import fill
from tabulate import tabulate
from tqdm import tqdm

from shardgym import CostModel, ShardingPlan, ShardingTask, Suite, load_suite, make_cost, make_solver
from shardgym.evaluation.solver import Solver, warm_up
from shardgym.plans.migration import migration, rebound
from shardgym.tasks.topology import GIB

PAGE = Path(__file__).with_name("README.md")
#: Steps between changes.
INTERVALS = (100, 1000, 10000)


class Drifted(NamedTuple):
    """One job on one drift."""

    step_ms: list[float]  #: by the judge, at each task
    moved_bytes: int  #: of all changes
    inter_bytes: int  #: of them, what crosses network cards
    transfer_ms: float  #: of all changes

    def total_ms(self, interval: int) -> float:
        """Return the time of all steps and moves."""
        return sum(self.step_ms) * interval + self.transfer_ms


def main() -> None:
    """Run the benchmark and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--page", action="store_true", help=f"write the table into {PAGE.name}")
    arguments = parser.parse_args()
    suite = load_suite("drift-v1")
    track = suite.track()
    oracle, judge = (make_cost(of.cost, **of.settings) for of in (track.oracle, track.judge))
    rows = compared(drifts_of(suite), INTERVALS, make_solver("neuroshard_plus"), oracle, judge)
    if arguments.page:
        fill(PAGE, "drift", rows)
    print(tabulate(rows, headers="keys", floatfmt=".3f", tablefmt="github"))


def drifts_of(suite: Suite) -> list[list[ShardingTask]]:
    """Return the tasks of each drift; those of one are in a row and share their group."""
    found: dict[str, list[ShardingTask]] = {}
    for index in range(len(suite)):
        found.setdefault(suite.group(index), []).append(suite[index])
    return list(found.values())


def compared(
    drifts: list[list[ShardingTask]], intervals: Sequence[int], solver: Solver, oracle: CostModel, judge: CostModel
) -> list[dict[str, object]]:
    """Return the rows of the table; the solver moves from a plan in use."""
    jobs: dict[tuple[str, int], list[Drifted]] = {}
    for tasks in tqdm(drifts, unit="drift", disable=None):
        warm_up(solver, tasks[0], oracle)
        first = solver.solve(tasks[0], oracle)
        kept = [rebound(first, task) for task in tasks]
        anew = [first, *(solver.solve(task, oracle) for task in tasks[1:])]
        for interval in intervals:
            jobs.setdefault(("keep", interval), []).append(drifted(tasks, kept, judge))
            jobs.setdefault(("anew", interval), []).append(drifted(tasks, anew, judge))
            moving = migrating(tasks, first, interval, solver, oracle)
            jobs.setdefault(("migrate", interval), []).append(drifted(tasks, moving, judge))
    rows: list[dict[str, object]] = []
    for (name, interval), results in jobs.items():
        totals = [
            result.total_ms(interval) / other.total_ms(interval)
            for result, other in zip(results, jobs["keep", interval], strict=True)
        ]
        rows.append({
            "steps between changes": f"{interval:,}",
            "job": name,
            "ms per step": float(np.mean([result.step_ms for result in results])),
            "GiB moved": f"{np.mean([result.moved_bytes for result in results]) / GIB:.2f}",
            "over network cards": f"{np.mean([result.inter_bytes for result in results]) / GIB:.2f}",
            "time of moves [ms]": f"{np.mean([result.transfer_ms for result in results]):.1f}",
            "all time / keep": float(np.mean(totals)),
        })  # fmt: skip
    return rows


def migrating(
    tasks: list[ShardingTask], first: ShardingPlan, interval: int, solver: Solver, oracle: CostModel
) -> list[ShardingPlan]:
    """Return the plans of a job that moves from plan to plan."""
    plans = [first]
    for task in tasks[1:]:
        in_use = rebound(plans[-1], task)
        near = solver.solve(task, oracle, initial_plan=in_use)
        here, there = (answer.total_ms for answer in oracle.evaluate(task, [in_use, near]))
        moves_ms = migration(task, in_use, near).transfer_ms(task.topology)
        plans.append(near if interval * there + moves_ms < interval * here else in_use)
    return plans


def drifted(tasks: list[ShardingTask], plans: list[ShardingPlan], judge: CostModel) -> Drifted:
    """Return what steps and changes take."""
    changes = [migration(task, *pair) for task, pair in zip(tasks[1:], itertools.pairwise(plans), strict=True)]
    return Drifted(
        [judge.evaluate(task, [plan])[0].total_ms for task, plan in zip(tasks, plans, strict=True)],
        sum(change.bytes for change in changes),
        sum(change.bytes_by_link["inter"] for change in changes),
        sum(change.transfer_ms(tasks[0].topology) for change in changes),
    )


if __name__ == "__main__":
    main()
