"""SolverProcess: a solver in a process of its own, so that what ends it, or keeps it from ending, costs one plan.

The process is a fork: a solver need not be pickled, whatever it is made of, and starts with what is loaded already. It
solves in a thread other than the first one, because OpenMP cannot go on in the thread that forked. The first thread
waits for requests, and ends the process together with the one that started it.

A deterministic oracle is copied by the fork. One that measures stays with the parent, which measures on request: its
worker processes and devices cannot be copied.

First in this file is the side of the parent, then the inside of the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import json
import logging
import multiprocessing
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost, Source
from shardgym.errors import InputError, MeasurementError, ShardGymError, one_line
from shardgym.evaluation.solver_spec import SolverSpec
from shardgym.evaluation.solving import Answer, Attempt, ErrorLog, InlineSolver, SolverFacts, attempt_of
from shardgym.plan import ShardingPlan
from shardgym.provenance import utc_now
from shardgym.task import ShardingTask

CAN_FORK = hasattr(os, "fork")

#: A process that has closed its connection may take so long to end by itself.
_END_S = 2.0
#: Seconds between looks whether a process that says nothing is alive: a copy of it may keep the connection open.
_LOOK_S = 0.2
#: Seconds that the making of a solver may take; weights are loaded and code is compiled later, as it warms up.
_MAKE_S = 300.0
#: Of Linux: the signal that a process gets when its parent ends.
_PR_SET_PDEATHSIG = 1

logger = logging.getLogger(__name__)


class _Died(Exception):
    """The process ended; the message says how."""


class _TimedOut(Exception):
    """The process took too long and was killed."""


class SolverProcess:
    """A solver in a process of its own, which is replaced when it dies.

    Args:
        spec: what the solver is made from; it is made in the process.
        oracle: what it may query.
        timeout_s: seconds that a plan may take, warming up included.
        max_bytes: of memory that the process may take besides what it starts with; None for no limit.
    """

    #: This side's connections to all processes. A fork closes its copies: each must end when its own is closed.
    _connections: set[Any] = set()  # noqa: RUF012

    def __init__(self, spec: SolverSpec, oracle: CostModel, *, timeout_s: float, max_bytes: int | None = None) -> None:
        self.spec = spec
        self.facts = SolverFacts()
        self._oracle = oracle
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._pid = 0
        self._status: int | None = None
        self._made = False
        self._scratch: str | None = None
        self._connection: Any = None

    def start(self) -> None:
        """Fork the process, which makes the solver while this one goes on."""
        ours, theirs = multiprocessing.Pipe()
        self._scratch = tempfile.mkdtemp(prefix="shardgym-")
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # what is buffered would be printed twice
        with warnings.catch_warnings():
            # Python warns of forks beside other threads: the child runs none of their code.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                for connection in (ours, *self._connections):
                    connection.close()
                _serve(theirs, self.spec, self._oracle, self._scratch, self._max_bytes)
            finally:
                os._exit(1)
        theirs.close()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too: whichever of the two is first
        self._pid = pid
        self._status = None
        self._made = False
        self._connection = ours
        self._connections.add(ours)

    def wait_until_made(self) -> None:
        """Wait until the process has made the solver.

        Raises:
            InputError: it cannot be made; the process has ended.
        """
        try:
            message = self._receive("made", time.monotonic() + _MAKE_S)
        except (_Died, _TimedOut) as error:
            raise InputError(f"solver '{self.spec.title}' cannot be made: {error}") from None
        if "refused" in message:
            self.close()
            raise InputError(str(message["refused"]))
        self.facts = SolverFacts(**message["made"])
        self._made = True

    def solve(self, task: ShardingTask, seed: int, time_limit_s: float | None, log: ErrorLog | None) -> Attempt:
        """Let the solver solve a task. Its end, and its taking too long, become a failure with a reason."""
        started = utc_now()
        clock = time.monotonic()
        timed_out = False
        try:
            self._start_again_if_dead()
            clock = time.monotonic()
            self._send({"task": task.to_json(), "seed": seed, "time_limit_s": time_limit_s})
            answer = Answer(**self._receive("answer", clock + self._timeout_s)["answer"])
        except (InputError, _Died, _TimedOut, TypeError) as error:
            self.close()
            timed_out = isinstance(error, _TimedOut)
            reason = one_line(error, with_type=False)
            answer = Answer(started, time.monotonic() - clock, 0.0, "error", reason)
            subject = task.name or f"task {task.digest[:12]}"
            logger.warning("%s on %s, seed %d: %s; the run goes on", self.spec.title, subject, seed, reason)
        attempt = attempt_of(self.spec, self.facts, seed, task, answer, log)
        return dataclasses.replace(attempt, timed_out=timed_out)

    def close(self) -> None:
        """End the process, and what it started in its process group, at once; remove its temporary files."""
        if self._connection is not None:
            self._connections.discard(self._connection)
            self._connection.close()
            self._connection = None
        if self._pid:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
            if self._status is None:
                with contextlib.suppress(OSError):
                    os.waitpid(self._pid, 0)
            self._pid = 0
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def _start_again_if_dead(self) -> None:
        """See to a living process: one that ended after its last answer is not to be blamed on this task."""
        if self._pid and self._ended() is not None:
            self.close()
        if not self._pid:
            self.start()
        if not self._made:
            self.wait_until_made()

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError:
            raise _Died(self._how_it_ended()) from None

    def _receive(self, wanted: str, deadline: float) -> dict[str, Any]:
        """Return the next message of a kind, or a refusal; serve what the process asks until then."""
        while True:
            while not self._connection.poll(min(_LOOK_S, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    self.close()
                    limit = self._timeout_s if wanted == "answer" else _MAKE_S
                    raise _TimedOut(f"it took longer than {limit:g} s and was stopped")
                if self._ended() is not None and not self._connection.poll(0):
                    raise _Died(self._how_it_ended())
            try:
                message = json.loads(self._connection.recv_bytes())
                if "log" in message:
                    name, level, text = message["log"]
                    logging.getLogger(name).log(level, "%s", text)
                elif "plans" in message:
                    self._send(_measure(self._oracle, message))
                elif wanted in message or "refused" in message:
                    return dict(message)
            except (EOFError, OSError, ValueError, TypeError):
                raise _Died(self._how_it_ended()) from None

    def _ended(self) -> int | None:
        """Return the wait status of a process that has ended; None while it lives."""
        if self._status is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                self._status = 0
            else:
                self._status = status if pid else None
        return self._status

    def _how_it_ended(self) -> str:
        """Wait for the end of a process that says nothing any more, and return how it came."""
        end = time.monotonic() + _END_S
        status = self._ended()
        while status is None and time.monotonic() < end:
            time.sleep(0.01)
            status = self._ended()
        if status is None:
            return "its process closed the connection and was stopped"
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return f"its process ended with exit code {code}"
        hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
        return f"its process was killed by signal {-code} ({signal.Signals(-code).name}){hint}"


#: Where a solver lives and solves: in a process of its own, or in this one.
SolverHost = SolverProcess | InlineSolver


def host_solver(
    spec: SolverSpec, oracle: CostModel, *, timeout_s: float, isolate: bool | None = None, max_bytes: int | None = None
) -> SolverHost:
    """Return the place where a solver will work; the arguments are those of `SolverProcess` and `evaluate`.

    Raises:
        InputError: this system cannot isolate solvers and is asked to.
    """
    if isolate and not CAN_FORK:
        raise InputError("isolate: this system has no fork, so solvers work in this process: leave it out")
    if not (CAN_FORK if isolate is None else isolate):
        return InlineSolver(spec, oracle)
    return SolverProcess(spec, oracle, timeout_s=timeout_s, max_bytes=max_bytes)


def _measure(oracle: CostModel, message: dict[str, Any]) -> dict[str, Any]:
    """Ask an oracle that measures, for the process of a solver: which hardware it is of, and what plans cost."""
    try:
        if not message["plans"]:
            return {"hardware": oracle.hardware}
        task = ShardingTask.from_json(message["task"])
        costs = oracle.evaluate(task, [ShardingPlan.from_json(text) for text in message["plans"]])
        return {"costs": [cost.to_json() for cost in costs]}
    except Exception as error:
        on_purpose = isinstance(error, ShardGymError)
        return {"failed": one_line(error, with_type=not on_purpose), "is_input": isinstance(error, InputError)}


def _serve(connection: Any, spec: SolverSpec, oracle: CostModel, scratch: str, max_bytes: int | None) -> NoReturn:
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
            import resource  # not on Windows

            # More is a `MemoryError`, or the end of the process.
            in_use = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (in_use + max_bytes, in_use + max_bytes))
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
