"""How the cost of a fused kernel departs from the sum of what its tables cost one by one.

    python studies/fusion/run.py [--device cpu|cuda] [--tables N] [--sets N] [--simulator] [--plot FILE] [--json]

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
from typing import Any

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from shardgym import ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.arrays import Floats
from shardgym.collection.sampling import DIMS, whole_table
from shardgym.collection.settings import SETUPS
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.fbgemm.rounds import mean_of_medians, time_shard_sets
from shardgym.errors import ShardGymError, import_extra
from shardgym.pools import load_pool
from shardgym.pretraining.assess import kendall_tau, mape

#: Tables of the sets.
SIZES = (2, 4, 8, 15, 30, 60)
#: How many times a device's memory they may take together.
_DEVICES = 4


def main() -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(SETUPS), default="cpu")
    parser.add_argument("--tables", type=int, default=80, help="measured one by one (%(default)s)")
    parser.add_argument("--sets", type=int, default=10, help="of every size (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simulator", action="store_true", help="compare the one of this machine too")
    parser.add_argument("--plot", type=Path, help="file for the plot; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="also every single set")
    try:
        report(parser.parse_args())
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def report(given: argparse.Namespace) -> None:
    """Measure, print the table and draw the plot."""
    if given.plot is not None:
        import_extra("matplotlib.figure", "--plot")
    shards = draw_shards(given.device, given.tables, np.random.default_rng(given.seed))
    sets = draw_sets(given.device, shards, given.sets, np.random.default_rng(given.seed + 1))
    hardware, ms = measure(given.device, [[shard] for shard in shards] + sets, given.rounds, given.seed)
    single = ms[: len(shards)]
    fused = ms[len(shards) :]
    place = {shard: i for i, shard in enumerate(shards)}
    sums = np.array([single[[place[shard] for shard in chosen]].sum(axis=0) for chosen in sets])
    predicted = predict(hardware, [shard_set(given.device, chosen) for chosen in sets]) if given.simulator else None
    sizes = [len(chosen) for chosen in sets]
    rows = summary(sizes, sums, fused, predicted)
    if given.json:
        found = {"tables": sizes, "fused_ms": fused.tolist(), "sum_ms": sums.tolist()}
        print(json.dumps({"hardware": hardware, "sizes": rows, **found}))
    else:
        print(f"{hardware}\n{tabulate(rows, headers='keys', floatfmt='.3f')}")
    if given.plot is not None:
        plot(given.plot, hardware, sizes, sums, fused)


def draw_shards(device: str, count: int, rng: np.random.Generator) -> list[ShardSpec]:
    """Draw whole tables of the test half, each at a random width of the suites."""
    setup = SETUPS[device]
    tables = load_pool(setup.pool).split()[1].scaled(setup.scale).tables
    chosen = rng.choice(len(tables), size=count, replace=False).tolist()
    return [whole_table(tables[i], int(rng.choice(DIMS))) for i in chosen]


def draw_sets(device: str, shards: list[ShardSpec], count: int, rng: np.random.Generator) -> list[list[ShardSpec]]:
    """Draw `count` sets of each of `SIZES` that take at most the memory of a whole task."""
    limit = _DEVICES * SETUPS[device].memory_bytes
    sets = []
    for size in (size for size in SIZES if size <= len(shards)):
        found = 0
        while found < count:
            chosen = [shards[i] for i in sorted(rng.choice(len(shards), size=size, replace=False).tolist())]
            if shard_set(device, chosen).num_weights * 4 <= limit:
                sets.append(chosen)
                found += 1
    return sets


def shard_set(device: str, shards: list[ShardSpec]) -> ShardSet:
    """Return what a device that holds these shards has to do in a step."""
    setup = SETUPS[device]
    batch_size = load_pool(setup.pool).batch_size // setup.scale
    return ShardSet(tuple(shards), batch_size, setup.precision, setup.optimizer)


def measure(device: str, chosen: list[list[ShardSpec]], rounds: int, seed: int) -> tuple[str, Floats]:
    """Return the hardware tag, and forward and backward time of each set in ms, shape (sets, 2)."""
    shard_sets = [shard_set(device, shards) for shards in chosen]
    pool = WorkerPool(device, 1, seed, timeout_s=300.0)
    try:
        hardware = str(pool.facts()["hardware"])
        samples, failed, notes = time_shard_sets(
            pool, tqdm(shard_sets), rounds=rounds, warmups=1, iterations=3, rng=random.Random(seed)
        )
    finally:
        pool.close()
    if failed:
        raise SystemExit(f"{len(failed)} sets failed: {next(iter(failed.values()))}")
    if notes:
        raise SystemExit(f"{len(notes)} sets have no times of their own: {'; '.join(next(iter(notes.values())))}")
    return hardware, np.array([mean_of_medians(samples[c]) for c in shard_sets])


def predict(hardware: str, shard_sets: list[ShardSet]) -> Floats:
    """Return what the simulator of this machine says of each shard set, forward plus backward in ms, shape (sets,).

    Raises:
        InputError: there are no weights for this hardware.
    """
    cost = make_cost("simulator", hardware=hardware)
    topology = Topology(num_devices=1, memory_bytes=2**50)
    found = []
    for chosen in shard_sets:
        tables = tuple(dataclasses.replace(p.table, embedding_dim=p.width) for p in chosen.shards)
        task = ShardingTask(tables, topology, chosen.batch_size, chosen.precision, chosen.optimizer)
        (plan_cost,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0] * len(tables))])
        found.append(plan_cost.compute_ms.sum())
    return np.array(found)


def summary(sizes: list[int], sums: Floats, fused: Floats, predicted: Floats | None) -> list[dict[str, Any]]:
    """Return one row per number of tables. All figures are of forward plus backward but for the two that say otherwise.

    Both models are scaled by one factor for all sets before their errors are taken: machines drift between the
    simulator's training data and now, and a factor changes no decision.

    Args:
        sizes: tables of each set.
        sums: sums of single times in ms, forward and backward, shape (sets, 2).
        fused: times of the fused operator, likewise.
        predicted: forward plus backward of the simulator in ms, shape (sets,).
    """
    added = sums.sum(axis=1)
    total = fused.sum(axis=1)
    rows = []
    models = {"the sum": added} | ({} if predicted is None else {"the simulator": predicted})
    for size in sorted(set(sizes)):
        here = np.array(sizes) == size
        ratio = total[here] / added[here]
        row: dict[str, Any] = {
            "tables": size, "sets": int(here.sum()), "fused / sum": float(np.median(ratio)),
            "least": float(ratio.min()), "most": float(ratio.max()),
            "forward": float(np.median(fused[here, 0] / sums[here, 0])),
            "backward": float(np.median(fused[here, 1] / sums[here, 1])),
        }  # fmt: skip
        for name, model in models.items():
            scaled = model * float(np.median(total / model))
            row[f"error of {name}"] = mape(scaled[here], total[here])
            row[f"tau of {name}"] = kendall_tau(scaled[here], total[here])
        rows.append(row)
    return rows


def plot(path: Path, hardware: str, sizes: list[int], sums: Floats, fused: Floats) -> None:
    """Draw fused time against the sum of single times, and their ratio against the number of tables."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    added = sums.sum(axis=1)
    total = fused.sum(axis=1)
    points = left.scatter(added, total, c=np.log2(sizes), s=14, cmap="viridis")
    ends = [min(added.min(), total.min()), max(added.max(), total.max())]
    left.plot(ends, ends, "k--", linewidth=0.8, label="no effect of fusion")
    left.set(
        xscale="log", yscale="log", xlabel="sum of single tables, ms", ylabel="one fused operator, ms", title=hardware
    )
    left.legend()
    bar = figure.colorbar(points, ax=left, ticks=np.log2(sorted(set(sizes))))
    bar.ax.set_yticklabels([str(size) for size in sorted(set(sizes))])
    bar.set_label("tables")
    for name, column, offset in (("forward", 0, 0.97), ("backward", 1, 1.03)):
        ratio = fused[:, column] / sums[:, column]
        right.plot(np.array(sizes) * offset, ratio, "o", markersize=4, label=name, alpha=0.7)
    right.axhline(1.0, color="k", linestyle="--", linewidth=0.8)
    right.set(xscale="log", xlabel="tables in the operator", ylabel="fused / sum of single tables")
    right.set_xticks(sorted(set(sizes)), [str(size) for size in sorted(set(sizes))])
    right.minorticks_off()
    right.legend()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    sys.exit(main())
