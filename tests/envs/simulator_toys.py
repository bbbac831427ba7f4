"""A simulator with random weights: untrained, and made in milliseconds. Its times mean nothing."""

from __future__ import annotations

import itertools

import numpy as np

from shardgym import make_cost
from shardgym.costs.simulator.features import exchanges_of, shards_of
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet
from shardgym.costs.simulator.weights import RANGES, Weights, save_weights
from shardgym.table import EmbeddingTable
from shardgym.task import ShardingTask
from shardgym.topology import Topology

BATCH = 64


def random_task(rng, tables, devices, **options):
    """Tables of widths 4 to 32 with reuse histograms."""

    def table(number):
        histogram = np.zeros(17)
        histogram[:4] = rng.dirichlet(np.ones(4))
        return EmbeddingTable(
            f"t{number}", int(rng.integers(50, 5000)), int(rng.choice([4, 8, 16, 32])), float(rng.integers(1, 20)),
            reuse_histogram=tuple(histogram.tolist()),
        )  # fmt: skip

    options = {"memory_bytes": 2**30} | options
    return ShardingTask(tuple(map(table, range(tables))), Topology(num_devices=devices, **options), batch_size=BATCH)


def random_oracle(path, *, exchanges=True):
    """Save random weights in `path` and return the simulator that has them; without exchanges, of compute alone."""
    rng = np.random.default_rng(2)
    networks = {"compute": _compute(rng)} | ({"forward": _comm(rng), "backward": _comm(rng)} if exchanges else {})
    groups = {group: names for group, names in RANGES.items() if exchanges or group != "comm"}
    ranges = {group: np.array([[0.0] * len(names), [1e12] * len(names)]) for group, names in groups.items()}
    save_weights(path, Weights("oracle", "made-up", ("fp32",), ("exact_sgd",), networks, ranges, 0.1))
    return make_cost("simulator", weights=path)


def _compute(rng):
    task = random_task(rng, 200, 2)
    features, amounts = ComputeNet.inputs(
        shards_of(task, [(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables])
    )
    prior = rng.uniform(0.01, 0.05, (amounts.shape[1], 2))
    fixed = ComputeNet.fixed_params(features, amounts, np.full(40, 5), prior, np.array([0.05, 0.1]))
    return fixed | _layers(ComputeNet.SIZES, rng)


def _comm(rng):
    exchanges = exchanges_of(rng.integers(1, 100, (50, 3)) * 4, rng.uniform(0, 2, (50, 3)), BATCH, 4)
    fixed = CommNet.fixed_params(CommNet.inputs(exchanges), rng.uniform(0.01, 0.05, (5, 1)))
    return fixed | _layers(CommNet.SIZES, rng)


def _layers(chains, rng):
    params = {}
    for chain, widths in chains.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            params[f"{chain}.{layer}.weight"] = rng.normal(0, inputs**-0.5, (1, inputs, outputs))
            params[f"{chain}.{layer}.bias"] = rng.normal(0, 0.1, (1, 1, outputs))
    return params
