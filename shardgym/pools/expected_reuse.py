"""How often a batch touches the rows of a table, as expected from the law of its ids and without drawing any."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.errors import import_extra
from shardgym.ids import HEAD_RANKS, ZipfLaw
from shardgym.table import REUSE_BINS, UniformIds, ZipfIds

#: Logarithms of the expected accesses of one row at which bins are tabulated; beyond them the nearest is used.
_LOG_RATES = np.linspace(np.log(1e-9), np.log(1e8), 8001)


def expected_row_shares(law: UniformIds | ZipfIds, rows: int, ids: float) -> tuple[float, ...]:
    """Return the reuse histogram that a table is expected to have; zeros when it is not looked up.

    Args:
        law: of the ids.
        rows: rows of the table.
        ids: expected ids of the batch.
    """
    s, q = (law.s, law.q) if isinstance(law, ZipfIds) else (0.0, 0.0)
    distinct = expected_counts(s, q, rows, ids)[0]
    total = float(distinct.sum())
    return tuple((distinct / total).tolist()) if ids > 0 and total > 0 else (0.0,) * REUSE_BINS


def expected_counts(s: float, q: float, rows: int, ids: float) -> Floats:
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
    result: Floats = np.einsum("kgb,kg->kb", shares, np.stack([widths, widths * rates]))
    return result


@functools.lru_cache(maxsize=1)
def _bins() -> Floats:
    """Tabulate, per rate, the probability of each bin and the share of the accesses in it, shape (2, rates, 17)."""
    stats: Any = import_extra("scipy.stats", "expected reuse histograms")
    rates = np.exp(_LOG_RATES)[:, None]
    upper = np.append(2.0 ** np.arange(REUSE_BINS - 1), np.inf)
    rows = stats.poisson.cdf(upper, rates) - stats.poisson.cdf(np.append(0, upper[:-1]), rates)
    accesses = stats.poisson.cdf(upper - 1, rates) - stats.poisson.cdf(np.append(-1, upper[:-1] - 1), rates)
    return np.stack([rows, accesses])


@functools.lru_cache(maxsize=256)
def _rank_edges(rows: int) -> Ints:
    head = np.arange(min(rows, HEAD_RANKS) + 1)
    if rows <= HEAD_RANKS:
        return head
    tail = np.geomspace(HEAD_RANKS, rows, 2 + int(12 * np.log(rows / HEAD_RANKS)))
    return np.unique(np.concatenate([head, np.rint(tail).astype(np.int64)]))
