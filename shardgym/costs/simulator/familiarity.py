"""How far plans are from the training data: how likely what a device holds is, and whether the ensemble agrees.

And how far tasks are: whether their devices and links are of the kind that was measured. Memory of devices is no part
of a prediction, so any will do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.fbgemm.namespaces import FASTEST_LINK, SLOWEST_LINK
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator.weights import Density, Weights
from shardgym.tasks.task import ShardingTask

#: By how much of the way from the median to the least likely known sample the limit lies beyond that sample.
_MARGIN = 0.1


class Familiarity(NamedTuple):
    """How far a plan is from the training data.

    Attributes:
        unlikely: whether one of its devices holds what is less likely than anything that was held out of training.
        spread: largest relative disagreement of the ensemble on the compute time of any of its devices.
        spread_limit: largest disagreement on contents that were held out of training.
    """

    unlikely: bool
    spread: float
    spread_limit: float

    def notes(self) -> tuple[str, ...]:
        """Return notes for `PlanCost`; without numbers, so that equal reasons are equal notes."""
        notes = [f"{UNFAMILIAR}: what a device holds"] if self.unlikely else []
        if self.spread > self.spread_limit:
            notes.append(f"{UNFAMILIAR}: the ensemble disagrees on compute")
        return tuple(notes)


def task_notes(weights: Weights, task: ShardingTask) -> tuple[str, ...]:
    """Return notes on the devices and links of a task that weights know nothing of.

    Complete steps are those of CPUs, whatever the task's devices are; the link model is fitted to links of some rates.
    Weights of kernels alone take exchanges from the task, and do not say what kind of device they are of.
    """
    topology = task.topology
    notes = []
    if weights.lines is not None and not topology.device.startswith("cpu"):
        notes.append(f"{UNFAMILIAR}: devices of '{topology.device}', it predicts {weights.hardware}")
    domain = topology.fast_domain_size
    rates = [topology.intra_bandwidth] * (domain > 1) + [topology.inter_bandwidth] * (domain < topology.num_devices)
    if weights.links is not None and any(not SLOWEST_LINK <= rate <= FASTEST_LINK for rate in rates):
        known = f"{SLOWEST_LINK:.3g} to {FASTEST_LINK:.3g} bytes/s"
        notes.append(f"{UNFAMILIAR}: links of {max(rates):.3g} bytes/s, those that were fitted have {known}")
    return tuple(notes)


def is_unlikely(density: Density, vectors: Floats) -> Bools:
    """Say which devices are less likely than the limit, (n, d) to (n,); see `device_vectors`."""
    return np.asarray(log_density(density, vectors) < density.limit, dtype=np.bool_)


def log_density(density: Density, vectors: Floats) -> Floats:
    """Return the logarithm of a kernel density, without its constant, (n, d) to (n,)."""
    return _log_sum(_exponents((vectors - density.mean) @ density.whiten, density.centres))


def _exponents(x: Floats, centres: Floats) -> Floats:
    """Return logarithms of the kernels at all centres, (n, d) to (n, kernels)."""
    distance = (x**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * x @ centres.T
    return np.asarray(-0.5 * np.maximum(distance, 0.0), dtype=np.float64)


def _log_sum(exponent: Floats) -> Floats:
    largest = exponent.max(axis=1)
    return np.asarray(largest + np.log(np.exp(exponent - largest[:, None]).sum(axis=1)), dtype=np.float64)


def fit_density(vectors: Floats, held_out: Floats, seed: int, most: int = 512) -> Density:
    """Fit a density to training data.

    Args:
        vectors: that the density is of, shape (n, d).
        held_out: others of the same kind, shape (m, d). The least likely of them, or of the kernels by the others, says
            where the limit is.
        seed: of the choice of centres.
        most: kernels at most.

    Returns:
        Gaussian kernels at some of the vectors, as wide as Scott's rule says in units of the vectors' covariance.
    """
    count, size = vectors.shape
    mean = vectors.mean(axis=0)
    # Amounts nearly follow from each other; a few percent beside that shall not count as far away. A direction without
    # spread, such as one data type alone, still tells what is elsewhere.
    covariance = np.cov(vectors, rowvar=False) + np.diag(0.03 * np.maximum(vectors.var(axis=0), 1e-2))
    kernels = min(count, most)
    bandwidth = kernels ** (-1 / (size + 4))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T / bandwidth
    chosen = np.random.default_rng([seed, 13]).permutation(count)[:kernels]
    density = Density((vectors[chosen] - mean) @ whiten, mean, whiten, 0.0)
    by_others = _exponents(density.centres, density.centres)
    np.fill_diagonal(by_others, -np.inf)
    known = np.concatenate([log_density(density, held_out), _log_sum(by_others)])
    limit = float(known.min() - _MARGIN * (np.median(known) - known.min()))
    return density._replace(limit=limit)
