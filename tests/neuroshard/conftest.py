"""A simulator with random weights: untrained, so that nothing about it is smooth, and made in milliseconds.

TEST FIXTURE ONLY. Its times mean nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from random_tasks import BATCH, random_task

from shardgym import make_cost
from shardgym.costs.simulator.features import exchanges_of, shards_of
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet
from shardgym.costs.simulator.weights import RANGES, Weights, save_weights


def layers(chains: dict[str, Sequence[int]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random layers of one network, with an axis of one member in front."""
    params = {}
    for chain, widths in chains.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            params[f"{chain}.{layer}.weight"] = rng.normal(0, inputs**-0.5, (1, inputs, outputs))
            params[f"{chain}.{layer}.bias"] = rng.normal(0, 0.1, (1, 1, outputs))
    return params


def compute_params(rng: np.random.Generator) -> dict[str, np.ndarray]:
    task = random_task(1, 200, 2)
    shards = shards_of(task, [(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables])
    features, amounts = ComputeNet.inputs(shards)
    prior = rng.uniform(0.01, 0.05, (amounts.shape[1], 2))
    fixed = ComputeNet.fixed_params(features, amounts, np.full(40, 5), prior, np.array([0.05, 0.1]))
    return fixed | layers(ComputeNet.SIZES, rng)


def comm_params(rng: np.random.Generator) -> dict[str, np.ndarray]:
    exchanges = exchanges_of(rng.integers(1, 100, (50, 3)) * 4, rng.uniform(0, 2, (50, 3)), BATCH, 4)
    seen = CommNet.inputs(exchanges)
    return CommNet.fixed_params(seen, rng.uniform(0.01, 0.05, (5, 1))) | layers(CommNet.SIZES, rng)


def random_oracle(folder, *, exchanges: bool):
    rng = np.random.default_rng(2)
    networks = {"compute": compute_params(rng)}
    if exchanges:
        networks |= {"forward": comm_params(rng), "backward": comm_params(rng)}
    groups = {group: names for group, names in RANGES.items() if exchanges or group != "comm"}
    ranges = {group: np.array([[0.0] * len(names), [1e12] * len(names)]) for group, names in groups.items()}
    kinds = ("exact_sgd", "rowwise_adagrad", "adam")
    path = folder / "oracle.safetensors"
    save_weights(path, Weights("oracle", "made-up", ("fp32", "fp16"), kinds, networks, ranges, 0.1))
    return make_cost("simulator", weights=path)


@pytest.fixture(scope="session")
def simulator(tmp_path_factory):
    """An oracle for any number of devices."""
    return random_oracle(tmp_path_factory.mktemp("random"), exchanges=True)


@pytest.fixture(scope="session")
def compute_simulator(tmp_path_factory):
    """The same, of compute alone: communication is modelled."""
    return random_oracle(tmp_path_factory.mktemp("random"), exchanges=False)


@pytest.fixture(params=[False, True], ids=["numpy", "compiled"])
def compiled(request):
    """Both ways of running the inner search."""
    if request.param:
        for module in ("numba", "scipy"):
            pytest.importorskip(module, reason="needs the extra 'search'")
    return request.param
