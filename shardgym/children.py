"""Child processes: how they start, how their parent talks with them, and how they end.

A `ForkedChild` is a copy of this process that runs a function: whatever the function holds need not be pickled, nor
imported. A `FreshChild` is a copy of a new interpreter that has imported a module (`fork_server.py`): nothing of this
process is in it. Both are in a process group of their own, which ends with them. What they say is in `child.py`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import IO, Any, ClassVar

from shardgym.child import ASK, LOG, PING, REPLY, WORK, Channel, Handler, Parent, run_fork
from shardgym.errors import ShardGymError
from shardgym.fork_server import ForkServer, ServerEndedError

CAN_FORK = hasattr(os, "fork")
#: A child that has closed its connection may take so long to end by itself.
_END_S = 5.0
#: Of Linux: the kind of clock that tells a process's processor time.
_CPUCLOCK_SCHED = 2


class ChildError(ShardGymError):
    """A child ended, said what is no message, or gave no answer in time; it is gone."""


class Child:
    """A child process as its parent sees it.

    Args:
        pid: of the process, the first of its group.
        connection: this side's end.
        reply: answers what the child asks.

    Attributes:
        pid: process id.
        connection: this side's end.
        timed_out: whether it was ended because it gave no answer in time.
    """

    #: How messages are written, what is raised, and what messages call the process.
    codec: ModuleType = json
    error: type[ShardGymError] = ChildError
    noun = "its process"

    #: This side's ends of all connections. A fork closes its copies: a child must see that its own end was closed.
    _open: ClassVar[weakref.WeakSet[Channel]] = weakref.WeakSet()

    def __init__(self, pid: int, connection: socket.socket, reply: Handler | None = None) -> None:
        self.pid = pid
        self.connection = Channel(connection, self.codec, lambda: self.dead)
        self.timed_out = False
        self._reply = reply
        self._status: int | None = None
        self._cpu_s: float | None = None
        self._closed = False
        self._open.add(self.connection)

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        self._reap(os.WNOHANG)
        return self._status is not None

    def cpu_seconds(self) -> float | None:
        """Return the processor time of the process so far, all its threads together; None where that is not known."""
        if self._cpu_s is None and sys.platform == "linux":
            with contextlib.suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)
        return self._cpu_s

    def ping(self, timeout_s: float) -> bool:
        """Say whether an idle child is alive and well; ends it otherwise."""
        try:
            self._send((PING, None), math.inf)
            self.receive(timeout_s)
        except self.error:
            self.kill()
            return False
        return True

    def send(self, message: Any, deadline: float = math.inf) -> None:
        """Send what is to be worked on; raises `error` when the child has died or does not take it in time."""
        self._send((WORK, message), deadline)

    def _send(self, message: tuple[str, Any], deadline: float) -> None:
        try:
            self.connection.send(message, deadline)
        except OSError:
            raise self.error(self.cause_of_death()) from None

    def receive(self, timeout_s: float, deadline: float | None = None) -> tuple[str, Any]:
        """Return the child's answer, a pair; log what it logs and answer what it asks until then.

        Args:
            timeout_s: how long an answer may take.
            deadline: when that time is over, on the monotonic clock; `timeout_s` from now if not given.

        Raises:
            error: the child died, said what is no message, or did not answer in time (it is killed then).
        """
        end = time.monotonic() + timeout_s if deadline is None else deadline
        try:
            while True:
                kind, value = self.connection.receive(end)
                if kind == LOG:
                    name, level, text = value
                    logging.getLogger(name).log(level, "%s", text)
                elif kind == ASK and self._reply is not None:
                    self.connection.send((REPLY, self._reply(value)), end)
                else:
                    return str(kind), value
        except TimeoutError:
            self.kill()
            self.timed_out = True
            raise self.error(f"{self.noun} took longer than {timeout_s:g} s and was stopped") from None
        except (EOFError, OSError):
            raise self.error(self.cause_of_death()) from None
        except (ValueError, TypeError) as error:
            self.kill()
            raise self.error(f"{self.noun} {error} and was stopped") from None

    def pause(self) -> None:
        """Stop the process and its group, whatever their threads do, until `go_on`."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped process go on."""
        self._signal(signal.SIGCONT)

    def cause_of_death(self) -> str:
        """Wait for the end of a child that closed its connection; return its signal, or its exit code."""
        end = time.monotonic() + _END_S
        while not self.dead and time.monotonic() < end:
            time.sleep(0.005)
        if self._status is None:
            self.kill()
            return f"{self.noun} closed its connection and was stopped"
        code = os.waitstatus_to_exitcode(self._status)
        if code >= 0:
            return f"{self.noun} ended with exit code {code}"
        hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
        return f"{self.noun} was killed by signal {-code} ({signal.Signals(-code).name}){hint}"

    def kill(self) -> None:
        """End the process and its group at once; it has no state to save. May be called again."""
        if self._closed:
            return
        self._closed = True
        self._signal(signal.SIGKILL)
        self._reap(0)
        self.connection.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):  # its group is gone
            os.killpg(self.pid, number)

    def _reap(self, options: int) -> None:
        if self._status is not None:
            return
        ended = self._wait(options)
        if ended is not None:
            self._status, self._cpu_s = ended

    def _wait(self, options: int) -> tuple[int, float | None] | None:
        """Return how the process ended, and its processor time if it is known; None if it has not."""
        try:
            pid, status, usage = os.wait4(self.pid, options)
        except ChildProcessError:  # somebody else waited for it
            return 0, None
        return (status, usage.ru_utime + usage.ru_stime) if pid else None


