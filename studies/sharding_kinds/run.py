"""How well costs agree with TorchRec's own steps, for all seven of its sharding types.

    sudo python studies/sharding_kinds/run.py --out DIR

Ten tables train with plans of every type and mixes of them, see `benchmarks/torchrec_step.py`; `fbgemm` measures the
same plans between the same links. There are two passes, each a launch of the ranks and an evaluation by `fbgemm`. The
agreement of the two halves of the real step is the limit of what any cost can reach.

DIR/result.csv has a row per number of ranks and plan; what is printed per cost is made of it. DIR/versions.json has the
versions of the costs. --report measures nothing, and makes the columns of costs that predict anew.
"""

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import numpy as np
from tabulate import tabulate
from validity import fbgemm_ms, real_ms
from validity_report import PASSES, by_cost, predicted

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.fbgemm import namespaces
from shardgym.tables.table import ZipfIds

#: Rows, columns, mean ids per sample; 23 of these in the mean, so that embeddings dominate a step.
TABLES = (
    (60_000, 16, 30), (30_000, 32, 25), (20_000, 64, 20), (20_000, 16, 40), (10_000, 32, 20), (5_000, 64, 15),
    (2_000, 16, 30), (1_000, 32, 20), (500, 32, 20), (400, 16, 10),
)  # fmt: skip
#: The first so many tables are the large ones, the last so many the small ones.
LARGE, SMALL = 3, 4
#: Ranks of a host.
HOST = 2
#: Mbit/s of links by number of ranks; samples of all ranks.
LINKS = {2: 1000, 4: 500}
BATCH = 8192
#: What stands beside `fbgemm`.
MODELS = ("simulator", "roofline", "torchrec_rating")


def make_task(ranks: int) -> ShardingTask:
    """Return the task for so many ranks."""
    rate = LINKS[ranks] * 1e6 / 8
    tables = [
        EmbeddingTable(f"t{n}", rows, width, float(pooling), ZipfIds(s=1.05, q=10.0))
        for n, (rows, width, pooling) in enumerate(TABLES)
    ]
    topology = Topology(
        ranks, 2**30, fast_domain_size=HOST, interconnect=f"{LINKS[ranks]} Mbit/s", intra_bandwidth=rate,
        inter_bandwidth=rate, intra_latency_ms=0.0, inter_latency_ms=0.0,
    )  # fmt: skip
    return ShardingTask(tuple(tables), topology, BATCH, optimizer="exact_sgd", name="sharding-kinds")


