"""Chains of linear layers, compiled: what `ops.dense` does for one network."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from neuroshard.compiled.jit import jit
from shardgym.arrays import Floats
from shardgym.costs.simulator.network import Params


class Chain(NamedTuple):
    """Linear layers with ReLU between them: weights of shape (inputs, outputs), biases of shape (outputs,)."""

    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]


def chain_of(params: Params, name: str) -> Chain:
    """Return a chain of one network by its name, e.g. "head"."""
    layers = list(itertools.takewhile(lambda n: f"{name}.{n}.weight" in params, itertools.count()))
    return Chain(
        tuple(np.ascontiguousarray(params[f"{name}.{n}.weight"]) for n in layers),
        tuple(np.ascontiguousarray(params[f"{name}.{n}.bias"]).ravel() for n in layers),
    )


@jit
def dense(chain: Chain, x: Floats) -> Floats:
    """Apply all layers to x of shape (n, inputs)."""
    return finish(chain, np.dot(x, chain.weights[0]) + chain.biases[0])


@jit
def finish(chain: Chain, x: Floats) -> Floats:
    """Apply all layers but the first to what that one gives, shape (n, its outputs)."""
    for layer in range(1, len(chain.weights)):
        x = np.dot(np.maximum(x, 0.0), chain.weights[layer]) + chain.biases[layer]
    return x
