"""What verify does for somebody else's files: how much it measures at their word, and for how long it works.

A deterministic judge takes as long as its task is large. A judge that measures also takes as long as its settings say:
rounds, steps, seconds until it gives up. A cost model states how large these may be (`CostModel.limits`). Tasks that
are measured have limits here.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from shardgym.records import short_repr
from shardgym.task import ShardingTask

#: Of a task that is measured: several times the batch of the papers, and what a core looks up in some minutes.
TASK_LIMITS = {"batch_size": 2**18, "lookups of a step": 2**32}

#: On the command line, what lifts all of these limits.
FLAG = "--beyond-limits"


def beyond_limits(asked: Mapping[str, Any], limits: Mapping[str, float]) -> str | None:
    """Return the first number that exceeds its limit, and what lifts it; None when none does.

    Args:
        asked: numbers by name; what is no number is left to whoever it is for.
        limits: the largest ones, by name.
    """
    for name, limit in limits.items():
        value = asked.get(name)
        if isinstance(value, int | float) and not value <= limit:
            return f"{name}={short_repr(value)}, files may ask for at most {limit:,.0f}: {FLAG} obeys them"
    return None


def beyond_task_limits(task: ShardingTask) -> str | None:
    """Return what of a task is too large to be measured at the word of a file; None when nothing is."""
    lookups = task.batch_size * sum(table.pooling_factor for table in task.tables)
    return beyond_limits({"batch_size": task.batch_size, "lookups of a step": lookups}, TASK_LIMITS)


class TimeIsOver(BaseException):
    """The time for a verification is over. No `Exception`: what a judge raises is caught, and this must get through."""


class TimeBox:
    """Seconds that a verification may take.

    Args:
        seconds: from now on; None for as many as it takes.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = math.inf if seconds is None else time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a limit."""
        return max(0.0, self._end - time.monotonic())

    def check(self) -> None:
        """Raise `TimeIsOver` when nothing is left."""
        if not self.left:
            raise TimeIsOver

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise `TimeIsOver` in the block when the time is over, whatever it is doing.

        Only the main thread of a system with alarms is interrupted. Elsewhere `check` alone ends the block.
        """
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self.seconds is None or not in_main_thread or not hasattr(signal, "setitimer"):
            yield
            return
        handler = signal.signal(signal.SIGALRM, _raise_time_is_over)
        signal.setitimer(signal.ITIMER_REAL, max(self.left, 1e-6))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, handler)


def _raise_time_is_over(number: int, frame: object) -> NoReturn:  # noqa: ARG001
    raise TimeIsOver
