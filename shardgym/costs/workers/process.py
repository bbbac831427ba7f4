"""The parent's side of a child process: start, talk with a time limit, explain its death."""

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
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from shardgym.costs.workers.child import PING
from shardgym.errors import MeasurementError

#: Root of the import path that this package was found on.
_ROOT = Path(__file__).parents[3]


class ChildProcess:
    """A Python process that runs `main` of a module and answers messages.

    It is started by `subprocess`, not by `multiprocessing`: the caller's main script is not imported again, and the
    environment is in place before the interpreter starts.

    Args:
        module: a module that can be run and calls `shardgym.costs.workers.child.serve`.
        settings: what the child is told at its start, JSON-ready.
        environment: variables that are set for the child on top of the parent's.
    """

    def __init__(self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
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

    def answers(self, timeout_s: float) -> bool:
        """Say whether an idle child is alive and well; ends it otherwise."""
        try:
            self.send(PING)
            self.receive(timeout_s)
        except MeasurementError:
            self.kill()
            return False
        return True

    @property
    def dead(self) -> bool:
        """Whether the child has ended."""
        return self._process.poll() is not None

    def send(self, message: Any) -> None:
        """Send a message; raises `MeasurementError` when the child has died."""
        try:
            self.connection.send(message)
        except OSError:
            raise MeasurementError(self.obituary()) from None

    def receive(self, timeout_s: float, deadline: float | None = None) -> Any:
        """Return the child's answer.

        Args:
            timeout_s: how long an answer may take.
            deadline: on the monotonic clock, when that time is over; counted from now if not given.

        Raises:
            MeasurementError: the child died, or did not answer in time (it is killed then).
        """
        try:
            if self.connection.poll(timeout_s if deadline is None else max(0.0, deadline - time.monotonic())):
                return self.connection.recv()
        except (EOFError, OSError):
            raise MeasurementError(self.obituary()) from None
        self.kill()
        raise MeasurementError(f"worker gave no answer within {timeout_s:g} s and was killed")

    def obituary(self) -> str:
        """Wait for a child that closed its end, and say how it died and what it printed last."""
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "worker closed its connection and was killed"
        if status < 0:
            name = signal.Signals(-status).name
            hint = "; the system may have run out of memory" if status == -signal.SIGKILL else ""
            return f"worker died with signal {-status} ({name}){hint}"
        return f"worker exited with status {status}: {self.last_line() or 'it printed nothing'}"

    def last_line(self) -> str:
        """Return the last line that the child printed."""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip()[:300] if lines else ""

    def kill(self) -> None:
        """End the child now, whatever it is doing; it holds nothing worth saving. May be called again."""
        if self._log.closed:
            return
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self.connection.close()
        self._log.close()


def _import_path() -> dict[str, str]:
    """Let the child find this package as well when it is not installed but run from a checkout."""
    installed = {Path(p).resolve() for p in [*site.getsitepackages(), site.getusersitepackages()]}
    if _ROOT in installed:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(_ROOT)]))}
