"""The inside of a solver's process: it makes the solver, answers requests, and ends with the one that started it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import logging
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shardgym.costs.base import CostModel, PlanCost, Source
from shardgym.errors import InputError, MeasurementError, ShardGymError, one_line
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.solving import InlineSolver
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Of Linux: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1


def serve(connection: Any, spec: SolverSpec, oracle: CostModel, scratch: str, max_bytes: int | None) -> NoReturn:
    """Start the thread that solves, and hand requests to it until the parent is gone."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    # Ctrl-C is for the parent, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # also while native code keeps the first thread from seeing the parent go
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    tempfile.tempdir = scratch
    os.environ["TMPDIR"] = scratch
    requests: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    threading.Thread(target=_work, args=(connection, requests, spec, oracle, max_bytes), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            requests.put(json.loads(connection.recv_bytes()))
    shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _work(
    connection: Any,
    requests: queue.SimpleQueue[dict[str, Any]],
    spec: SolverSpec,
    oracle: CostModel,
    max_bytes: int | None,
) -> NoReturn:
    """Make the solver and answer requests, one after the other."""
    pid = os.getpid()
    lock = threading.Lock()  # threads of a solver may log

    def send(message: dict[str, Any]) -> None:
        if os.getpid() != pid:
            os._exit(0)  # a copy that the solver forked and that returned as well
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        with lock:
            connection.send_bytes(json.dumps(message).encode())

    def ask(message: dict[str, Any]) -> dict[str, Any]:
        send(message)
        return requests.get()

    try:
        ours = logging.getLogger("shardgym")
        ours.handlers = [_Forwarder(send)]
        ours.propagate = False
        if max_bytes is not None and sys.platform == "linux":
            _limit_memory(max_bytes)
        try:
            queried = oracle if oracle.deterministic else _RemoteCost(oracle, ask)
            solver = InlineSolver(spec, queried, (BaseException,))
            solver.start()
        except ShardGymError as error:
            send({"refused": str(error)})
        except BaseException as error:
            send({"refused": f"solver '{spec.title}' cannot be made: {one_line(error)}"})
        else:
            send({"made": dataclasses.asdict(solver.facts)})
            while True:
                request = requests.get()
                answer = solver.answer(request["task"], request["seed"], request["time_limit_s"])
                send({"answer": dataclasses.asdict(answer)})
    finally:
        os._exit(1)


class _Forwarder(logging.Handler):
    """Sends log lines to the parent, which prints them above its bar."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record; processes that the solver starts are on their own."""
        if os.getpid() != self._pid:
            print(self.format(record), file=sys.stderr, flush=True)
            return
        try:
            self._send({"log": [record.name, record.levelno, record.getMessage()]})
        except Exception:
            self.handleError(record)


def _limit_memory(max_bytes: int) -> None:
    """Let this process take only so many bytes more than it has; more is a `MemoryError`, or its end."""
    import resource  # not on Windows

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    limit = in_use + max_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _RemoteCost(CostModel):
    """The oracle of a run that measures, as the process of a solver sees it.

    Args:
        cost: a copy of it, which is asked what it is and never measures.
        ask: sends a request to the parent and returns the answer.
    """

    def __init__(self, cost: CostModel, ask: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.name = cost.name  # type: ignore[misc]
        self.version = cost.version  # type: ignore[misc]
        self.deterministic = cost.deterministic  # type: ignore[misc]
        self._cost = cost
        self._ask = ask

    @functools.cached_property
    def hardware(self) -> str:
        """Tag of the hardware that the times are of."""
        return str(self._answer({"task": "", "plans": []})["hardware"])

    def settings(self) -> dict[str, Any]:
        """Return the settings of the oracle."""
        return self._cost.settings()

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Let the parent measure; raises what the oracle raises on purpose."""
        answer = self._answer({"task": task.to_json(), "plans": [plan.to_json() for plan in plans]})
        return [PlanCost.from_json(text) for text in answer["costs"]]

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(message)
        if "failed" in answer:
            raise (InputError if answer["is_input"] else MeasurementError)(answer["failed"])
        return answer

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:
        return self._cost._sources(task)
