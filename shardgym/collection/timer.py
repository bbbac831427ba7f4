"""How long each kind has been measured in this run, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable

from shardgym.collection.log import Measurement


class RunTimer:
    """Counts measurements and the time between them, by kind.

    Args:
        minutes: after which `over` says True; None for never.
        advance: called with every measurement, e.g. to move a progress bar.
    """

    def __init__(self, minutes: float | None, advance: Callable[[Measurement], None]) -> None:
        self._last = time.monotonic()
        self._deadline = None if minutes is None else self._last + 60 * minutes
        self._advance = advance
        self.measured: dict[str, int] = {}
        self.minutes: dict[str, float] = {}

    def over(self) -> bool:
        """Say whether the time is up."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def count(self, measurement: Measurement) -> None:
        """Count a measurement that was just made; the time since the one before is its own."""
        now, kind = time.monotonic(), measurement.entry.kind
        self.measured[kind] = self.measured.get(kind, 0) + 1
        self.minutes[kind] = self.minutes.get(kind, 0.0) + (now - self._last) / 60
        self._last = now
        self._advance(measurement)
