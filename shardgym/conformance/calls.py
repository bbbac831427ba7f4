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
class SolverCall:
    """One watched call.

    Attributes:
        case: the task it was given.
        kind: what the call is for: "first", "again", "fresh", "other seed", "time limit" or "no time limit".
        returned: what the solver returned; None when it raised or hung.
        error: what it raised.
        seconds: how long it took.
        hung: whether it was given up on.
        printed: the beginning of what it wrote to stdout.
        changed_generators: global random generators that it drew from or seeded.
        task_changed: whether its task differs afterwards.
    """

    case: Case
    kind: str
    returned: object = None
    error: BaseException | None = None
    seconds: float = 0.0
    hung: bool = False
    printed: str = ""
    changed_generators: list[str] = field(default_factory=list)
    task_changed: bool = False


def watch_call(case: Case, kind: str, solve: Callable[[ShardingTask], object], limit_s: float) -> SolverCall:
    """Call `solve` with a copy of the case's task, in a thread of its own.

    Args:
        case: the case.
        kind: kept in the result.
        solve: what is called.
        limit_s: seconds after which the call is given up on and its thread is told to stop.
    """
    call = SolverCall(case, kind)
    task = ShardingTask.from_json(case.task.to_json())
    generators = _generator_states()

    def run() -> None:
        try:
            call.returned = solve(task)
        except BaseException as error:
            call.error = error

    with _captured_stdout() as printed:
        start = time.perf_counter()
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(limit_s)
        call.seconds = time.perf_counter() - start
        call.hung = thread.is_alive()
        if call.hung:
            # Raised at the thread's next Python instruction. A call that never comes back to Python stays.
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    call.printed = printed[0]
    call.changed_generators = [name for name, state in _generator_states().items() if state != generators[name]]
    call.task_changed = task != case.task or task.to_json() != case.task.to_json() or task.digest != case.task.digest
    return call


@contextlib.contextmanager
def _captured_stdout() -> Iterator[list[str]]:
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


def _generator_states() -> dict[str, str]:
    """Return the states of the global random generators, in comparable form."""
    return {"random": repr(random.getstate()), "numpy.random": repr(np.random.get_state(legacy=False))}
