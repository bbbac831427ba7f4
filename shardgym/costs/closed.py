"""Closing the judges: while solvers run, no cost model that is for scoring only can be made or asked.

The harness hands solvers an oracle. With a judge that is a simulator, a solver could make the judge itself, since its
weights ship with the package; inside of `judges_closed` that is an error. It holds for threads and processes that the
solver starts too. It keeps solvers from doing so unawares; whoever reads the weights with code of their own has left
the public calls, which a record's stored plan cannot show.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from shardgym.errors import InputError

#: Set while judges are closed; an environment variable, so that child processes inherit it.
_CLOSED = "SHARDGYM_JUDGES_CLOSED"


@contextmanager
def judges_closed() -> Iterator[None]:
    """Refuse judges inside of the block."""
    before = os.environ.get(_CLOSED)
    os.environ[_CLOSED] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_CLOSED, None)
        else:
            os.environ[_CLOSED] = before


def require_open(what: str) -> None:
    """Raise `InputError` while judges are closed.

    Args:
        what: is asked for, e.g. "the simulator with role='judge'".
    """
    if _CLOSED in os.environ:
        raise InputError(f"{what} scores plans: a solver may query the oracle that it is given, not this")
