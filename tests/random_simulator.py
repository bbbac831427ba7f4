"""A simulator with random weights: untrained, so that nothing about it is smooth, and made in milliseconds.

Its times mean nothing.
"""

import itertools

import numpy as np

from shardgym import make_cost
from shardgym.costs.link_model import shipped_model
from shardgym.costs.shard_keys import ShardKey
from shardgym.costs.simulator.features import AMOUNTS, DEVICE_PARTS, LINES, shard_features, shards_of, work
from shardgym.costs.simulator.network import ComputeNet
from shardgym.costs.simulator.weights import Density, Weights, save_weights

#: Nothing is unlikely.
ANYTHING = Density(np.zeros((1, DEVICE_PARTS)), np.zeros(DEVICE_PARTS), np.eye(DEVICE_PARTS), -1e300)


def random_simulator(path, task, rng, *, steps, precisions=("fp32",), optimizers=("exact_sgd",)):
    """Save random weights, for features like those of 200 tables of a task, and return the oracle that has them."""
    shards = shards_of(task, [ShardKey(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables])
    features, amounts = shard_features(shards), work(shards)
    priors = rng.uniform(0.01, 0.05, (2, amounts.shape[1] + 1, 2))
    counts = np.full(40, 5)
    params = ComputeNet.fixed_params(features, amounts, counts, np.zeros(40, dtype=np.int64), priors)
    params |= _layers(rng)
    lines = rng.uniform(1e-7, 1e-5, (len(LINES), len(AMOUNTS))) if steps else None
    links = shipped_model() if steps else None
    weights = Weights(
        "oracle", "made-up", precisions, optimizers, int(steps), params, ANYTHING, lines=lines, links=links
    )
    save_weights(path, weights)
    return make_cost("simulator", weights=path)


def _layers(rng):
    params = {}
    for chain, widths in ComputeNet.SIZES.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            params[f"{chain}.{layer}.weight"] = rng.normal(0, inputs**-0.5, (inputs, outputs))
            params[f"{chain}.{layer}.bias"] = rng.normal(0, 0.1, (1, outputs))
    return params
