"""How the cost of a fused kernel departs from the sum of what its tables cost one by one.

    python benchmarks/fusion.py [--device cpu|cuda] [--tables N] [--sets N] [--simulator] [--plot FILE] [--json]

Measures some tables of the test half of `synthetic-2021`, at the widths and sizes of the suites, one by one, and sets
of them in one fused operator, all interleaved in one run. For every number of tables it prints fused time over the sum
of single times, how far that sum is from the fused time after one factor for all sets, and Kendall's tau between both:
what an additive cost model that knows every table exactly would reach. --simulator puts the learned one beside it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from pathlib import Path

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from shardgym.arrays import Floats

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.fusion_report import plot, summary
from benchmarks.script import run_script
from shardgym import CostModel, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.collection.sampling import DIMS, whole_table
from shardgym.collection.settings import SETUPS
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.fbgemm.rounds import mean_of_medians, time_shard_sets
from shardgym.errors import import_extra
from shardgym.pools import load_pool

#: Tables of the sets.
SIZES = (2, 4, 8, 15, 30, 60)
#: How many times a device's memory they may take together.
_DEVICES = 4


def main() -> None:
    """Measure, print the table and draw the plot."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(SETUPS), default="cpu")
    parser.add_argument("--tables", type=int, default=80, help="measured one by one (%(default)s)")
    parser.add_argument("--sets", type=int, default=10, help="of every size (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulator", action="store_true", help="compare the one of this machine too")
    parser.add_argument("--plot", type=Path, help="file for the plot; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="also every single set")
    given = parser.parse_args()
    if given.plot is not None:
        import_extra("matplotlib.figure", "--plot")
    pieces = draw_pieces(given.device, given.tables, np.random.default_rng(given.seed))
    sets = draw_sets(given.device, pieces, given.sets, np.random.default_rng(given.seed + 1))
    hardware, ms = measure(given.device, [[piece] for piece in pieces] + sets, given.rounds, given.seed)
    single, fused = ms[: len(pieces)], ms[len(pieces) :]
    place = {piece: i for i, piece in enumerate(pieces)}
    sums = np.array([single[[place[piece] for piece in held]].sum(axis=0) for held in sets])
    predicted = predict(hardware, [content(given.device, held) for held in sets]) if given.simulator else None
    sizes = [len(held) for held in sets]
    rows = summary(sizes, sums, fused, predicted)
    if given.json:
        found = {"tables": sizes, "fused_ms": fused.tolist(), "sum_ms": sums.tolist()}
        print(json.dumps({"hardware": hardware, "sizes": rows, **found}))
    else:
        print(f"{hardware}\n{tabulate(rows, headers='keys', floatfmt='.3f')}")
    if given.plot is not None:
        plot(given.plot, hardware, sizes, sums, fused)


def draw_pieces(device: str, count: int, rng: np.random.Generator) -> list[ShardSpec]:
    """Draw whole tables of the test half, each at a random width of the suites."""
    setup = SETUPS[device]
    tables = load_pool(setup.pool).split()[1].scaled(setup.scale).tables
    chosen = rng.choice(len(tables), size=count, replace=False).tolist()
    return [whole_table(tables[i], int(rng.choice(DIMS))) for i in chosen]


def draw_sets(device: str, pieces: list[ShardSpec], count: int, rng: np.random.Generator) -> list[list[ShardSpec]]:
    """Draw `count` sets of each of `SIZES` that take at most the memory of a whole task."""
    limit, sets = _DEVICES * SETUPS[device].memory_bytes, []
    for size in (size for size in SIZES if size <= len(pieces)):
        found = 0
        while found < count:
            held = [pieces[i] for i in sorted(rng.choice(len(pieces), size=size, replace=False).tolist())]
            if content(device, held).num_weights * 4 <= limit:
                sets.append(held)
                found += 1
    return sets


def content(device: str, pieces: list[ShardSpec]) -> ShardSet:
    """Return what a device that holds these pieces has to do in a step."""
    setup = SETUPS[device]
    batch_size = load_pool(setup.pool).batch_size // setup.scale
    return ShardSet(tuple(pieces), batch_size, setup.precision, setup.optimizer)


def measure(device: str, held: list[list[ShardSpec]], rounds: int, seed: int) -> tuple[str, Floats]:
    """Return the hardware tag, and forward and backward time of each set in ms, shape (sets, 2)."""
    contents = [content(device, pieces) for pieces in held]
    pool = WorkerPool(device, 1, seed, timeout_s=300.0)
    try:
        hardware = str(pool.facts()["hardware"])
        samples, failed, notes = time_shard_sets(
            pool, tqdm(contents), rounds=rounds, warmups=1, iterations=3, rng=random.Random(seed)
        )
    finally:
        pool.close()
    if failed:
        raise SystemExit(f"{len(failed)} sets failed: {next(iter(failed.values()))}")
    if notes:
        raise SystemExit(f"{len(notes)} sets have no times of their own: {'; '.join(next(iter(notes.values())))}")
    return hardware, np.array([mean_of_medians(samples[c]) for c in contents])


def predict(hardware: str, contents: list[ShardSet]) -> Floats:
    """Return what the simulator of this machine says of each content, forward plus backward in ms, shape (contents,).

    Raises:
        InputError: there are no weights for this hardware.
    """
    cost = make_cost("simulator", hardware=hardware)
    return np.array([_predict(cost, held) for held in contents])


def _predict(cost: CostModel, held: ShardSet) -> float:
    """Ask for a task of one device, whose tables have the widths of the pieces."""
    tables = tuple(dataclasses.replace(p.table, embedding_dim=p.width) for p in held.shards)
    topology = Topology(num_devices=1, memory_bytes=2**50)
    task = ShardingTask(tables, topology, held.batch_size, held.precision, held.optimizer)
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0] * len(tables))])
    return float(found.per_device[0, [0, 3]].sum())


if __name__ == "__main__":
    sys.exit(run_script(main))
