"""RecShard's claims: throughput, lookups in slow memory and balance beside rules that know no frequencies.

    python studies/recshard/run.py [--limit N] [-o result.md]      # suite tiers-v1
    python studies/recshard/run.py --paper [-o paper.md]           # tasks of the paper's sizes

Every task is planned by the four greedy rules, which know no frequencies, and by `recshard`, with cuts by rows and with
caches alone. Solvers query `roofline`; `gpu` scores. Of each plan: the step; what the slowest device computes, lookups
and updates of both passes; the lookups of all devices that read the memory of a host; and what the slowest device
computes over the mean of all. Figures are ratios over those of `recshard`, geometric means over tasks.

The paper's sizes, as far as they are known: 397 tables of 64 columns, 635 and 1,270 GB in all, on two nodes of
eight A100s, of which each has 24 GB for tables and 128 GB of its host's memory; batch 16,384. Its tables are not
public: these are of the pool synthetic-2021, with as many more rows each, ordered by frequency. There `recshard` gets
a minute a task.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
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
from shardgym.tables.pools import load_pool
from shardgym.tables.row_access import access_share, distinct_rows
from shardgym.evaluation.solver import call_solver
from shardgym.tasks.suites import load_suite
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

SOLVERS = {
    "size_greedy": SizeGreedy(),
    "dim_greedy": DimGreedy(),
    "lookup_greedy": LookupGreedy(),
    "size_lookup_greedy": SizeLookupGreedy(),
    "recshard, caches alone": RecShard(row_cuts=False),
    "recshard": RecShard(),
}
PAPER_TABLES = 397
PAPER_GB = (635, 1270)
PAPER_LIMIT_S = 60.0


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


def paper_task(total_gb: int) -> ShardingTask:
    """Return a task of the paper's sizes."""
    pool = load_pool("synthetic-2021").scaled(4)
    tables = list(pool)[:PAPER_TABLES]
    factor = total_gb * 10**9 / sum(256 * table.num_embeddings for table in tables)
    tables = [
        dataclasses.replace(
            table,
            num_embeddings=math.ceil(table.num_embeddings * factor),
            embedding_dim=64,
            # As in `TablePool.scaled`: the law keeps its shape.
            ids=dataclasses.replace(table.ids, q=(table.ids.q + 0.5) * factor - 0.5, row_order="by_frequency"),
        )
        for table in tables
    ]
    topology = dataclasses.replace(
        Topology.preset("dgx-a100", 16, 24 * 10**9), host_memory_bytes=8 * 128 * 10**9
    )  # fmt: skip
    return ShardingTask(tuple(tables), topology, pool.batch_size)


def main() -> None:
    """Print the table, and write it where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, help="tasks; all when not given")
    parser.add_argument("--paper", action="store_true", help="tasks of the paper's sizes in place of the suite")
    parser.add_argument("-o", "--output", type=Path, help="a file for the tables")
    options = parser.parse_args()
    suite = load_suite("tiers-v1")
    tasks = [(suite.group(index), suite[index]) for index in range(len(suite))]
    if options.paper:
        tasks = [(f"{size} GB", paper_task(size)) for size in PAPER_GB]
    oracle, judge = make_cost("roofline"), make_cost("gpu")
    found: dict[str, dict[str, list[Figures]]] = {}
    for group, task in tqdm(tasks[: options.limit]):
        limit_s = PAPER_LIMIT_S if options.paper else None
        plans = [call_solver(solver, task, oracle, 0, time_limit_s=limit_s) for solver in SOLVERS.values()]
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
