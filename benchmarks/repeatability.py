"""Repeatability of the measured cost: the same shards measured again by new processes.

    python benchmarks/repeatability.py [--shards N] [--repeats N] [--json]

Prints the coefficient of variation per shard over repeats, once as it is and once relative to the level of its repeat
(what is left when plans are compared within one session), and Kendall's tau between repeats.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import random

import numpy as np
from random_shards import random_shard_sets, random_tables

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.cost import FbgemmCost
from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.machine import cpu_tag
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.fbgemm.rounds import mean_of_medians, time_shard_sets

BATCH = 2048


def main() -> None:
    """Run the benchmark and print what was found."""
    defaults = inspect.signature(FbgemmCost).parameters
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shards", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=defaults["rounds"].default)
    parser.add_argument("--warmups", type=int, default=defaults["warmups"].default)
    parser.add_argument("--iterations", type=int, default=defaults["iterations"].default)
    parser.add_argument("--max-rows", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    shard_sets = random_shard_sets(given.shards, random_tables(60, given.max_rows, rng), BATCH, rng)
    effort = {"rounds": given.rounds, "warmups": given.warmups, "iterations": given.iterations}
    times = np.stack([measure(shard_sets, given.seed + r, effort) for r in range(given.repeats)])
    result = {"hardware": cpu_tag(), "shards": given.shards, "repeats": given.repeats, **effort, **describe(times)}
    print(json.dumps(result) if given.json else "\n".join(f"{name}: {value}" for name, value in result.items()))


def measure(shard_sets: list[ShardSet], order_seed: int, effort: dict[str, int]) -> Floats:
    """Return forward plus backward time of each shard set in ms by a new worker, shape (sets,)."""
    pool = WorkerPool("cpu", 1, seed=0, timeout_s=300.0)
    try:
        samples, failed, _ = time_shard_sets(pool, shard_sets, rng=random.Random(order_seed), **effort)
    finally:
        pool.close()
    if failed:
        raise SystemExit(f"{len(failed)} shards failed: {next(iter(failed.values()))}")
    return np.array([mean_of_medians(samples[c]).sum() for c in shard_sets])


def describe(times: Floats) -> dict[str, float]:
    """Return variation and rank agreement of repeats, shape (repeats, shards)."""
    relative = times / np.exp(np.log(times).mean(axis=1, keepdims=True))
    taus = [kendall_tau(a, b) for a, b in itertools.combinations(times, 2)]
    return {
        "mean_ms": round(float(times.mean()), 3),
        "cv": round(float((times.std(axis=0, ddof=1) / times.mean(axis=0)).mean()), 4),
        "cv_within_session": round(float((relative.std(axis=0, ddof=1) / relative.mean(axis=0)).mean()), 4),
        "kendall_tau_mean": round(float(np.mean(taus)), 4),
        "kendall_tau_least": round(float(np.min(taus)), 4),
    }


def kendall_tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-a: agreeing minus disagreeing pairs over all pairs."""
    pairs = np.triu_indices(len(a), k=1)
    signs = np.sign(a[:, None] - a)[pairs] * np.sign(b[:, None] - b)[pairs]
    return float(signs.mean())


if __name__ == "__main__":
    main()
