"""A simulator with random weights: untrained, so that nothing about it is smooth, and made in milliseconds.

Its times mean nothing.
"""

from __future__ import annotations

import itertools

import numpy as np

from shardgym import make_cost
from shardgym.costs.simulator.features import exchanges_of, shards_of
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet
from shardgym.costs.simulator.weights import RANGES, Weights, save_weights


def random_simulator(path, task, rng, *, exchanges, precisions=("fp32",), optimizers=("exact_sgd",)):
    """Save random weights and return the oracle that has them.

    Args:
        path: of the file.
        task: 200 tables that features are scaled for.
        rng: of the weights.
        exchanges: whether exchanges are predicted, too.
        precisions: that the weights claim to know.
        optimizers: likewise.
    """
    networks = {"compute": _compute(task, rng)}
    if exchanges:
        networks |= {"forward": _comm(task.batch_size, rng), "backward": _comm(task.batch_size, rng)}
    groups = {group: names for group, names in RANGES.items() if exchanges or group != "comm"}
    ranges = {group: np.array([[0.0] * len(names), [1e12] * len(names)]) for group, names in groups.items()}
    save_weights(path, Weights("oracle", "made-up", precisions, optimizers, networks, ranges, 0.1))
    return make_cost("simulator", weights=path)


def _compute(task, rng):
    shards = shards_of(task, [(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables])
    features, amounts = ComputeNet.inputs(shards)
    prior = rng.uniform(0.01, 0.05, (amounts.shape[1], 2))
    fixed = ComputeNet.fixed_params(features, amounts, np.full(40, 5), prior, np.array([0.05, 0.1]))
    return fixed | _layers(ComputeNet.SIZES, rng)


def _comm(batch_size, rng):
    exchanges = exchanges_of(rng.integers(1, 100, (50, 3)) * 4, rng.uniform(0, 2, (50, 3)), batch_size, 4)
    fixed = CommNet.fixed_params(CommNet.inputs(exchanges), rng.uniform(0.01, 0.05, (5, 1)))
    return fixed | _layers(CommNet.SIZES, rng)


def _layers(chains, rng):
    """Random layers of one network, with an axis of one member in front."""
    params = {}
    for chain, widths in chains.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            params[f"{chain}.{layer}.weight"] = rng.normal(0, inputs**-0.5, (1, inputs, outputs))
            params[f"{chain}.{layer}.bias"] = rng.normal(0, 0.1, (1, 1, outputs))
    return params
