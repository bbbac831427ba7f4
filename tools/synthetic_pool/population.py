"""What is drawn before anything is fitted: rows, pooling factors, and candidates for the skew of every table."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints

Float64s = npt.NDArray[np.float64]

#: Most tables: median and spread (of the logarithm) of rows. Spread and range were set so that the mean is near
#: 1.3 million, see `shardgym.pools.synthetic`.
ROWS_MEDIAN, ROWS_SIGMA, ROWS_MAX = 4.5e5, 1.95, 2.0e7

#: The others are small vocabularies (countries, hours, devices) with log-uniform rows in a range.
SMALL_SHARE, SMALL_RANGE = 0.1, (100.0, 2.0e4)

#: Share of single-valued features; median and spread of their pooling factor, which is how often they are present.
SINGLE_SHARE, SINGLE_MEDIAN, SINGLE_SIGMA, SINGLE_RANGE = 0.5, 0.7, 0.6, (0.02, 2.0)

#: Multi-valued features: median, spread and range of the pooling factor, and how strongly its logarithm correlates
#: with that of rows.
MULTI_MEDIAN, MULTI_SIGMA, MULTI_RANGE, MULTI_CORRELATION = 18.0, 1.1, (1.0, 190.0), 0.3

#: Candidates for the law of every table: exponents are normal, shifts log-uniform up to half of the rows.
CANDIDATES, S_MEAN, S_SIGMA, S_RANGE = 60, 1.1, 0.25, (0.3, 1.8)


class Population(NamedTuple):
    """Tables without their skew.

    Attributes:
        rows: rows per table, shape (tables,).
        pooling: pooling factors, shape (tables,), rounded as they are written.
    """

    rows: Ints
    pooling: Float64s


def draw_population(tables: int, ids_per_sample: float, rng: np.random.Generator) -> Population:
    """Draw rows and pooling factors; the latter are scaled to sum to `ids_per_sample`."""
    rows = _draw_rows(tables, rng)
    single = rng.random(tables) < SINGLE_SHARE
    pooling: Float64s = np.where(single, _draw_single(tables, rng), _draw_multi(rows, rng))
    pooling[~single] *= (ids_per_sample - pooling[single].sum()) / pooling[~single].sum()
    return Population(rows, pooling.round(4))


def draw_candidates(rows: Ints, rng: np.random.Generator) -> tuple[Float64s, Float64s]:
    """Draw candidate exponents and shifts, each of shape (tables, CANDIDATES), rounded as they are written."""
    shape = (rows.size, CANDIDATES)
    s = _redrawn(lambda: rng.normal(S_MEAN, S_SIGMA, shape), *S_RANGE)
    q = (rows / 2)[:, None] ** rng.random(shape) - 1
    return np.round(s, 4), np.round(q, 3)


def _draw_rows(tables: int, rng: np.random.Generator) -> Ints:
    z = rng.standard_normal
    large = _redrawn(lambda: ROWS_MEDIAN * np.exp(ROWS_SIGMA * z(tables)), SMALL_RANGE[0], ROWS_MAX)
    small = np.exp(rng.uniform(math.log(SMALL_RANGE[0]), math.log(SMALL_RANGE[1]), tables))
    rows: Ints = np.where(rng.random(tables) < SMALL_SHARE, small, large).astype(np.int64)
    return rows


def _draw_single(tables: int, rng: np.random.Generator) -> Float64s:
    return _redrawn(lambda: SINGLE_MEDIAN * np.exp(SINGLE_SIGMA * rng.standard_normal(tables)), *SINGLE_RANGE)


def _draw_multi(rows: Ints, rng: np.random.Generator) -> Float64s:
    """Draw pooling factors of multi-valued features; none is longer than a tenth of its table."""
    common = MULTI_CORRELATION * np.log(rows / ROWS_MEDIAN) / ROWS_SIGMA
    own = np.sqrt(1 - MULTI_CORRELATION**2)
    pooling = _redrawn(
        lambda: MULTI_MEDIAN * np.exp(MULTI_SIGMA * (common + own * rng.standard_normal(rows.size))), *MULTI_RANGE
    )
    return np.minimum(pooling, rows / 10)


def _redrawn(draw: Callable[[], Float64s], low: float, high: float) -> Float64s:
    """Draw until every element is in [low, high]."""
    x = draw()
    while ((x < low) | (x > high)).any():
        x = np.where((x < low) | (x > high), draw(), x)
    return x
