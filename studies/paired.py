"""Paired comparisons over tasks, with the statistics of the boards. Not a script."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.leaderboard.statistics import mean_interval, mean_ratio


def paired_ratio(mine: Floats, theirs: Floats, prefix: str = "") -> dict[str, Any]:
    """Return the geometric mean of mine / theirs and the ends of its 95 % interval.

    Args:
        mine: one positive number per task, shape (n,), n at least 1.
        theirs: of the same tasks, shape (n,).
        prefix: of the names "ratio", "from" and "to".

    Returns:
        The three by name; ends are None where tasks are too few for an interval.
    """
    interval = mean_interval(np.log(mine / theirs))
    low, high = (None, None) if interval is None else (float(np.exp(end)) for end in interval)
    return {f"{prefix}ratio": mean_ratio(mine, theirs), f"{prefix}from": low, f"{prefix}to": high}
