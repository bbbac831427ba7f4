"""The shifted Zipf law over popularity ranks: its masses, and ranks from uniform numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints

Float64s = npt.NDArray[np.float64]

#: Ranks whose masses are summed exactly. Behind them a rank's mass is the integral over its unit interval, which is
#: off by a factor of 1 + s(s+1)/24/(rank+q)**2 at most: 2e-6 for s = 1.
HEAD_RANKS = 256

#: Cells of [0, 1) in a guide table; only uniforms in a cell that several ranks share are searched for.
_CELLS = 4096


class ZipfLaw:
    """Ranks x = 0, 1, ..., rows - 1 with probability proportional to (x + 1 + q) ** -s.

    Args:
        s: exponent, at least 0.
        q: shift, at least -0.5.
        rows: number of ranks, at least 1.
    """

    def __init__(self, s: float, q: float, rows: int) -> None:
        self.rows = rows
        self._head = min(rows, HEAD_RANKS)
        masses = ((np.arange(self._head) + 1 + q) / (1 + q)) ** -s
        self._power = 1 - s
        self._low = self._head + 0.5 + q
        self._log_range = math.log1p((rows - self._head) / self._low)
        tail = self._low * (self._low / (1 + q)) ** -s * float(self._integral(self._log_range))
        total = float(masses.sum()) + tail
        self._cumulative_head = np.cumsum(masses) / total
        self._head_share = float(self._cumulative_head[-1]) if tail else 1.0
        self._cumulative_head[-1] = self._head_share
        at_edges = np.searchsorted(self._cumulative_head, np.arange(_CELLS + 1) / _CELLS, side="right")
        self._guide = np.where(at_edges[1:] == at_edges[:-1], at_edges[:-1], -1)

    def ranks(self, uniforms: Float64s) -> Ints:
        """Map uniforms in [0, 1) to ranks by inverting the cumulative law; the result has the same shape."""
        ranks: Ints = self._guide[(uniforms * _CELLS).astype(np.int64)]
        unsure = np.flatnonzero(ranks < 0)
        ranks[unsure] = np.searchsorted(self._cumulative_head, uniforms[unsure], side="right")
        if self._head < self.rows:
            behind = np.flatnonzero(ranks == self._head)
            ranks[behind] = self._tail_ranks(uniforms[behind])
        return ranks

    def cumulative(self, ranks: Ints) -> Float64s:
        """Return the probability of a rank below each of `ranks`, which lie in [0, rows]."""
        head = np.concatenate([[0.0], self._cumulative_head])[np.minimum(ranks, self._head)]
        if self._head == self.rows:
            return head
        logs = np.log1p(np.maximum(ranks - self._head, 0) / self._low)
        return head + (1 - self._head_share) * self._integral(logs) / float(self._integral(self._log_range))

    def _integral(self, logs: float | Float64s) -> Float64s:
        """Integrate t ** -s over [1, exp(logs)]."""
        if abs(self._power) < 1e-12:
            return np.asarray(logs)
        return np.asarray(np.expm1(self._power * np.asarray(logs)) / self._power)

    def _tail_ranks(self, uniforms: Float64s) -> Ints:
        """Map uniforms in [head share, 1) to the ranks behind the head."""
        part = (uniforms - self._head_share) / (1 - self._head_share)
        if abs(self._power) < 1e-12:
            logs = part * self._log_range
        else:
            logs = np.log1p(part * math.expm1(self._power * self._log_range)) / self._power
        ranks = self._head + (self._low * np.expm1(logs)).astype(np.int64)
        return np.minimum(ranks, self.rows - 1)
