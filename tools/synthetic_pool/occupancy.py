"""Expected reuse histograms of a table, computed instead of drawn."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
from scipy.stats import poisson

from shardgym.ids import HEAD_RANKS, ZipfLaw
from shardgym.table import REUSE_BINS

Float64s = npt.NDArray[np.float64]

#: Logarithms of the expected accesses of one row at which bins are tabulated; beyond them the nearest is used.
_LOG_RATES = np.linspace(np.log(1e-9), np.log(1e8), 8001)


def expected_counts(s: float, q: float, rows: int, ids: float) -> Float64s:
    """Return expected distinct rows and accesses per reuse bin, shape (2, 17).

    With Poisson bag sizes the accesses of every row are independent Poisson numbers, so the expectation is a sum over
    rows. Ranks behind the exact head are grouped on a logarithmic grid and share their mean rate.

    Args:
        s: exponent of the Zipf law.
        q: shift of the Zipf law.
        rows: rows of the table.
        ids: expected ids of the batch.
    """
    edges = _rank_edges(rows)
    widths = np.diff(edges)
    rates = np.maximum(ids * np.diff(ZipfLaw(s, q, rows).cumulative(edges)) / widths, 1e-9)
    position = np.clip((np.log(rates) - _LOG_RATES[0]) / (_LOG_RATES[1] - _LOG_RATES[0]), 0, _LOG_RATES.size - 1.001)
    low = position.astype(np.int64)
    above = (position - low)[:, None]
    shares = (1 - above) * _bins()[:, low] + above * _bins()[:, low + 1]
    result: Float64s = np.einsum("kgb,kg->kb", shares, np.stack([widths, widths * rates]))
    return result


@functools.lru_cache(maxsize=1)
def _bins() -> Float64s:
    """Tabulate, per rate, the probability of each bin and the share of the accesses in it, shape (2, rates, 17)."""
    rates = np.exp(_LOG_RATES)[:, None]
    upper = np.append(2.0 ** np.arange(REUSE_BINS - 1), np.inf)
    rows = poisson.cdf(upper, rates) - poisson.cdf(np.append(0, upper[:-1]), rates)
    accesses = poisson.cdf(upper - 1, rates) - poisson.cdf(np.append(-1, upper[:-1] - 1), rates)
    return np.stack([rows, accesses])


def _rank_edges(rows: int) -> npt.NDArray[np.int64]:
    head = np.arange(min(rows, HEAD_RANKS) + 1)
    if rows <= HEAD_RANKS:
        return head
    tail = np.geomspace(HEAD_RANKS, rows, 2 + int(12 * np.log(rows / HEAD_RANKS)))
    return np.unique(np.concatenate([head, np.rint(tail).astype(np.int64)]))
