"""Closing the judges: while a run goes on, only the run itself can make or ask a cost model that is for scoring.

The harness hands solvers an oracle. With a judge that is a simulator, a solver could make the judge itself, since its
weights ship with the package; inside of `judges_closed` that is an error, in every thread of this process and in
processes that inherit its environment. Whoever closed the judges has the key: `JudgesKey.opened` opens them to the
calling thread alone. This keeps solvers from asking unawares. It is no sandbox: a process that was given an environment
of its own is not refused, nor is code that reads the weights without the public calls.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from shardgym.errors import InputError

#: Set while judges are closed; an environment variable, so that child processes inherit it.
_CLOSED = "SHARDGYM_JUDGES_CLOSED"

#: Whether a run of another process, of which this one is a descendant, keeps judges closed.
_inherited = _CLOSED in os.environ
#: Keys of the blocks of this process that keep judges closed. A forked child keeps them for ever.
_closed_by: set[JudgesKey] = set()
_lock = threading.Lock()


class _Thread(threading.local):
    """What a thread may do. Threads, unlike context variables, never inherit it from one another."""

    may_ask = False


_thread = _Thread()


class JudgesKey:
    """Opens judges for the one who closed them.

    Args:
        fits: whether it opens anything. It does not when judges were closed already.
    """

    def __init__(self, *, fits: bool) -> None:
        self._fits = fits

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let the calling thread, and no other, make and ask judges inside of the block."""
        before = _thread.may_ask
        try:
            _thread.may_ask = before or self._fits
            yield
        finally:
            _thread.may_ask = before


@contextmanager
def judges_closed() -> Iterator[JudgesKey]:
    """Refuse judges inside of the block, to everybody but the one with the key.

    Where judges are closed already, by a run that goes on in this process or in one above it, the key opens nothing:
    a solver could otherwise start a run of its own.
    """
    key = JudgesKey(fits=_may_ask())
    try:
        with _lock:
            _closed_by.add(key)
            os.environ[_CLOSED] = "1"
        yield key
    finally:
        with _lock:
            _closed_by.discard(key)
            if not _closed_by and not _inherited:
                os.environ.pop(_CLOSED, None)


def require_open(what: str) -> None:
    """Raise `InputError` while judges are closed to the calling thread.

    Args:
        what: is asked for, e.g. "the simulator with role='judge'".
    """
    if not _may_ask():
        raise InputError(
            f"{what} scores plans: a solver may query the oracle that it is given, not this; "
            "until the run that goes on has ended, only that run may ask it"
        )


def _may_ask() -> bool:
    return not _inherited and (not _closed_by or _thread.may_ask)
