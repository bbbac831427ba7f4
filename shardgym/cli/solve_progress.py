"""How a solver is doing while `solve` waits for it: one live line in a terminal, a line now and then in a log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from types import TracebackType
from typing import Self

from shardgym.progress import ProgressBar

#: Seconds between looks, and until a solver that tells nothing is remarked on.
LOOK_S, SILENT_S = 1.0, 15.0

#: Seconds between lines of a log at least: after a better plan, and without one.
BETTER_S, SAME_S = 10.0, 60.0

_logger = logging.getLogger("shardgym.solve")


class SolveProgress:
    """Shows the best cost so far and the seconds, from its own thread. What takes less than `LOOK_S` shows nothing.

    Lines of a log are logged, as information: `shardgym.progress.remarks` prints them. A log gets none as
    long as nothing was told.

    Args:
        shown: whether anything is shown at all.
        hint: what to say, once, of a solver that has told nothing for `SILENT_S`; "" for nothing.
    """

    def __init__(self, *, shown: bool, hint: str = "") -> None:
        self._shown, self._hint = shown, hint
        self._best_ms: float | None = None
        self._line: tuple[float, float | None] = (0.0, None)
        self._bar: ProgressBar | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="shardgym-solve-progress", daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and wipe the live line."""
        self._done.set()
        if self._shown:
            self._thread.join()
        if self._bar is not None:
            self._bar.close()

    def told(self, cost_ms: float) -> None:
        """Take note of the cost of a new best plan."""
        self._best_ms = float(cost_ms)

    def look(self, seconds: float) -> None:
        """Show what there is to show `seconds` after the start."""
        best_ms = self._best_ms
        text = f"solving for {seconds:.0f} s" + ("" if best_ms is None else f", best so far {best_ms:.3f} ms per step")
        if sys.stderr.isatty():
            self._live(text)
        elif best_ms is not None and seconds - self._line[0] >= (SAME_S if best_ms == self._line[1] else BETTER_S):
            self._line = (seconds, best_ms)
            _logger.info(text)
        if self._hint and best_ms is None and seconds >= SILENT_S:
            _logger.info(self._hint)
            self._hint = ""

    def _live(self, text: str) -> None:
        if self._bar is None:
            self._bar = ProgressBar(shown=True, bar_format="{desc}", leave=False, desc=text)
        self._bar.set_description_str(text)

    def _watch(self) -> None:
        start = time.monotonic()
        while not self._done.wait(LOOK_S):
            self.look(time.monotonic() - start)
