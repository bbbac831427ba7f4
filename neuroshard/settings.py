"""SearchSettings: the constants of the search."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from shardgym.arrays import Floats
from shardgym.errors import InputError

#: How far above the mean width a device may go, from the first to the last value of the grid.
LEAST_SCALE, LARGEST_SCALE = 1.0, 1.5


@dataclass(frozen=True)
class SearchSettings:
    """How widely to search; the defaults are the published constants (`neurosharder.py`, `shard`).

    Attributes:
        beam_width: column plans kept from level to level, K in the paper.
        candidates: shards tried by size and as many by compute, N in the paper.
        levels: column cuts of one plan at most, L in the paper.
        grid: limits of a device's width tried for every column plan, M in the paper; with 0 there is one placement
            without a limit.

    Raises:
        InputError: a value is not an integer in range.
    """

    beam_width: int = 3
    candidates: int = 10
    levels: int = 10
    grid: int = 11

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), 0 if field.name in ("levels", "grid") else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{field.name} of the search must be an integer from {least} on, got {value!r}")

    def scales(self) -> Floats:
        """Return the grid: 1.00, 1.05, ..., 1.50 as published; the least alone when M is 1, infinity when it is 0."""
        if self.grid == 0:
            return np.array([np.inf])
        step = (LARGEST_SCALE - LEAST_SCALE) / max(self.grid - 1, 1)
        return LEAST_SCALE + step * np.arange(self.grid, dtype=np.float64)
