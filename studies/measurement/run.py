"""Samples per minute of the measured cost's worker against building a fresh operator for every sample.

    python -m studies.measurement.run [--samples N] [--max-rows N] [--json]

Three ways measure the same random shards on the same core, in random order, so that drift of the machine meets all
alike: the worker as it is; a fresh operator with the same steps and ids, which shows what recycling memory gives; and
the published way (NeuroShard, `compute_bench.py`: fresh operator, 5 warm-ups and 10 timed steps on one
batch of ids). Every shard is measured a second time, untimed, to show how well each way repeats itself.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.machine import cpu_tag, usable_cores
from shardgym.costs.fbgemm.pool import ENVIRONMENT
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.table import EmbeddingTable, ZipfIds

BATCH, TIMEOUT_S = 2048, 300.0
_STEPS = tuple(inspect.signature(FbgemmCost).parameters[name].default for name in ("warmups", "iterations"))
_NAIVE = "studies.measurement.naive_worker"
_WIDTHS = (4, 8, 16, 32, 64, 128)


class Way(NamedTuple):
    """A way of measuring: its worker, warm-ups and timed steps."""

    worker: ChildProcess
    warmups: int
    iterations: int

    def measure(self, shard_set: ShardSet) -> tuple[float, float]:
        """Return the median step in ms and the seconds that getting it took."""
        start = time.perf_counter()
        self.worker.send(TimingJob(shard_set, self.warmups, self.iterations))
        status, found = self.worker.receive(TIMEOUT_S)
        if status != "ok":
            raise SystemExit(f"measurement failed: {found}")
        return float(np.median(found.times.sum(axis=1))), time.perf_counter() - start


def main() -> None:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--max-rows", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    shard_sets = random_shard_sets(given.samples, random_tables(60, given.max_rows, rng), BATCH, rng)
    result = compare(shard_sets, given.seed)
    print(json.dumps(result) if given.json else text(result))


def random_tables(count: int, max_rows: int, rng: np.random.Generator) -> list[EmbeddingTable]:
    """Return tables with 100 to `max_rows` rows, pooling factors 1 to 100 and Zipf ids, both log-uniform."""
    rows = np.exp(rng.uniform(np.log(100), np.log(max_rows), count)).astype(int)
    pooling = np.exp(rng.uniform(0, np.log(100), count))
    return [
        EmbeddingTable(f"t{i}", int(rows[i]), max(_WIDTHS), float(pooling[i]), ZipfIds(s=1.05, q=2.0))
        for i in range(count)
    ]


def random_shard_sets(
    count: int, tables: list[EmbeddingTable], batch_size: int, rng: np.random.Generator
) -> list[ShardSet]:
    """Return shard sets of 1 to 11 different tables, each at a width of 4 to 128."""
    shard_sets = []
    for _ in range(count):
        chosen = sorted(rng.choice(len(tables), size=rng.integers(1, 12), replace=False).tolist())
        shards = [ShardSpec(tables[i], (0, tables[i].num_embeddings), int(rng.choice(_WIDTHS))) for i in chosen]
        shard_sets.append(ShardSet(tuple(shards), batch_size, "fp32", "exact_sgd"))
    return shard_sets


def compare(shard_sets: list[ShardSet], seed: int) -> dict[str, Any]:
    """Measure every shard set in every way; return samples per minute, variation between repeats, and ratios."""
    settings = {"device": "cpu", "seed": seed, "core": usable_cores()[0]}
    ways = {
        "recycled": Way(ChildProcess("shardgym.costs.fbgemm.worker", settings, ENVIRONMENT), *_STEPS),
        "fresh": Way(ChildProcess(_NAIVE, {**settings, "way": "fresh"}, {}), *_STEPS),
        "published": Way(ChildProcess(_NAIVE, {**settings, "way": "published"}, {}), 5, 10),
    }
    try:
        for way in ways.values():
            way.worker.receive(TIMEOUT_S)
            _warm_up(way.measure, shard_sets)
        first, seconds = _pass(ways, shard_sets, random.Random(seed))
        second, _ = _pass(ways, shard_sets, random.Random(seed + 1))
    finally:
        for way in ways.values():
            way.worker.kill()
    rate = {name: 60 * len(shard_sets) / spent for name, spent in seconds.items()}
    return {
        "hardware": cpu_tag(),
        "samples": len(shard_sets),
        "per_minute": rate,
        "cv": {name: _variation(first[name], second[name]) for name in ways},
        "ratio_same_steps": rate["recycled"] / rate["fresh"],
        "ratio": rate["recycled"] / rate["published"],
    }


def _warm_up(measure: Callable[[ShardSet], Any], shard_sets: list[ShardSet]) -> None:
    """Draw the ids of all tables and touch the memory of the largest shard set, as any long run has done."""
    for shard_set in shard_sets:
        measure(shard_set._replace(shards=tuple(shard._replace(width=4) for shard in shard_set.shards)))
    largest = max(shard_sets, key=lambda shard_set: shard_set.num_weights)
    measure(largest._replace(shards=largest.shards[::-1]))


def _pass(
    ways: dict[str, Way], shard_sets: list[ShardSet], shuffle: random.Random
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Measure every shard set once in every way; return the times by shard set and the seconds spent."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    for shard_set in shard_sets:
        for name in shuffle.sample(sorted(ways), len(ways)):
            step_ms, spent = ways[name].measure(shard_set)
            times[name].append(step_ms)
            seconds[name] += spent
    return times, seconds


def _variation(first: list[float], second: list[float]) -> float:
    """Return the mean coefficient of variation of two repeats."""
    pairs = np.array([first, second])
    return float((pairs.std(axis=0, ddof=1) / pairs.mean(axis=0)).mean())


def text(result: dict[str, Any]) -> str:
    """Return the result in words."""
    lines = [f"{result['hardware']}, {result['samples']} shards"]
    lines += [
        f"  {name:10} {rate:6.0f} samples per minute, coefficient of variation {result['cv'][name]:.3f}"
        for name, rate in result["per_minute"].items()
    ]
    lines.append(f"  recycled against a fresh operator with the same steps: {result['ratio_same_steps']:.2f}")
    lines.append(f"  recycled against the published way: {result['ratio']:.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