class FreshChild(Child):
    """A copy of a fork server (`fork_server.py`) that runs `start` of a module and answers messages.

    The caller's main script is not imported again, and what the process prints goes to a file.

    Args:
        module: has a function `start`, see `child.serve`.
        settings: passed to `start`, JSON-ready.
        environment: variables of the server in addition to the parent's.
        preload: modules that the server imports, once for all its copies.
    """

    codec = pickle

    def __init__(
        self,
        module: str,
        settings: Mapping[str, Any],
        environment: Mapping[str, str],
        preload: Sequence[str] = (),
    ) -> None:
        self._server: ForkServer | None = ForkServer.of(preload, environment)
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                pid = self._server.fork(module, settings, theirs, self._printed)
            except ServerEndedError:  # told like the end of a child, when its first answer is asked for
                pid = self._server.pid
                self._printed.close()
                self._printed = self._server.printed
        super().__init__(pid, ours)

    def cause_of_death(self) -> str:
        """Likewise, with the last line that the process printed."""
        cause = super().cause_of_death()
        if "exit code" not in cause or self._printed.closed:
            return cause
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").strip().splitlines()
        return f"{cause}: {lines[-1].strip()[:300] if lines else 'it printed nothing'}"

    def kill(self) -> None:
        """End the process at once; may be called again."""
        super().kill()
        self._printed.close()
        self._server = None  # it ends when nobody needs it

    def _wait(self, options: int) -> tuple[int, float | None] | None:
        server = self._server
        assert server is not None  # until this process has been waited for
        try:
            return server.wait(self.pid, options)
        except ServerEndedError:
            if self.pid == server.pid and server.status is not None:
                return server.status, server.cpu_s
            return signal.SIGKILL, None


class ForkedChild(Child):
    """A copy of this process that runs `start` and answers messages.

    It works in a thread other than the first one, because OpenMP cannot go on in the thread that forked. What it prints
    goes to standard error, and it reads nothing.

    Args:
        start: called in the child with its `Parent`; returns the function that answers messages, and facts about it.
        reply: answers what the child asks, here.
    """

    def __init__(self, start: Callable[[Parent], tuple[Handler, Any]], reply: Handler) -> None:
        ours, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # what is buffered would be printed twice
        with warnings.catch_warnings():
            # Python warns of forks beside other threads: the child runs none of their code.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            try:
                ours.close()
                for connection in self._open:
                    connection.close()
                run_fork(Channel(theirs, self.codec), start)
            finally:
                os._exit(1)
        theirs.close()
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here too: whichever of the two is first
        super().__init__(pid, ours, reply)
