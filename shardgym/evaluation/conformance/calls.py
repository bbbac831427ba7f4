"""The calls that solvers are checked by: small tasks, each with something that trips a solver; each call is watched."""

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

#: Bytes of one table of `_equal_tables` in FP32 without optimiser state.
_UNIT = 64_000


@dataclass(frozen=True)
class Case:
    """A task with what is known about it.

    Attributes:
        name: for messages.
        task: the task.
        feasible: whether any plan is feasible; placing whole tables in any order on devices with room then succeeds.
    """

    name: str
    task: ShardingTask
    feasible: bool = True


def feasible_cases() -> list[Case]:
    """Return tasks that every solver must find a plan for."""
    return [
        Case("room to spare", _task(_varied_tables(6), [2**30] * 2)),
        Case("memory filled exactly", _task(_equal_tables(8), [2 * _UNIT] * 4)),
        Case("uneven memory filled exactly", _task(_equal_tables(8), [_UNIT, 2 * _UNIT, 5 * _UNIT])),
        Case("one device", _task(_equal_tables(3), [3 * _UNIT])),
        Case("one table", _task(_equal_tables(1), [_UNIT] * 4)),
        Case("unused and tiny tables", _task(_tiny_tables(), [2**20] * 2)),
        # FP16 weights and FP32 Adam state: 2 + 8 bytes per value instead of 4.
        Case(
            "optimiser state fills memory",
            _task(_equal_tables(4), [2 * _UNIT // 4 * 10] * 2, precision="fp16", optimizer="adam"),
        ),
        Case("state per row", _task(_varied_tables(6), [2**30] * 3, optimizer="rowwise_adagrad")),
    ]


def infeasible_cases() -> list[Case]:
    """Return tasks that no plan is feasible for, however tables are cut."""
    return [
        Case("one byte too few", _task(_equal_tables(4), [2 * _UNIT, 2 * _UNIT - 1]), feasible=False),
        Case("far too large", _task(_equal_tables(6), [_UNIT, _UNIT]), feasible=False),
        Case("width of 6", _task([EmbeddingTable("odd", 100, 6, 1.0)], [2**20] * 2), feasible=False),
    ]


def long_case() -> Case:
    """Return a task on which a thorough search takes long; for time limits."""
    return Case("60 tables on 4 devices", _task(_varied_tables(60), [2**30] * 4))


def _task(tables: Sequence[EmbeddingTable], memory_bytes: Sequence[int], **options: Any) -> ShardingTask:
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes))
    return ShardingTask(tables=tuple(tables), topology=topology, batch_size=256, **options)


def _equal_tables(count: int) -> list[EmbeddingTable]:
    """Equal bytes in two shapes and very different loads, so that balance and memory pull apart."""
    shapes = [(1000, 16), (2000, 8)]
    return [EmbeddingTable(f"t{i}", *shapes[i % 2], 50.0 if i == 0 else 1.0) for i in range(count)]


def _varied_tables(count: int) -> list[EmbeddingTable]:
    return [
        EmbeddingTable(f"t{i}", 100 * (1 + i * i), 4 * 2 ** (i % 4), 1.0 + 3.7 * (i % 5), ids=ZipfIds(1.05))
        for i in range(count)
    ]


def _tiny_tables() -> list[EmbeddingTable]:
    return [
        EmbeddingTable("unused", 1000, 8, 0.0, reuse_histogram=(0.0,) * 17),
        EmbeddingTable("one row", 1, 4, 3.0),
        EmbeddingTable("usual", 1000, 16, 2.5),
    ]


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
    """Call `solve` with a copy of the case's task, in a thread of its own, which is told to stop after `limit_s`."""
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
