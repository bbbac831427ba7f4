"""How likely it is, by the training data, what a device holds: a kernel density over `device_vectors`."""

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats

#: By how much of the way from the median to the least likely known sample the limit lies beyond that sample.
_MARGIN = 0.1


class Density(NamedTuple):
    """Gaussian kernels at training data."""

    centres: Floats  #: in units of their width, shape (n, d)
    mean: Floats  #: of the training data, shape (d,)
    whiten: Floats  #: from differences to the mean to these units, shape (d, d)
    limit: float  #: logarithm of the density of the least likely sample that was held out

    def is_unlikely(self, vectors: Floats) -> Bools:
        """Say which devices are less likely than the limit, (n, d) to (n,); see `device_vectors`."""
        return np.asarray(self._log(vectors) < self.limit, dtype=np.bool_)

    def _log(self, vectors: Floats) -> Floats:
        """Return the logarithm of the density, without its constant, (n, d) to (n,)."""
        return _log_sum(_exponents((vectors - self.mean) @ self.whiten, self.centres))


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
    known = np.concatenate([density._log(held_out), _log_sum(by_others)])
    return density._replace(limit=float(known.min() - _MARGIN * (np.median(known) - known.min())))
