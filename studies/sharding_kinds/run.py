"""How well costs agree with TorchRec's own steps, for all seven of its sharding types.

    sudo python studies/sharding_kinds/run.py --out DIR [--ranks 2 4] [--links 1000 500] [--rounds N] [--steps N]

A small DLRM trains with plans of every type and mixes of them, see `benchmarks/torchrec_step.py`; `fbgemm` measures the
same plans between the same links.

A step takes as long as its slowest rank: "wall" by the clock, "cpu" by the processor time of the rank's process, gloo's
threads included. There are two passes, each a launch of the ranks and an evaluation by `fbgemm`. The agreement of the
two halves of the real step is the limit of what any cost can reach.

DIR/result.csv has a row per number of ranks and plan; what is printed per type and per cost is made of it.
DIR/versions.json has the versions of the costs. --report measures nothing, and makes the columns of costs that predict
anew; --links and --batch-size have to be those of the measurement.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import numpy as np
from tabulate import tabulate
from torchrec_step import CLOCKS, HOST, real_ms
from validity_report import agreement

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.arrays import Floats
from shardgym.costs.fbgemm import namespaces
from shardgym.tables.table import ZipfIds

#: Rows, columns, mean ids per sample; 23 of these in the mean, so that embeddings dominate a step.
TABLES = (
    (60_000, 16, 30), (30_000, 32, 25), (20_000, 64, 20), (20_000, 16, 40), (10_000, 32, 20), (5_000, 64, 15),
    (2_000, 16, 30), (1_000, 32, 20), (500, 32, 20), (400, 16, 10),
)  # fmt: skip
#: The first so many tables are the large ones, the last so many the small ones.
LARGE, SMALL = 3, 4
PASSES = 2
#: What stands beside `fbgemm`; TorchRec's planner is told the rate of the links.
MODELS = ("simulator", "roofline", "torchrec_rating")


def make_task(ranks: int, rate: float, batch_size: int) -> ShardingTask:
    """Return the task for so many ranks with links of `rate` bytes per second."""
    tables = [
        EmbeddingTable(f"t{n}", rows, width, float(pooling), ZipfIds(s=1.05, q=10.0))
        for n, (rows, width, pooling) in enumerate(TABLES)
    ]
    topology = Topology(
        ranks, 2**30, fast_domain_size=HOST, interconnect=f"{rate * 8e-6:.0f} Mbit/s", intra_bandwidth=rate,
        inter_bandwidth=rate, intra_latency_ms=0.0, inter_latency_ms=0.0,
    )  # fmt: skip
    return ShardingTask(tuple(tables), topology, batch_size, optimizer="exact_sgd", name="sharding-kinds")


def make_plans(task: ShardingTask) -> dict[tuple[str, str], ShardingPlan]:
    """Return plans by sharding type, which is "mixed" for some, and what is special."""
    ranks = task.num_devices
    hosts = [range(first, first + HOST) for first in range(0, ranks, HOST)]
    tables = list(task.tables)
    large, small, rest = tables[:LARGE], tables[-SMALL:], tables[LARGE:]
    middle = tables[LARGE:-SMALL]

    def everywhere(table: EmbeddingTable, devices: Sequence[int]) -> list[Shard]:
        return [Shard.whole(table, *devices)]

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
    small_everywhere = [s for table in small for s in everywhere(table, every)]
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
        ("data_parallel", "all"): [s for table in tables for s in everywhere(table, every)],
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


def fbgemm_ms(task: ShardingTask, plans: list[ShardingPlan], rounds: int, seed: int) -> dict[str, list[float]]:
    """Return the ms of each plan by `fbgemm`, and those of its work alone, by new processes."""
    with make_cost("fbgemm", rounds=rounds, warmups=1, iterations=2, seed=seed, comm="measured") as cost:
        costs = cost.evaluate(task, plans)
    for of_plan in costs:
        if of_plan.reason is not None:
            raise SystemExit(of_plan.reason)
    work = [of_plan.per_device[:, [1, 4]].sum(axis=1).max() for of_plan in costs]
    return {"fbgemm": [of_plan.total_ms for of_plan in costs], "fbgemm, compute": work}


def predicted_ms(task: ShardingTask, plans: list[ShardingPlan]) -> Iterator[tuple[str, list[float]]]:
    """Yield `MODELS` and the ms of each plan, NaN where a model says that it does not know the plan."""
    per_ms = task.topology.intra_bandwidth / 1000
    links = {"intra_host_bw": per_ms, "inter_host_bw": per_ms}  # otherwise those of GPUs
    settings: list[dict[str, Any]] = [{}, {}, {"compute_device": "cpu", **links}]
    for name, of_model in zip(MODELS, settings, strict=True):
        costs = make_cost(name, **of_model).evaluate(task, plans)
        refused = sorted({of_plan.reason for of_plan in costs if of_plan.reason is not None})
        for reason in refused:
            print(f"{name}: {reason}", file=sys.stderr)
        yield name, [np.nan if of_plan.reason is not None else of_plan.total_ms for of_plan in costs]


def measure(task: ShardingTask, rounds: int, steps: int, fbgemm_rounds: int) -> list[dict[str, Any]]:
    """Return a row per plan: both passes of the real step without its dense part, and of every cost."""
    named = make_plans(task)
    plans = list(named.values())
    rows: list[dict[str, Any]] = [
        {"ranks": task.num_devices, "kind": kind, "plan": name, "shards": len(plan.shards)}
        for (kind, name), plan in named.items()
    ]

    def add(what: str, turn: int, values: Sequence[float]) -> None:
        for row, value in zip(rows, values, strict=True):
            row[f"{what}/{turn}"] = float(value)

    for turn in range(PASSES):
        begin = time.monotonic()
        found = real_ms(task, plans, rounds, steps, turn)
        for clock, ms in zip(CLOCKS, found, strict=True):
            add(clock, turn, ms[:-1] - ms[-1])
            add(f"dense {clock}", turn, [ms[-1]] * len(plans))
        print(f"{task.num_devices} ranks, real steps: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        begin = time.monotonic()
        for what, values in fbgemm_ms(task, plans, fbgemm_rounds, turn).items():
            add(what, turn, values)
        print(f"{task.num_devices} ranks, fbgemm: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return rows


def add_predictions(rows: list[dict[str, Any]], task: ShardingTask) -> None:
    """Price the plans of a task's rows by the models of today, which makes their columns anew."""
    plans = make_plans(task)
    for what, values in predicted_ms(task, [plans[row["kind"], row["plan"]] for row in rows]):
        for row, value in zip(rows, values, strict=True):
            row.update({f"{what}/{turn}": float(value) for turn in range(PASSES)})


