"""What each part of the search of `neuroshard_plus` brings: plans without it, by the cost that the search asks.

    python studies/ablations/run.py [--suite NAME ...] [--part NAME ...] [--tasks N]

Every part is taken out by replacing a function. Tasks are spread over each suite, seed 0. Where plans move from one in
use, that is the plan for the same tables with other pooling factors, and a byte costs what it takes if all devices send
at once, spread over 1,000 steps. Instead of searching for moves, devices then change places. Writes results.csv, and
the table into README.md. What is in the package no longer, the script leaves out; all parts are in the version that
added it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import dataclasses
import inspect
import os
import pkgutil
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tabulate import tabulate

import shardgym
from neuroshard.plus import NeuroShardPlus
from shardgym.errors import ShardGymError
from shardgym.plans.migration import migration, rebound

HERE = Path(__file__).parent
#: Tasks of each suite.
SUITES = {"dlrm8-v2": 30, "tight8-v2": 30, "rows8-v1": 30, "nodes16-v1": 14, "production-v1": 2, "tiers-v1": 8}
FULL = "full"


def same(search: object, allocation: object, *rest: object) -> object:
    """Stand for a step that changes nothing."""
    del search, rest
    return allocation


def other_choices(name: str) -> Callable[..., object]:
    """Return a function of the greedy choice, which imports it when called."""

    def chosen(*arguments: object) -> object:
        from neuroshard.plus import choices

        return getattr(choices, name)(*arguments)

    return chosen


#: What is replaced where, by part.
PARTS: dict[str, dict[str, object]] = {
    "packing of nodes": {"neuroshard.plus.searches.ExactSearch._packed": same},
    "averages": {"neuroshard.plus.searches.shared_on_average": lambda *_: []},
    "averages, by a greedy choice": {
        "neuroshard.plus.searches.shared_on_average": other_choices("shared_on_average"),
        "neuroshard.plus.searches.shared_for_room": other_choices("shared_for_room"),
    },
    "sampled moves": {"neuroshard.plus.local_search.IteratedLocalSearch.sampled": same},
    "shortlists": {"neuroshard.plus.local_search._SHORTLIST": 1},
    "tiers": {"neuroshard.plus.solver.NeuroShardPlus.leaves_devices": lambda *_: False},
    "levelled widths": {"neuroshard.plus.searches.ExactSearch._levelled": lambda *_: []},
    "groups": {"neuroshard.plus.solver.group_sizes": lambda *_: []},
    "kicks": {"neuroshard.plus.local_search._DEFAULT_KICKS": 0},
    "changes of kinds": {"neuroshard.plus.searches.ExactSearch._flipped": same},
    "published search": {"neuroshard.plus.solver.NeuroShardPlus._search_as_published": lambda *_: None},
}
MIGRATION, SEARCHED = "migration term", "moves searched for"
#: Between changes of the plan.
STEPS = 1000


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeat for several (default: all)")
    parser.add_argument("--part", action="append", help="repeat for several (default: all)")
    parser.add_argument("--tasks", type=int, help="of each suite")
    parser.add_argument("--out", type=Path, default=HERE / "results.csv", help="(%(default)s)")
    options = parser.parse_args()
    parts = [part for part in options.part or [*PARTS, MIGRATION] if is_there(part)]
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["suite", "task", "part", "cost_ms", "seconds"], lineterminator="\n")
        writer.writeheader()
        for name in options.suite or SUITES:
            suite = shardgym.load_suite(name)
            count = min(options.tasks or SUITES[name], len(suite))
            for index in np.linspace(0, len(suite) - 1, count).astype(int).tolist():
                for row in rows_of(suite, index, parts):
                    writer.writerow({"suite": name, "task": index} | row)
                file.flush()
    if options.out == HERE / "results.csv":
        page = HERE / "README.md"
        text = page.read_text(encoding="utf-8")
        before, after = text.split("<!-- table -->")[0], text.split("<!-- end -->")[1]
        page.write_text(f"{before}<!-- table -->\n\n{table(options.out)}\n\n<!-- end -->{after}", encoding="utf-8")
    print(table(options.out))


def is_there(part: str) -> bool:
    """Say whether the package still has what is taken out."""
    if part == MIGRATION:
        return "migration_ms_per_byte" in inspect.signature(NeuroShardPlus.solve).parameters
    for target in PARTS[part]:
        try:
            pkgutil.resolve_name(target)
        except (ImportError, AttributeError):
            return False
    return True


def rows_of(suite: shardgym.Suite, index: int, parts: list[str]) -> list[dict[str, object]]:
    """Return what plans for one task cost."""
    task = suite[index]
    choice = suite.track("simulator" if suite.oracle == "simulator" else None).oracle
    cost = shardgym.make_cost(choice.cost, **choice.settings)
    rows = []
    for part in [FULL, *(part for part in parts if part in PARTS)]:
        with contextlib.ExitStack() as stack:
            for target, instead in PARTS.get(part, {}).items():
                stack.enter_context(patch(target, instead))
            start = time.process_time()
            try:
                plan = NeuroShardPlus().solve(task, cost, seed=0)
                cost_ms = cost.evaluate(task, [plan])[0].total_ms
            except ShardGymError:
                cost_ms = np.inf
        rows.append({"part": part, "cost_ms": cost_ms, "seconds": round(time.process_time() - start, 3)})
    if MIGRATION in parts and task.topology.host_memory_bytes == 0:
        rows += moved(task, cost)
    return rows


def moved(task: shardgym.ShardingTask, cost: shardgym.CostModel) -> list[dict[str, object]]:
    """Return what a step and moves cost together, with moves searched for, and with devices that change places."""
    from neuroshard.staying import plan_like

    factors = np.random.default_rng(0).lognormal(0.0, 0.5, task.num_tables).tolist()
    tables = (
        dataclasses.replace(table, pooling_factor=max(1.0, round(table.pooling_factor * factor, 3)))
        for table, factor in zip(task.tables, factors, strict=True)
    )
    before = dataclasses.replace(task, tables=tuple(tables), name="")
    in_use = rebound(NeuroShardPlus().solve(before, cost, seed=0), task)
    price = 1e3 / (task.num_devices * task.topology.inter_bandwidth) / STEPS
    rows: list[dict[str, object]] = []
    for part, options in ((SEARCHED, {"migration_ms_per_byte": price}), (MIGRATION, {})):
        start = time.process_time()
        plan = NeuroShardPlus().solve(task, cost, seed=0, initial_plan=in_use, **options)
        near = plan if options else plan_like(task, plan, in_use)
        here, there = cost.evaluate(task, [plan, near])
        plan, step_ms = (near, there.total_ms) if there.total_ms <= here.total_ms else (plan, here.total_ms)
        total_ms = step_ms + price * migration(task, in_use, plan).bytes
        rows.append({"part": part, "cost_ms": total_ms, "seconds": round(time.process_time() - start, 3)})
    return rows


def table(path: Path) -> str:
    """Return by how many percent plans cost more without each part, and the time of the search, by suite."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        of_suite = found.setdefault(row["part"], {}).setdefault(row["suite"], [])
        of_suite.append((float(row["cost_ms"]), float(row["seconds"])))
    printed = []
    suites = list(dict.fromkeys(row["suite"] for row in rows))
    for part, of_suites in found.items():
        if part in (FULL, SEARCHED):
            continue
        base = found[SEARCHED if part == MIGRATION else FULL]
        cells = {"without": part}
        for suite in suites:
            if suite not in of_suites:
                cells[suite] = "-"
                continue
            pairs = list(zip(of_suites[suite], base[suite], strict=True))
            ratios = [one[0] / other[0] for one, other in pairs if np.isfinite(one[0])]
            failed = len(pairs) - len(ratios)
            more = 100 * np.expm1(np.mean(np.log(ratios))) if ratios else np.nan
            spent = sum(one[1] for one, _ in pairs) / sum(other[1] for _, other in pairs)
            cells[suite] = f"{more:+.2f} % ({spent:.2f})" if not failed else f"no plan: {failed} of {len(pairs)}"
        printed.append(cells)
    return tabulate(printed, headers="keys", tablefmt="github")


if __name__ == "__main__":
    main()
