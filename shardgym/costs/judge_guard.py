"""Judges are closed while a run goes on: a solver may query the oracle that it is given, and nothing that scores plans.

The harness hands solvers an oracle, but the weights of a simulated judge ship with the package, so a solver could make
the judge by itself. Inside of `judges_closed` that is an error: in every thread of this process, and in processes that
inherit its environment. Only the thread that scores, inside of `judging`, may make and query a judge. This guards
against accidents and is no sandbox: nothing stops code that reads the weights without the public calls, or starts a
process with another environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from shardgym.errors import InputError

#: Set while judges are closed; an environment variable, so that child processes inherit it.
_VARIABLE = "SHARDGYM_JUDGES_CLOSED"

_inherited = _VARIABLE in os.environ
_lock = threading.Lock()
_num_runs = 0  # of this process that keep judges closed


class _Thread(threading.local):
    """Whether the calling thread scores. Other than context variables, threads never inherit it."""

    scores = False


_thread = _Thread()


@contextmanager
def judges_closed() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Refuse judges inside of the block, and yield `judging`, in which the calling thread may make and query one.

    Where judges are closed already, `judging` opens nothing: a solver could otherwise have a run of its own score its
    plans.
    """
    global _num_runs
    judging = _judging if _is_open() else nullcontext
    with _lock:
        _num_runs += 1
        os.environ[_VARIABLE] = "1"
    try:
        yield judging
    finally:
        with _lock:
            _num_runs -= 1
            if not _num_runs and not _inherited:
                os.environ.pop(_VARIABLE, None)


@contextmanager
def _judging() -> Iterator[None]:
    before = _thread.scores
    _thread.scores = True
    try:
        yield
    finally:
        _thread.scores = before


def require_open(what: str) -> None:
    """Raise `InputError` while judges are closed to the calling thread.

    Args:
        what: the judge, for the message, e.g. "the simulator with role='judge'".
    """
    if not _is_open():
        raise InputError(
            f"{what} scores plans: a solver may query the oracle that it is given, not this; "
            "until the run that goes on has ended, only that run may ask it"
        )


def _is_open() -> bool:
    return not _inherited and (not _num_runs or _thread.scores)
