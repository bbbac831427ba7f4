"""Lead: how far the host runs ahead of a GPU, so that only the GPU's own work is timed."""

from __future__ import annotations

from collections.abc import Callable

#: At most so many flushes, so that a host that can never be ahead is not waited for without end.
MOST = 128

Times = tuple[float, float]


class Lead:
    """Keeps the GPU busy before what is timed, for about as long as the host needs to launch it.

    The GPU's queue is filled with flushes of its cache. How many it takes is found by trying: twice as many whenever
    the GPU had to wait, one less after every step in which it had not.
    """

    def __init__(self) -> None:
        self.flushes = 1

    def timed(self, attempt: Callable[[int], tuple[bool, Times]]) -> Times:
        """Return the times of an attempt in which the GPU did not wait, or of the last one with `MOST` flushes.

        Args:
            attempt: given the number of flushes, says whether the GPU waited for the host, and the times in ms.
        """
        while True:
            waited, times = attempt(self.flushes)
            if not waited:
                self.flushes = max(1, self.flushes - 1)
                return times
            if self.flushes == MOST:
                return times
            self.flushes = min(MOST, 2 * self.flushes)
