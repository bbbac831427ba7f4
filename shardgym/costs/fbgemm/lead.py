"""Lead: how far the host runs ahead of a GPU, so that only the GPU's own work is timed."""

from __future__ import annotations

from collections.abc import Callable

#: At most so many flushes, so that a host that can never be ahead is not waited for without end.
MOST = 128
#: Steps without waiting after which one flush less is tried. A flush takes far less than the step that is repeated
#: when one less turns out to be too few.
PATIENCE = 8

Times = tuple[float, float]


class Lead:
    """Keeps the GPU busy before what is timed, for about as long as the host needs to launch it.

    The GPU's queue is filled with flushes of its cache. How many it takes is found by trying: twice as many whenever
    the GPU had to wait, one less after every `PATIENCE` steps in which it had not.

    Attributes:
        flushes: before each phase of the next step.
        given_up: steps so far in which the GPU waited behind `MOST` flushes, so that their times include waiting.
    """

    def __init__(self) -> None:
        self.flushes = 1
        self.given_up = 0
        self._good = 0

    def timed(self, attempt: Callable[[int], tuple[bool, Times]]) -> Times:
        """Return the times of an attempt in which the GPU did not wait, or of one with `MOST` flushes.

        The latter count as given up.

        Args:
            attempt: given the number of flushes, says whether the GPU waited for the host, and the times in ms.
        """
        while True:
            waited, times = attempt(self.flushes)
            if not waited:
                self._good += 1
                if self._good % PATIENCE == 0:
                    self.flushes = max(1, self.flushes - 1)
                return times
            self._good = 0
            if self.flushes == MOST:
                self.given_up += 1
                return times
            self.flushes = min(MOST, 2 * self.flushes)
