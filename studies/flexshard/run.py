"""FlexShard's claims, per skew: less traffic between nodes, lower latency of communication, no more memory.

    python studies/flexshard/run.py [--nodes N ...] [--skews S ...] > studies/flexshard/result.csv
    python studies/flexshard/run.py --summary studies/flexshard/result.csv

Unpooled tables on nodes of eight H100, rows in order of frequency, 200 ids per sample and table. Plans:

- rows: every table over all devices by rows, so that all are asked for about as much, as hashed ids would be;
- rows_in_order: evenly in the order of frequency, as a table whose ids were given out by frequency is cut;
- columns: every table in eight pieces of 16 columns, one device after another;
- tables: whole tables by `lpt_whole`, on devices with all memory: as RecShard's, whose cold rows are in host memory,
  here at no cost of time;
- flexshard with a share of memory more than rows take.

Judged by `replay`: streams where the batch has at most `MOST_IDS` ids, else expected numbers. Traffic is ids, rows and
gradients between nodes; "synchronised" adds gradients of copies. Latency is the largest sum of a device over exchanges,
the wait for others included.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import sys

from tabulate import tabulate

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.plans.row_tiers import Tiers, tier_plan
from shardgym.plans.shard import Shard
from shardgym.tables.table import ZipfIds

MOST_IDS = 8_000_000
SKEWS = (0.2, 0.6, 0.85, 1.05, 1.1, 1.25)
#: Tables and samples per device, by nodes.
SETTINGS = {2: (32, (64, 512)), 16: (16, (16, 512))}
EXTRA = (0.05, 0.25, 1.0)
FIELDS = (
    "nodes", "samples", "skew", "dedup", "plan", "ids", "traffic_mb", "synchronised_mb", "latency_ms", "step_ms",
    "memory", "everywhere", "in_nodes",
)  # fmt: skip


def task_of(nodes: int, tables: int, samples: int, skew: float, dedup: bool) -> ShardingTask:
    law = ZipfIds(skew, 2.0, lengths="poisson", row_order="by_frequency")
    held = tuple(EmbeddingTable(f"t{n}", 500_000, 128, 200.0, law, pooling="none") for n in range(tables))
    topology = Topology.preset("dgx-h100", 8 * nodes).roomy()
    return ShardingTask(held, topology, samples * 8 * nodes, optimizer="rowwise_adagrad", dedup_ids=dedup)


def plans_of(task: ShardingTask) -> dict[str, ShardingPlan]:
    devices = task.num_devices
    plans = {"rows": tier_plan(task, [Tiers(0, 0)] * task.num_tables)}
    in_order = []
    for table in task.tables:
        edges = [table.num_embeddings * n // devices for n in range(devices + 1)]
        columns = (0, table.embedding_dim)
        in_order += [Shard(table.name, rows, columns, n) for n, rows in enumerate(itertools.pairwise(edges))]
    plans["rows_in_order"] = ShardingPlan.of(task, in_order)
    pieces = [
        Shard(table.name, (0, table.num_embeddings), (16 * k, 16 * k + 16), (8 * n + k) % devices)
        for n, table in enumerate(task.tables)
        for k in range(8)
    ]
    plans["columns"] = ShardingPlan.of(task, pieces)
    plans["tables"] = make_solver("lpt_whole").solve(task, make_cost("roofline"))
    expected = make_cost("replay", ids="expected")
    for extra in EXTRA:
        plans[f"flexshard+{extra:.0%}"] = make_solver("flexshard", extra_memory=extra).solve(task, expected)
    return plans


def summarize(path: str) -> None:
    """Print, for each setting, what flexshard saves with some memory more than rows take."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    settings = dict.fromkeys(tuple(row[name] for name in ("nodes", "samples", "dedup", "skew")) for row in rows)
    table = []
    for setting in settings:
        of = {r["plan"]: r for r in rows if tuple(r[name] for name in ("nodes", "samples", "dedup", "skew")) == setting}
        by_rows = of["rows"]

        def less(plan: str, what: str) -> str:
            return f"{1 - float(of[plan][what]) / float(by_rows[what]):.0%}"

        def times(plan: str, rival: str) -> str:
            return f"{float(of[rival]['latency_ms']) / float(of[plan]['latency_ms']):.1f}"

        nodes, samples, dedup, skew = setting
        table.append(
            {
                "nodes": nodes, "samples": samples, "dedup": "yes" if dedup == "1" else "no", "skew": skew,
                "traffic, 5 %": less("flexshard+5%", "traffic_mb"), "25 %": less("flexshard+25%", "traffic_mb"),
                "100 %": less("flexshard+100%", "traffic_mb"),
                "synchronised, 25 %": less("flexshard+25%", "synchronised_mb"),
                "latency, rows": times("flexshard+25%", "rows"),
                "rows in order": times("flexshard+25%", "rows_in_order"),
                "columns": times("flexshard+25%", "columns"), "tables": times("flexshard+25%", "tables"),
                "step, rows": f"{float(by_rows['step_ms']) / float(of['flexshard+25%']['step_ms']):.1f}",
                "memory": of["flexshard+25%"]["memory"],
            }
        )  # fmt: skip
    print(tabulate(table, headers="keys", tablefmt="github"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--skews", type=float, nargs="+", default=SKEWS)
    parser.add_argument("--summary", metavar="CSV", help="print the tables of a result")
    options = parser.parse_args()
    if options.summary:
        summarize(options.summary)
        return
    writer = csv.DictWriter(sys.stdout, FIELDS)
    writer.writeheader()
    for nodes in options.nodes:
        tables, sizes = SETTINGS[nodes]
        for samples, skew, dedup in itertools.product(sizes, options.skews, (False, True)):
            if dedup and skew not in (1.05, 1.25):
                continue
            task = task_of(nodes, tables, samples, skew, dedup)
            is_small = task.batch_size * 200 * tables <= MOST_IDS
            judge = make_cost("replay") if is_small else make_cost("replay", ids="expected")
            even = sum(map(task.table_bytes, task.tables)) / task.num_devices
            for name, plan in plans_of(task).items():
                [answer] = judge.evaluate(task, [plan])
                found = judge.traffic(task, plan)
                first = plan.of_table("t0")
                held = {
                    copies: sum(s.num_rows for s in first if len(s.devices) == copies) for copies in (8 * nodes, nodes)
                }
                writer.writerow(
                    {
                        "nodes": nodes, "samples": samples, "skew": skew, "dedup": int(dedup), "plan": name,
                        "ids": "stream" if is_small else "expected",
                        "traffic_mb": round(found.global_all_to_all_bytes / 1e6, 1),
                        "synchronised_mb": round(found.total[:, 1].sum() / 1e6, 1),
                        "latency_ms": round(float(answer.per_device[:, [0, 2, 3]].sum(axis=1).max()), 4),
                        "step_ms": round(answer.total_ms, 4),
                        "memory": round(max(plan.bytes_per_device(task)) / even, 3),
                        "everywhere": held[8 * nodes], "in_nodes": held[nodes],
                    }
                )  # fmt: skip
                sys.stdout.flush()


if __name__ == "__main__":
    main()
