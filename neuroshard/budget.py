"""Budget: how long a search may take."""

from __future__ import annotations

import time


class OutOfTime(Exception):
    """The time limit is reached: what was found so far is what there is."""


class Budget:
    """Time from now on.

    Args:
        seconds: limit; None for none.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.limited = seconds is not None
        self._end = float("inf") if seconds is None else time.monotonic() + seconds

    def check(self) -> None:
        """Raise `OutOfTime` when it is spent."""
        if time.monotonic() >= self._end:
            raise OutOfTime