def halves(rows: list[dict[str, Any]], what: str) -> Floats:
    """Return the ms of plans in both passes, shape (2, plans)."""
    return np.array([[float(row[f"{what}/{turn}"]) for row in rows] for turn in range(PASSES)])


def by_kind(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per type: ms of the real step without the dense part, and every cost over it."""
    found = []
    for kind in dict.fromkeys(row["kind"] for row in rows):
        of_kind = [row for row in rows if row["kind"] == kind]
        wall, dense = halves(of_kind, "wall"), halves(of_kind, "dense wall")
        table = {"ranks": of_kind[0]["ranks"], "kind": kind, "plans": len(of_kind), "step ms": wall.mean()}
        table |= {"dense ms": dense.mean(), "cpu ms": halves(of_kind, "cpu").mean()}
        for cost in ("fbgemm", *MODELS):
            level = float(np.mean(halves(of_kind, cost).mean(axis=0) / wall.mean(axis=0)))
            table[f"{cost} / step"] = level if np.isfinite(level) else None
        found.append(table)
    return found


def by_cost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per clock and cost: how it agrees with real steps, over the plans that it knows."""
    found = []
    for clock in CLOCKS:
        for cost in (clock, "fbgemm", "fbgemm, compute", *MODELS):
            own, real = halves(rows, cost), halves(rows, clock)
            known = np.isfinite(own).all(axis=0)
            name = "the real step" if cost == clock else cost
            row = {"ranks": rows[0]["ranks"], "step by": clock, "cost": name, "plans": int(known.sum())}
            if known.sum() > 1:
                row |= agreement(own[:, known], real[:, known])
            found.append(row)
    return found


def main() -> None:
    """Measure, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of result.csv")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4], help="(%(default)s)")
    parser.add_argument(
        "--links", type=int, nargs="+", default=[1000, 500], help="Mbit/s, for each number of ranks (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of each of two launches of TorchRec (%(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="of a round, after two that do not count (%(default)s)")
    parser.add_argument("--fbgemm-rounds", type=int, default=2, help="of each of two evaluations (%(default)s)")
    parser.add_argument("--batch-size", type=int, default=8192, help="of all ranks (%(default)s)")
    parser.add_argument("--report", action="store_true", help="measure nothing, but price the measured plans anew")
    given = parser.parse_args()
    path = given.out / "result.csv"
    if len(given.links) != len(given.ranks):
        parser.error(f"--links: expected {len(given.ranks)} rates, one for each of --ranks, got {len(given.links)}")
    tasks = {
        ranks: make_task(ranks, links * 1e6 / 8, given.batch_size)
        for ranks, links in zip(given.ranks, given.links, strict=True)
    }
    versions = {name: make_cost(name).version for name in ("fbgemm", *MODELS)}
    rows: list[dict[str, Any]] = []
    if given.report:
        with path.open(newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
        if {int(row["ranks"]) for row in rows} != set(tasks):
            parser.error(f"--ranks: {given.ranks}, expected those of {path}, as all its plans are priced anew")
        versions["fbgemm"] = json.loads(path.with_name("versions.json").read_text(encoding="utf-8"))["fbgemm"]
    else:
        if reason := namespaces.why_not():
            parser.error(reason)
        for task in tasks.values():
            rows += measure(task, given.rounds, given.steps, given.fbgemm_rounds)
    groups = [[row for row in rows if int(row["ranks"]) == ranks] for ranks in tasks]
    for group, task in zip(groups, tasks.values(), strict=True):
        add_predictions(group, task)
    given.out.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in row.items()} for row in rows
        )
    path.with_name("versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    for table in (by_kind, by_cost):
        found = [row for group in groups for row in table(group)]
        print(tabulate(found, headers="keys", floatfmt=".2f", tablefmt="github", missingval="-"), end="\n\n")


if __name__ == "__main__":
    main()
