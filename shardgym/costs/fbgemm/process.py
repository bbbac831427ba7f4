"""Child processes that measure, and the protocol between them and their parent.

The parent starts a `ChildProcess`, sends messages and receives answers with a time limit. The child's main calls
`serve`. Every answer is a pair: "ok" and a value, "refused" and a reason (the child can go on), or "failed" and a
reason (the child should be replaced). The first answer comes without a message and reports the start.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import site
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from shardgym.errors import MeasurementError, ShardGymError, error_text

#: Root of the import path that this package was found on.
_ROOT = Path(__file__).parents[3]
#: A message that any child answers at once.
_PING = "ping"
#: Seconds between checks of a child that its parent is alive.
_WATCH_S = 2.0
#: Seconds that a child which has closed its connection may take to end.
_END_S = 5.0

Handler = Callable[[Any], Any]


class JobError(ShardGymError):
    """A job cannot be done on this device; the child can go on with the next one."""


class ChildProcess:
    """A Python process that runs `main` of a module and answers messages.

    It is started by `subprocess`, not by `multiprocessing`: the caller's main script is not imported again, and the
    environment is in place before the interpreter starts.

    Args:
        module: a module that can be run and calls `serve`.
        settings: passed to the child's `start`, JSON-ready.
        environment: variables of the child in addition to the parent's.

    Raises:
        MeasurementError: this system is not Linux.
    """

    def __init__(self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        require_linux()
        ours, theirs = socket.socketpair()
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, json.dumps(settings), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_import_path(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
        self.connection: Connection[Any, Any] = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def dead(self) -> bool:
        """Whether the child has ended."""
        return self._process.poll() is not None

    def ping(self, timeout_s: float) -> bool:
        """Say whether an idle child is alive and well; ends it otherwise."""
        try:
            self.send(_PING)
            self.receive(timeout_s)
        except MeasurementError:
            self.kill()
            return False
        return True

    def send(self, message: Any) -> None:
        """Send a message; raises `MeasurementError` when the child has died."""
        try:
            self.connection.send(message)
        except OSError:
            raise MeasurementError(self.cause_of_death()) from None

    def receive(self, timeout_s: float, deadline: float | None = None) -> Any:
        """Return the child's answer.

        Args:
            timeout_s: how long an answer may take.
            deadline: when that time is over, on the monotonic clock; `timeout_s` from now if not given.

        Raises:
            MeasurementError: the child died, or did not answer in time (it is killed then).
        """
        try:
            if self.connection.poll(timeout_s if deadline is None else max(0.0, deadline - time.monotonic())):
                return self.connection.recv()
        except (EOFError, OSError):
            raise MeasurementError(self.cause_of_death()) from None
        self.kill()
        raise MeasurementError(f"worker gave no answer within {timeout_s:g} s and was killed")

    def cause_of_death(self) -> str:
        """Wait for the end of a child that closed its connection; return its signal, or its status and last output."""
        try:
            status = self._process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "worker closed its connection and was killed"
        if status < 0:
            hint = "; the system may have run out of memory" if status == -signal.SIGKILL else ""
            return f"worker died with signal {-status} ({signal.Signals(-status).name}){hint}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f"worker exited with status {status}: {lines[-1].strip()[:300] if lines else 'it printed nothing'}"

    def kill(self) -> None:
        """End the child at once; it has no state to save. May be called again."""
        if self._log.closed:
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self.connection.close()
        self._log.close()


def require_linux() -> None:
    """Raise `MeasurementError` on systems where plans cannot be measured."""
    if sys.platform != "linux":
        raise MeasurementError(
            f"measuring needs Linux, this is {sys.platform}: workers are pinned to cores and inherit connections; "
            "use the cost 'roofline' or 'simulator' here"
        )


def _import_path() -> dict[str, str]:
    """Let the child find this package as well when it is not installed but run from a checkout."""
    installed = {Path(p).resolve() for p in [*site.getsitepackages(), site.getusersitepackages()]}
    if _ROOT in installed:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(_ROOT)]))}


def serve(start: Callable[[dict[str, Any]], tuple[Handler, dict[str, Any]]]) -> None:
    """Answer messages in the child until the parent closes the connection or dies.

    The connection's descriptor is the last command-line argument, after the settings.

    Args:
        start: takes the settings, loads and checks libraries, and returns the function that answers messages, and
            facts about the child.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    with contextlib.suppress(OSError):  # when memory runs out, the kernel should end this process, not the parent
        Path("/proc/self/oom_score_adj").write_text("1000")
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection: Connection[Any, Any] = Connection(int(sys.argv[-1]))
    handler: Handler | None = None

    def begin(settings: dict[str, Any]) -> dict[str, Any]:
        nonlocal handler
        handler, facts = start(settings)
        return facts

    with contextlib.suppress(EOFError, ConnectionError):
        connection.send(_answer(begin, json.loads(sys.argv[-2])))
        while handler is not None:
            message = connection.recv()
            connection.send(("ok", None) if message == _PING else _answer(handler, message))


def _answer(handler: Handler, message: Any) -> tuple[str, Any]:
    try:
        return "ok", handler(message)
    except ShardGymError as error:
        return "refused", str(error)
    except Exception as error:  # it belongs to the parent, which fails the plan with it and replaces this process
        return "failed", error_text(error)


def _end_with_parent(parent: int) -> None:
    """End this process when the parent is gone, also in the middle of a measurement."""
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)
