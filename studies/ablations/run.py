"""Ablations of the NeuroShard search: what each part of it, and each constant, brings and takes.

    python studies/ablations/run.py [--weights FOLDER] [--suite dlrm4-v1] [--limit 5]
        [--plot ablations.svg] [--only K,N,L,M,without] [--json]

The search runs as published, then without its beam (tables stay whole), without its grid (one placement, no limit of
width), without incremental evaluation (every device is encoded anew), and with K, N, L and M each over a range, on
`--limit` tasks spread over the suite. The oracle is a simulator; plans are judged by the second simulator, which the
search never sees. Cost is the geometric mean over tasks of a plan's cost over that of the search as published; seconds
are processor seconds of one thread per task.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from neuroshard import NeuroShard
from shardgym import CostModel, PlanCost, ShardingPlan, ShardingTask, load_suite
from shardgym.costs.simulator import SimulatorCost

#: Setting by its name in the paper, and the values it takes.
RANGES = {
    "K": ("beam_width", (1, 2, 3, 5, 10)),
    "N": ("candidates", (1, 2, 5, 10, 20)),
    "L": ("levels", (0, 1, 2, 5, 10, 20)),
    "M": ("grid", (1, 3, 6, 11, 21)),
}
LABEL = "cost, by the judge"


class Variant(NamedTuple):
    """One way to search: what is varied, its name, settings, and whether the simulator is used incrementally."""

    part: str
    name: str
    settings: dict[str, int]
    incremental: bool = True


class WholePlans(CostModel):
    """A simulator that only evaluates plans, so that a search has to ask for every device's content as a plan."""

    name = "simulator (whole plans)"
    deterministic = True

    def __init__(self, cost: SimulatorCost) -> None:
        self._cost = cost
        self.version = cost.version

    @property
    def hardware(self) -> str:
        """That of the simulator."""
        return self._cost.hardware

    def score(self, task: ShardingTask, plans: list[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        return self._cost.evaluate(task, plans)


def main() -> None:
    """Run the ablations, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", help="of oracle and judge, written by 'shardgym pretrain'; default: the package's")
    parser.add_argument("--suite", default="dlrm4-v1", help="(%(default)s)")
    parser.add_argument("--limit", type=int, default=5, help="tasks, spread over the suite (%(default)s)")
    parser.add_argument("--only", default=",".join(["without", *RANGES]), help="parts to run (%(default)s)")
    parser.add_argument("--plot", type=Path, default=Path("ablations.svg"), help="(%(default)s); needs matplotlib")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    oracle = SimulatorCost(arguments.weights)
    judge = SimulatorCost(arguments.weights, role="judge")
    suite = load_suite(arguments.suite)
    tasks = [suite[n] for n in np.linspace(0, len(suite) - 1, min(arguments.limit, len(suite))).astype(int).tolist()]
    rows = compare(variants(arguments.only.split(",")), tasks, oracle, judge)
    print(json.dumps(rows, indent=2) if arguments.json else tabulate(rows, headers="keys", floatfmt=",.4f"))
    plot(rows, arguments.plot)


def variants(parts: list[str]) -> list[Variant]:
    """Return the search as published first, then what differs from it."""
    without = [
        Variant("without", "beam", {"levels": 0}),
        Variant("without", "grid", {"grid": 0}),
        Variant("without", "incremental evaluation", {}, incremental=False),
    ]
    ranges = [
        Variant(part, f"{part} = {value}", {setting: value})
        for part, (setting, values) in RANGES.items() for value in values
    ]  # fmt: skip
    return [Variant("published", "as published", {}), *(v for v in [*without, *ranges] if v.part in parts)]


def compare(
    chosen: list[Variant], tasks: list[ShardingTask], oracle: SimulatorCost, judge: SimulatorCost
) -> list[dict[str, Any]]:
    """Run all variants on all tasks, tasks outside, so that drift of the machine hits all variants."""
    NeuroShard().solve(tasks[0], oracle)
    costs = np.zeros((len(chosen), len(tasks)))
    seconds = np.zeros((len(chosen), len(tasks)))
    for t, task in enumerate(tqdm(tasks, unit="task")):
        for v, variant in enumerate(chosen):
            cost = oracle if variant.incremental else WholePlans(oracle)
            start = time.process_time()
            plan = NeuroShard(**variant.settings).solve(task, cost)
            seconds[v, t] = time.process_time() - start
            costs[v, t] = judge.evaluate(task, [plan])[0].total_ms
    relative = np.exp(np.log(costs / costs[0]).mean(axis=1))
    return [
        {"part": variant.part, "search": variant.name, LABEL: float(ratio), "s per task": statistics.median(spent)}
        for variant, ratio, spent in zip(chosen, relative, seconds.tolist(), strict=True)
    ]


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw cost against search time, one curve per constant."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for part in dict.fromkeys(row["part"] for row in rows):
        points = [row for row in rows if row["part"] == part]
        x = [row["s per task"] for row in points]
        y = [row[LABEL] for row in points]
        axes.plot(x, y, "o-" if part in RANGES else "s", label=part)
        for row in points:
            name = row["search"].split(" = ")[-1]
            axes.annotate(name, (row["s per task"], row[LABEL]), (3, 3), textcoords="offset points", fontsize=7)
    axes.set(xscale="log", xlabel="processor seconds per task", ylabel=f"{LABEL} (as published = 1)")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
