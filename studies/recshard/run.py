"""RecShard's claims: throughput, lookups in slow memory and balance beside rules that know no frequencies.

    python studies/recshard/run.py [--limit N] [-o result.md]      # suite tiers-v1

Every task is planned by the four greedy rules, which know no frequencies, and by `recshard`, with cuts by rows and with
caches alone. Solvers query `roofline`; `gpu` scores. Of each plan: the step; what the slowest device computes, lookups
and updates of both passes; the lookups of all devices that read the memory of a host; and what the slowest device
computes over the mean of all. Figures are ratios over those of `recshard`, geometric means over tasks.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import NamedTuple

from tabulate import tabulate
from tqdm import tqdm

from baselines.greedy import DimGreedy, LookupGreedy, SizeGreedy, SizeLookupGreedy
from baselines.recshard.solver import RecShard
from shardgym.costs.base import make_cost
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PlanCost
from shardgym.costs.shard_keys import cache_missed_share, shard_key
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.row_access import access_share, distinct_rows
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask

SOLVERS = {
    "size_greedy": SizeGreedy(),
    "dim_greedy": DimGreedy(),
    "lookup_greedy": LookupGreedy(),
    "size_lookup_greedy": SizeLookupGreedy(),
    "recshard, caches alone": RecShard(row_cuts=False),
    "recshard": RecShard(),
}


class Figures(NamedTuple):
    """What a plan is worth; each is better when smaller."""

    step_ms: float
    compute_ms: float
    slow_lookups: float
    imbalance: float


def figures_of(task: ShardingTask, plan: ShardingPlan, cost: PlanCost) -> Figures:
    """Return the figures of a plan that has a cost."""
    compute = cost.per_device[:, COMPUTE_COLUMNS].sum(axis=1)
    slow = 0.0
    for shard in plan.shards:
        table = task.table(shard.table)
        if shard.compute_kernel == "fused_uvm":
            slow += task.batch_size * table.pooling_factor * access_share(table, *shard.rows)
        elif shard.compute_kernel == "fused_uvm_caching":
            slow += distinct_rows(table, task.batch_size, *shard.rows) * cache_missed_share(
                task, shard_key(task, shard)
            )
    return Figures(cost.total_ms, float(compute.max()), slow, float(compute.max() / compute.mean()))


def main() -> None:
    """Print the table, and write it where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="tasks; all when not given")
    parser.add_argument("-o", "--output", type=Path, help="a file for the tables")
    options = parser.parse_args()
    suite = load_suite("tiers-v1")
    tasks = [(suite.group(index), suite[index]) for index in range(len(suite))]
    oracle, judge = make_cost("roofline"), make_cost("gpu")
    found: dict[str, dict[str, list[Figures]]] = {}
    for group, task in tqdm(tasks[: options.limit]):
        plans = [solver.solve(task, oracle, 0) for solver in SOLVERS.values()]
        for name, plan, cost in zip(SOLVERS, plans, judge.evaluate(task, plans), strict=True):
            assert cost.feasible, cost.reason
            found.setdefault(group, {}).setdefault(name, []).append(figures_of(task, plan, cost))
    text = "\n\n".join(tables(found))
    print(text)
    if options.output is not None:
        options.output.write_text(text + "\n")


def tables(found: dict[str, dict[str, list[Figures]]]) -> list[str]:
    """Return a table of each figure: groups by solver."""
    titles = {
        "step_ms": "step, over that of recshard",
        "compute_ms": "compute of the slowest device, over that of recshard",
        "slow_lookups": "lookups in the memory of hosts, over those of recshard",
        "imbalance": "slowest device over the mean",
    }
    made = []
    for field, title in titles.items():
        rows = []
        for group, of_group in found.items():
            ours = [getattr(figures, field) for figures in of_group["recshard"]]
            row: list[str] = [group, str(len(ours))]
            for name in SOLVERS:
                theirs = [getattr(figures, field) for figures in of_group[name]]
                if field == "imbalance":
                    row.append(f"{statistics.fmean(theirs):.2f}")
                elif min(ours + theirs) > 0:
                    row.append(f"{statistics.geometric_mean(a / b for a, b in zip(theirs, ours, strict=True)):.2f}")
                else:
                    row.append(f"{sum(theirs):.3g} / {sum(ours):.3g}")
            rows.append(row)
        table = tabulate(rows, [title, "tasks", *SOLVERS], tablefmt="github", disable_numparse=True)
        made.append(table)
    return made


if __name__ == "__main__":
    main()
