"""Cutoff: what a column plan may cost at most to go on to the next level."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats


class Cutoff:
    """The least costs of one level of the beam so far.

    Args:
        keep: column plans that go on.
    """

    def __init__(self, keep: int) -> None:
        self._least: Floats = np.full(keep, np.inf)

    def above(self, costs: Floats) -> float:
        """Return the cost above which a column plan stays behind, given those of some more; they are not kept."""
        together = np.concatenate([self._least, costs])
        return float(np.partition(together, len(self._least) - 1)[len(self._least) - 1])

    def keep(self, costs: Floats) -> None:
        """Take account of costs."""
        self._least = np.sort(np.concatenate([self._least, costs]))[: len(self._least)]
