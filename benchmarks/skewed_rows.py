"""How well loads of ranks are told where rows are not equally popular: plans against streams replayed id by id.

    python benchmarks/skewed_rows.py [--plans N] [--batches N] [--csv FILE]

Each plan cuts one to three tables by rows over 2 to 16 ranks: evenly as TorchRec does, or anywhere. Tables have a Zipf
law each, with s from 0.5 to 1.3, and popular rows sorted by frequency, in blocks, or scattered; the orders take turns.
Streams are batches of 16,384 samples, drawn by `draw_bags`, counted id by id and averaged.

An error is that of the worst rank, as a share of its load: lookups, and distinct rows. Of ranks with next to no load a
stream says little: they are held against 1/50 of the mean rank's. "fair share" is the error if every row counted as
equally popular.
"""

import argparse
import csv
import dataclasses
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import numpy as np
from rank_loads import expected_loads, replayed_loads
from tabulate import tabulate
from tqdm import tqdm

from shardgym import EmbeddingTable, Shard, ShardingPlan, ShardingTask, Topology, UniformIds, ZipfIds
from shardgym.arrays import Floats
from shardgym.tables.ids import draw_bags
from shardgym.tables.table import RowOrder

BATCH_SIZE = 16_384
ORDERS: tuple[RowOrder, ...] = ("scattered", "by_frequency", "blocks")
RANKS = (2, 3, 4, 8, 16)
#: Of the mean rank's load: what a rank's error is a share of at least.
FLOOR = 0.02
LIMIT = 0.1
WIDTH = 16


class Row(NamedTuple):
    """One plan."""

    plan: int  #: its number, which is the seed of its tables, its cuts and its stream
    order: str
    s: str
    ranks: int
    cuts: str
    hottest: float  #: load of the hottest rank over that of the mean one, as replayed
    lookups: float  #: error, as that of distinct rows
    distinct_rows: float
    fair_share: float  #: error of lookups if every row counted as equally popular


def main() -> int:
    """Run the command; returns 1 when an error is above the limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=50, help="how many (%(default)s)")
    parser.add_argument("--batches", type=int, default=8, help="of each stream (%(default)s)")
    parser.add_argument("--csv", type=Path, help="write the table there, too")
    options = parser.parse_args()
    rows = [compared(plan, options.batches) for plan in tqdm(range(options.plans))]
    print(tabulate(rows, headers=Row._fields, floatfmt=".3f"))
    for error in ("lookups", "distinct_rows", "fair_share"):
        found = np.array([getattr(row, error) for row in rows])
        print(
            f"{error}: median {np.median(found):.3f}, largest {found.max():.3f}, "
            f"{int((found <= LIMIT).sum())} of {len(found)} plans within {LIMIT}"
        )
    if options.csv is not None:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            lines = csv.writer(file, lineterminator="\n")
            lines.writerow(Row._fields)
            lines.writerows([f"{cell:.4f}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return 1 if max(max(row.lookups, row.distinct_rows) for row in rows) > LIMIT else 0


def compared(number: int, batches: int) -> Row:
    """Draw a plan and a stream, and compare what is expected with what is counted."""
    rng = np.random.default_rng([29, number])
    order = ORDERS[number % len(ORDERS)]
    devices = int(rng.choice(RANKS))
    tables = tuple(drawn_table(f"t{n}", order, rng) for n in range(rng.integers(1, 4)))
    task = ShardingTask(tables, Topology(num_devices=devices, memory_bytes=2**40), BATCH_SIZE)
    even = bool(rng.integers(2))
    shards = [shard for table in tables for shard in row_shards(table, devices, even, rng)]
    plan = ShardingPlan.of(task, shards)

    streams = ({t.name: draw_bags(t, BATCH_SIZE, seed=number, batch=n) for t in tables} for n in range(1, batches + 1))
    lookups, distinct = np.mean([replayed_loads(task, plan, stream) for stream in streams], axis=0)
    told_lookups, told_distinct = expected_loads(task, plan)
    even_rows = dataclasses.replace(task, tables=tuple(dataclasses.replace(t, ids=UniformIds()) for t in tables))
    fair, _ = expected_loads(even_rows, ShardingPlan.of(even_rows, shards))
    return Row(
        number, order, ", ".join(f"{table.ids.s:.2f}" for table in tables), devices, "even" if even else "anywhere",
        float(lookups.max() / lookups.mean()), error(told_lookups, lookups), error(told_distinct, distinct),
        error(fair, lookups),
    )  # fmt: skip


def drawn_table(name: str, order: RowOrder, rng: np.random.Generator) -> EmbeddingTable:
    """Return a table of 20,000 to 2 million rows."""
    rows = int(np.exp(rng.uniform(np.log(2e4), np.log(2e6))))
    q = float(rng.choice([0.0, rng.uniform(0, 100)]))
    block_rows = int(np.exp(rng.uniform(np.log(10), np.log(rows / 10)))) if order == "blocks" else None
    law = ZipfIds(float(rng.uniform(0.5, 1.3)), q, row_order=order, block_rows=block_rows)
    return EmbeddingTable(name, rows, WIDTH, float(rng.uniform(1, 20)), law)


def row_shards(table: EmbeddingTable, devices: int, even: bool, rng: np.random.Generator) -> list[Shard]:
    """Return a table cut by rows over all devices, evenly as TorchRec does it or anywhere."""
    rows = table.num_embeddings
    if even:
        cuts = [-(-rows // devices) * n for n in range(1, devices)]
    else:
        cuts = np.sort(rng.choice(np.arange(1, rows), devices - 1, replace=False)).tolist()
    edges = [0, *cuts, rows]
    return [Shard(table.name, (edges[d], edges[d + 1]), (0, WIDTH), d) for d in range(devices)]


def error(told: Floats, found: Floats) -> float:
    """Return the error of the worst rank."""
    return float((np.abs(told - found) / np.maximum(found, FLOOR * found.mean())).max())


if __name__ == "__main__":
    sys.exit(main())
