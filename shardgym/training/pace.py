"""The pace of the machine: samples of other days, as if all had been measured at the pace of one collection."""

from __future__ import annotations

import dataclasses

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.simulator.features import Groups, device_parts, device_vectors
from shardgym.costs.simulator.oracle import scale_of
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.costs.simulator.weights import ROLES
from shardgym.training.data import DataSet

#: Forward and backward, by collection.
Paces = dict[str, tuple[float, float]]

#: Rounds of weighting, in which samples that a moment of the machine spoilt come to count less.
_ROUNDS = 5
_RIDGE = 1e-6


def paces(samples: ComputeSamples) -> Paces:
    """Return how many times as long forward and backward took in each collection as in the largest one.

    A regression: logarithms of times on logarithms of what devices hold, their products, and a constant for each
    collection. Nothing in it can be peculiar to one batch size, as the tables of a collection may be.

    Args:
        samples: of any number of collections.
    """
    names, owner, sizes = np.unique(samples.labels.collection, return_inverse=True, return_counts=True)
    others = np.delete(np.arange(len(names)), sizes.argmax())
    held = device_vectors(device_parts(samples.shards), Groups(samples.counts))
    held = (held - held.mean(axis=0)) / scale_of(held)
    first, second = np.triu_indices(held.shape[1])
    of_collection: Bools = owner[:, None] == others
    x = np.hstack([of_collection, np.ones((len(held), 1)), held, held[:, first] * held[:, second]])
    logs = np.zeros((len(names), 2))
    for phase in (0, 1):
        logs[others, phase] = robust_fit(x, np.log(samples.ms[:, phase]), _RIDGE * len(x))[: len(others)]
    factors = np.exp(logs).tolist()
    return {name: (forward, backward) for name, (forward, backward) in zip(names.tolist(), factors, strict=True)}


def paces_of(data: DataSet) -> Paces:
    """Return the paces by the samples that roles learn from, of kernels alone and of steps; 1 for a lone collection."""
    found: Paces = {}
    for samples in (data.compute, data.steps.compute):
        learned = samples.take(np.flatnonzero(np.isin(samples.labels.role, ROLES)))
        if len(np.unique(learned.labels.collection)) > 1:
            found |= paces(learned)
    return found


def at_one_pace(data: DataSet, found: Paces) -> DataSet:
    """Divide times by the paces of their collections; a collection without one keeps its times."""
    return data._replace(
        compute=_divided(data.compute, found),
        steps=dataclasses.replace(data.steps, compute=_divided(data.steps.compute, found)),
    )


def _divided(samples: ComputeSamples, found: Paces) -> ComputeSamples:
    factors = np.array([found.get(name, (1.0, 1.0)) for name in samples.labels.collection.tolist()])
    return dataclasses.replace(samples, ms=samples.ms / factors.reshape(-1, 2))


def robust_fit(x: Floats, y: Floats, ridge: float) -> Floats:
    """Return the weights of a linear regression in which large residuals count as absolute values.

    Args:
        x: shape (N, W).
        y: shape (N,).
        ridge: times the square of each weight is added to the loss.
    """
    weight = np.ones(len(y))
    for _ in range(_ROUNDS):
        gram = (x * weight[:, None]).T @ x
        fit = np.linalg.solve(gram + ridge * np.eye(len(gram)), x.T @ (weight * y))
        residual = np.abs(y - x @ fit)
        weight = 1 / np.maximum(1.0, residual / (1.5 * np.median(residual) + 1e-9))
    return np.asarray(fit, dtype=np.float64)
