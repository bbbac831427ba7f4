"""How far plans are from the training data: by the range of each feature (version 1), or by one joint density (2)."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.simulator import features
from shardgym.costs.simulator.features import Exchanges, Groups, Shards
from shardgym.costs.simulator.weights import DENSITY_NAMES, RANGES, Density, Weights

#: How far beyond the range of the training data a feature may lie.
MARGIN = 1.1

#: Which bit of a mask says that a feature is out of range: names by bit, and the first bit of each group of `RANGES`.
_RANGE_NAMES = [*RANGES["shard"], *RANGES["device"], *RANGES["comm"]]
_FIRST_BIT = {"shard": 0, "device": len(RANGES["shard"]), "comm": len(RANGES["shard"]) + len(RANGES["device"])}


class Familiarity(NamedTuple):
    """How far a plan is from the training data.

    Attributes:
        outside: what leaves the training data, sorted: names of features, or of what is unlikely as a whole.
        spread: largest relative disagreement of the ensemble on the compute time of any of its devices.
        spread_limit: largest disagreement on contents that were held out of training.
    """

    outside: tuple[str, ...]
    spread: float
    spread_limit: float

    def notes(self) -> tuple[str, ...]:
        """Return notes for `PlanCost`; without numbers, so that equal reasons are equal notes."""
        notes = [f"{UNFAMILIAR}: {name}" for name in self.outside]
        if self.spread > self.spread_limit:
            notes.append(f"{UNFAMILIAR}: the ensemble disagrees on compute")
        return tuple(notes)


class Devices(NamedTuple):
    """The devices of plans that hold something.

    Attributes:
        shards: numbers of their shards, device after device.
        groups: the shards of each device.
        first_shard: position of each plan's first shard.
        first_device: position of each plan's first device.
    """

    shards: Ints
    groups: Groups
    first_shard: Ints
    first_device: Ints


class Check(Protocol):
    """Says what of a plan is unlike the training data, as one bit for each name.

    Attributes:
        names: by bit.
        arrays: what is kept of every shard: shape and type of one row.
    """

    names: tuple[str, ...]
    arrays: dict[str, tuple[tuple[int, ...], npt.DTypeLike]]

    def describe(self, shards: Shards) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays of some shards."""

    def contents(self, known: Any, devices: Devices) -> Ints:
        """Check what the devices of P plans hold, shape (P,)."""

    def exchanges(self, exchanges: Exchanges) -> Ints:
        """Check an exchange of each plan, shape (P,)."""


def names_of(check: Check, outside: int) -> tuple[str, ...]:
    """Return the sorted names whose bits are set; some are set twice."""
    return tuple(sorted({name for bit, name in enumerate(check.names) if outside >> bit & 1}))


def check_of(weights: Weights) -> Check:
    """Return the check that goes with weights."""
    return RangeCheck(weights) if weights.generation == 1 else DensityCheck(weights.densities)


class RangeCheck:
    """Every feature for itself: it may leave the range of the training data by a tenth."""

    def __init__(self, weights: Weights) -> None:
        self.names: tuple[str, ...] = tuple(_RANGE_NAMES)
        self.arrays: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            "range_parts": ((len(features.DEVICE_RANGE_NAMES),), np.float64), "outside": ((), np.int64),
        }  # fmt: skip
        self._ranges = weights.ranges

    def describe(self, shards: Shards) -> dict[str, npt.NDArray[Any]]:
        """See `Check`."""
        return {
            "range_parts": features.device_range_parts(shards),
            "outside": self._outside("shard", features.shard_range_features(shards)),
        }

    def contents(self, known: Any, devices: Devices) -> Ints:
        """See `Check`."""
        sums = np.add.reduceat(known["range_parts"][devices.shards], devices.groups.starts, axis=0)
        outside = np.bitwise_or.reduceat(known["outside"][devices.shards], devices.first_shard)
        return np.asarray(outside | np.bitwise_or.reduceat(self._outside("device", sums), devices.first_device))

    def exchanges(self, exchanges: Exchanges) -> Ints:
        """See `Check`."""
        by_device = self._outside("comm", features.comm_range_features(exchanges))
        return np.asarray(np.bitwise_or.reduceat(by_device, exchanges.groups.starts))

    def _outside(self, group: str, values: Floats) -> Ints:
        """Return one bit for each feature of a group that is out of range, (n, features) to (n,)."""
        low, high = self._ranges[group]
        outside: Bools = (values < low / MARGIN) | (values > high * MARGIN)
        return np.asarray(outside @ (1 << (_FIRST_BIT[group] + np.arange(values.shape[1]))), dtype=np.int64)


class DensityCheck:
    """What a device holds, and what is exchanged, as a whole: it may be as unlikely as held-out samples at most."""

    def __init__(self, densities: dict[str, Density]) -> None:
        self.names: tuple[str, ...] = tuple(DENSITY_NAMES.values())
        self.arrays: dict[str, tuple[tuple[int, ...], npt.DTypeLike]] = {
            "device_parts": ((features.DEVICE_PARTS,), np.float64)
        }
        self._densities = densities

    def describe(self, shards: Shards) -> dict[str, npt.NDArray[Any]]:
        """See `Check`."""
        return {"device_parts": features.device_parts(shards)}

    def contents(self, known: Any, devices: Devices) -> Ints:
        """See `Check`."""
        vectors = features.device_vectors(known["device_parts"][devices.shards], devices.groups)
        return np.asarray(np.bitwise_or.reduceat(self._unlikely("device", vectors), devices.first_device))

    def exchanges(self, exchanges: Exchanges) -> Ints:
        """See `Check`."""
        return 2 * self._unlikely("exchange", features.exchange_vectors(exchanges))

    def _unlikely(self, name: str, vectors: Floats) -> Ints:
        density = self._densities[name]
        return np.asarray(log_density(density, vectors) < density.limit, dtype=np.int64)


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
    # A tenth further than the least likely one, as ranges had.
    limit = float(known.min() - (MARGIN - 1) * (np.median(known) - known.min()))
    return density._replace(limit=limit)