def make_plans(task: ShardingTask) -> dict[tuple[str, str], ShardingPlan]:
    """Return plans by sharding type, which is "mixed" for some, and what is special."""
    ranks = task.num_devices
    hosts = [range(first, first + HOST) for first in range(0, ranks, HOST)]
    tables = list(task.tables)
    large, small, rest = tables[:LARGE], tables[-SMALL:], tables[LARGE:]
    middle = tables[LARGE:-SMALL]

    def columns(table: EmbeddingTable, devices: Sequence[int], rows: tuple[int, int] | None = None) -> list[Shard]:
        width = table.embedding_dim // len(devices)
        rows = rows or (0, table.num_embeddings)
        return [Shard(table.name, rows, (n * width, (n + 1) * width), d) for n, d in enumerate(devices)]

    def by_rows(table: EmbeddingTable, devices: Sequence[int], between: tuple[int, int] | None = None) -> list[Shard]:
        block = -(-table.num_embeddings // len(devices))
        between = between or (0, table.embedding_dim)
        ends = [(n * block, min(table.num_embeddings, (n + 1) * block)) for n in range(len(devices))]
        return [Shard(table.name, pair, between, d) for pair, d in zip(ends, devices, strict=True)]

    def grid(table: EmbeddingTable, blocks: Sequence[range]) -> list[Shard]:
        width = table.embedding_dim // len(blocks)
        return [s for n, host in enumerate(blocks) for s in by_rows(table, host, (n * width, (n + 1) * width))]

    def balanced(placed: Sequence[EmbeddingTable], before: Sequence[Shard] = ()) -> list[Shard]:
        """Place whole tables, those with most to read first, where least is read so far."""
        read = np.zeros(ranks)
        for shard in before:
            table = task.table(shard.table)
            share = shard.num_rows / table.num_embeddings if len(shard.devices) == 1 else 1 / ranks
            read[list(shard.devices)] += table.pooling_factor * shard.num_columns * share
        found = []
        for table in sorted(placed, key=lambda t: -t.pooling_factor * t.embedding_dim):
            device = int(read.argmin())
            read[device] += table.pooling_factor * table.embedding_dim
            found.append(Shard.whole(table, device))
        return found

    def with_rest(shards: list[Shard], others: Sequence[EmbeddingTable] = rest) -> list[Shard]:
        return [*shards, *balanced(others, shards)]

    every = range(ranks)
    across = [0, ranks - 1] if len(hosts) > 1 else every
    blocks = hosts if len(hosts) > 1 else [every, every]
    of_host = [hosts[n % len(hosts)] for n in range(len(tables))]
    small_everywhere = [Shard.whole(table, *every) for table in small]
    plans = {
        ("table_wise", "balanced"): balanced(tables),
        ("table_wise", "in turn"): [Shard.whole(table, n % ranks) for n, table in enumerate(tables)],
        ("column_wise", "large"): with_rest([s for table in large for s in columns(table, across)]),
        ("column_wise", "all"): [s for table in tables for s in columns(table, every)],
        ("row_wise", "large"): with_rest([s for table in large for s in by_rows(table, every)]),
        ("row_wise", "all"): [s for table in tables for s in by_rows(table, every)],
        ("grid_shard", "large"): with_rest([s for table in large for s in grid(table, blocks)]),
        ("grid_shard", "all"): [s for table in tables for s in grid(table, blocks)],
        ("data_parallel", "small"): with_rest(small_everywhere, [*large, *middle]),
        ("data_parallel", "all"): [Shard.whole(table, *every) for table in tables],
        ("mixed", "rows, small everywhere"): with_rest(
            [s for table in large for s in by_rows(table, every)] + small_everywhere, middle
        ),
        ("mixed", "rows, columns, grid"): with_rest(
            [*by_rows(large[0], every), *columns(large[1], across), *grid(large[2], blocks), *small_everywhere], middle
        ),
    }
    if len(hosts) > 1:
        plans |= {
            ("table_row_wise", "large"): with_rest(
                [s for table, host in zip(large, of_host, strict=False) for s in by_rows(table, host)]
            ),
            ("table_row_wise", "all"): [
                s for table, host in zip(tables, of_host, strict=True) for s in by_rows(table, host)
            ],
            ("table_column_wise", "large"): with_rest(
                [s for table, host in zip(large, of_host, strict=False) for s in columns(table, host)]
            ),
            ("table_column_wise", "all"): [
                s for table, host in zip(tables, of_host, strict=True) for s in columns(table, host)
            ],
        }
    found = {name: ShardingPlan.of(task, shards) for name, shards in plans.items()}
    for (kind, name), plan in found.items():
        plan.validate(task)
        kinds = {plan.kind_of(table.name, task) for table in tables} if kind != "mixed" else {kind}
        if kind not in kinds:
            raise SystemExit(f"plan '{kind}, {name}' has no table of that type, but {sorted(kinds)}")
    return found


def measure(task: ShardingTask) -> list[dict[str, Any]]:
    """Return a row per plan: both passes of the real step and of `fbgemm`."""
    named = make_plans(task)
    plans = list(named.values())
    rows: list[dict[str, Any]] = [
        {"ranks": task.num_devices, "kind": kind, "plan": name, "shards": len(plan.shards)}
        for (kind, name), plan in named.items()
    ]
    for turn in range(PASSES):
        of_fbgemm = fbgemm_ms(task, plans, turn, rounds=2, warmups=1, iterations=2)
        for row, real, ms in zip(rows, real_ms(task, plans, turn), of_fbgemm, strict=True):
            row |= {f"real/{turn}": real, f"fbgemm/{turn}": ms}
        print(f"{task.num_devices} ranks, pass {turn + 1} of {PASSES}", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of result.csv")
    parser.add_argument("--report", action="store_true", help="measure nothing, but price the measured plans anew")
    given = parser.parse_args()
    path, kept = given.out / "result.csv", given.out / "versions.json"
    versions = {name: make_cost(name).version for name in ("fbgemm", *MODELS)}
    tasks = {ranks: make_task(ranks) for ranks in LINKS}
    if given.report:
        with path.open(newline="", encoding="utf-8") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        versions["fbgemm"] = json.loads(kept.read_text(encoding="utf-8"))["fbgemm"]
    else:
        if reason := namespaces.why_not():
            parser.error(reason)
        rows = [row for task in tasks.values() for row in measure(task)]
    for ranks, task in tasks.items():
        group = [row for row in rows if int(row["ranks"]) == ranks]
        plans = make_plans(task)
        ms = predicted(task, [plans[row["kind"], row["plan"]] for row in group])
        for row, values in zip(group, zip(*(ms[name][0] for name in MODELS), strict=True), strict=True):
            row |= {f"{name}/{turn}": v for name, v in zip(MODELS, values, strict=True) for turn in range(PASSES)}
        ms = {
            name: np.array([[float(row[f"{name}/{turn}"]) for row in group] for turn in range(PASSES)])
            for name in ("real", "fbgemm", *MODELS)
        }
        print(f"{ranks} ranks\n\n{tabulate(by_cost([ms]), headers='keys', floatfmt='.2f', tablefmt='github')}\n")
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
    kept.write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
