"""One call of a solver, watched: what it returned, how long it took, and what it touched that is not its own."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from shardgym.conformance.cases import Case
from shardgym.task import ShardingTask

_STDOUT = 1


@dataclass
class Trial:
    """One watched call.

    Attributes:
        case: the task it was given.
        kind: what the call is for: "first", "again", "fresh", "other seed" or "time limit".
        returned: what the solver returned; None when it raised or hung.
        error: what it raised.
        seconds: how long it took.
        hung: whether it was given up on.
        printed: the beginning of what it wrote to stdout.
        random_changed: global generators that it drew from or seeded.
        task_changed: whether its task differs afterwards.
    """

    case: Case
    kind: str
    returned: object = None
    error: BaseException | None = None
    seconds: float = 0.0
    hung: bool = False
    printed: str = ""
    random_changed: list[str] = field(default_factory=list)
    task_changed: bool = False


def watch(case: Case, kind: str, solve: Callable[[ShardingTask], object], limit_s: float) -> Trial:
    """Call `solve` with a copy of the case's task.

    Args:
        case: the case.
        kind: kept in the trial.
        solve: called in a thread of its own.
        limit_s: seconds after which the call is given up on and its thread is told to stop.
    """
    trial = Trial(case, kind)
    task = ShardingTask.from_json(case.task.to_json())
    random_before = _random_states()

    def call() -> None:
        try:
            trial.returned = solve(task)
        except BaseException as error:
            trial.error = error

    with captured_stdout() as printed:
        start = time.perf_counter()
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        thread.join(limit_s)
        trial.seconds = time.perf_counter() - start
        trial.hung = thread.is_alive()
        if trial.hung:
            _stop(thread)
    trial.printed = printed[0]
    after = _random_states()
    trial.random_changed = [name for name, state in random_before.items() if state != after[name]]
    trial.task_changed = task != case.task or task.to_json() != case.task.to_json() or task.digest != case.task.digest
    return trial


@contextlib.contextmanager
def captured_stdout() -> Iterator[list[str]]:
    """Collect what is written to stdout, by Python or beneath it; the list holds the text after the block."""
    result: list[str] = []
    text = io.StringIO()
    sys.stdout.flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(_STDOUT)
        os.dup2(file.fileno(), _STDOUT)
        try:
            with contextlib.redirect_stdout(text):
                yield result
        finally:
            os.dup2(kept, _STDOUT)
            os.close(kept)
        file.seek(0)
        result.append(text.getvalue()[:200] + file.read(200).decode(errors="replace"))


def _random_states() -> dict[str, str]:
    """Return the states of the global generators, in comparable form."""
    return {"random": repr(random.getstate()), "numpy.random": repr(np.random.get_state(legacy=False))}


def _stop(thread: threading.Thread) -> None:
    """Raise SystemExit in a thread at its next Python instruction; one that never comes back to Python stays."""
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
