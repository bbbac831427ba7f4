"""Types of arrays, and what counts as a tie."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats

Keys = npt.NDArray[np.uint64]

#: Times are compared to this many decimals of a ms, so that the order of a sum's terms decides nothing.
DECIMALS = 9


def comparable(ms: Floats) -> Floats:
    """Round times for comparison."""
    return np.round(ms, DECIMALS)
