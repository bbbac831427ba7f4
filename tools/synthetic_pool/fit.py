"""Choose one candidate per table so that the sums over all tables match the published figures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.pools.synthetic import PoolStatistics

Float64s = npt.NDArray[np.float64]

#: The search stops when every share is this near; going on would only pull the choices away from their random start.
GOOD_ENOUGH = 0.0005


def targets(published: PoolStatistics) -> Float64s:
    """Return the figures that sums must reach: distinct rows and ids per bin, each over its total, shape (34,).

    Published shares are rounded and therefore scaled to sum to one.
    """
    shares = [np.array(x) for x in (published.row_shares, published.access_shares)]
    return np.concatenate([x / x.sum() for x in shares])


def choose(contributions: Float64s, target: Float64s, rng: np.random.Generator) -> Ints:
    """Return the index of the chosen candidate per table.

    Starts from candidate 0 of every table and tries candidates of tables at random, keeping what brings the sum nearer
    to the target, until it is good enough.

    Args:
        contributions: what a candidate adds to the sum, shape (tables, candidates, figures).
        target: the sum wanted, shape (figures,).
        rng: source of the order of trials.

    Raises:
        RuntimeError: a hundred thousand trials did not suffice.
    """
    tables, candidates, _ = contributions.shape
    chosen = np.zeros(tables, dtype=np.int64)
    gap = contributions[:, 0].sum(axis=0) - target
    for _ in range(100_000):
        if np.abs(gap).max() < GOOD_ENOUGH:
            return chosen
        table, candidate = int(rng.integers(tables)), int(rng.integers(candidates))
        moved = gap + contributions[table, candidate] - contributions[table, chosen[table]]
        if moved @ moved < gap @ gap:
            gap, chosen[table] = moved, candidate
    raise RuntimeError(f"no choice found: the worst figure is off by {np.abs(gap).max():.4f}")
