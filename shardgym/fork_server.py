"""A fork server: a new interpreter that has imported modules, and makes copies of itself when its parent asks.

Importing torch and FBGEMM takes 1.5 s of processor time, a copy of a process that has done so some milliseconds. So
the ranks of a group, and the groups of an evaluation, are copies of one interpreter. Nothing of the parent is in it,
and its environment is in place before it starts. What the standard library has for this (`multiprocessing.forkserver`)
starts one server per process, with the environment of the moment, and does not tell processor times.

The server has one thread, and works on nothing itself. It ends when its parent does, and its copies end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pickle
import signal
import site
import socket
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

from cachetools import LRUCache

from shardgym.child import PR_SET_PDEATHSIG, Channel, serve

#: Root of the import path that this package was found on.
_ROOT = Path(__file__).parents[1]
#: Descriptors of the server's connection, and of a copy's.
_DESCRIPTOR = 3
#: Seconds that a request may take: the first one waits for the module.
_PATIENCE_S = 180.0
#: Seconds between looks of the server whether its parent is alive: a copy of the parent may keep the connection open.
_WATCH_S = 2.0
#: Bytes of a request or a reply.
_MOST_BYTES = 2**16


class ServerEndedError(Exception):
    """The server is gone, or gave no answer in time and was ended."""


class ForkServer:
    """A fork server as its parent sees it; `of` starts one where there is none.

    Args:
        preload: modules that it imports first; one that cannot be imported is left to the copies, which will say so.
        environment: of the server, whole.

    Attributes:
        pid: process id of the server.
        printed: file of what the server printed.
        status: how the server ended, as `os.wait4` says it; None before.
        cpu_s: processor time of a server that has ended.
    """

    #: Used last. Others live as long as one of their copies is held.
    _recent: ClassVar[LRUCache[Any, ForkServer]] = LRUCache(2)
    _alive: ClassVar[weakref.WeakValueDictionary[Any, ForkServer]] = weakref.WeakValueDictionary()

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.status: int | None = None
        self.cpu_s = 0.0
        with theirs:
            self.pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", __name__, *preload],
                environment,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, self.printed.fileno(), 1),
                    (os.POSIX_SPAWN_DUP2, self.printed.fileno(), 2),
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), _DESCRIPTOR),
                ],
                setpgroup=0,
            )
        self._connection = ours
        self._lock = threading.Lock()
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self.pid, ours, self.printed, self._owner)

    @classmethod
    def of(cls, preload: Sequence[str], environment: Mapping[str, str]) -> ForkServer:
        """Return a server of this process that is alive, a new one if need be.

        Args:
            preload: modules that it has imported.
            environment: variables in addition to those of this process.
        """
        whole = {**os.environ, **_import_path(), **environment}
        key = (os.getpid(), tuple(preload), frozenset(whole.items()))
        server = cls._alive.get(key)
        if server is None or server.status is not None:
            server = cls(preload, whole)
        cls._alive[key] = server
        cls._recent[key] = server
        return server

    def fork(self, module: str, settings: Mapping[str, Any], connection: socket.socket, printed: IO[bytes]) -> int:
        """Make a copy that runs `start` of a module and serves (`child.serve`), and return its process id.

        Args:
            module: imported by the copy if the server has not done so.
            settings: passed to `start`, JSON-ready.
            connection: the copy's end.
            printed: what the copy prints goes there.

        Raises:
            ServerEndedError: the server is gone.
        """
        return int(self._ask(["fork", module, settings], [connection.fileno(), printed.fileno()]))

    def wait(self, pid: int, options: int) -> tuple[int, float] | None:
        """Return how a copy ended, and its processor time; None if it has not, with `os.WNOHANG`.

        Raises:
            ServerEndedError: the server is gone, and its copies with it.
        """
        reply = self._ask(["wait", pid, options])
        return None if reply is None else (int(reply[0]), float(reply[1]))

    def _ask(self, request: Any, descriptors: list[int] | None = None) -> Any:
        if self.status is not None or os.getpid() != self._owner:
            raise ServerEndedError
        with self._lock:
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors or [])
                if not wait([self._connection], _PATIENCE_S):
                    raise EOFError
                reply = self._connection.recv(_MOST_BYTES)
                if not reply:
                    raise EOFError
                return json.loads(reply)
            except (OSError, EOFError):
                self._reap()
                raise ServerEndedError from None
            except BaseException:  # nobody waits for the reply
                self._reap()
                raise

    def _reap(self) -> None:
        """End the server, and note how it ended if it had done so before."""
        self._finalizer.detach()
        weakref.finalize(self, self.printed.close)  # it may be read first
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        try:
            _, self.status, usage = os.wait4(self.pid, 0)
            self.cpu_s = usage.ru_utime + usage.ru_stime
        except ChildProcessError:  # somebody else waited for it
            self.status = 0
        self._connection.close()


def _end(pid: int, connection: socket.socket, printed: IO[bytes], owner: int) -> None:
    connection.close()
    printed.close()
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _import_path() -> dict[str, str]:
    """Let the server find this package as well when it is not installed but run from a checkout."""
    installed = {Path(p).resolve() for p in [*site.getsitepackages(), site.getusersitepackages()]}
    if _ROOT in installed:
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(_ROOT)]))}


def main(preload: Sequence[str]) -> NoReturn:
    """Import modules, and answer requests until the parent is gone."""
    parent, itself = os.getppid(), os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    with contextlib.suppress(OSError):  # when memory runs out, the kernel should end this process, not the parent
        Path("/proc/self/oom_score_adj").write_text("1000")
    connection = socket.socket(fileno=_DESCRIPTOR)
    for name in preload:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or else the copies' collectors would write to every page that holds objects
    while True:
        while not wait([connection], _WATCH_S):
            if os.getppid() != parent:
                os._exit(0)
        data, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 2)
        if not data:
            os._exit(0)
        request, *arguments = json.loads(data)
        if request == "wait":
            pid, status, usage = os.wait4(*arguments)
            reply: Any = [status, usage.ru_utime + usage.ru_stime] if pid else None
        else:
            reply = os.fork()
            if reply == 0:
                connection.close()
                _serve(itself, *arguments, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                os.setpgid(reply, reply)  # here too: whichever of the two is first
        connection.send(json.dumps(reply).encode())


def _serve(server: int, module: str, settings: dict[str, Any], connection: int, printed: int) -> NoReturn:
    """Be a copy: answer messages until the parent closes the connection or the server ends."""
    code = 1
    try:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server:  # it ended before the line above
            os._exit(code)
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        os.close(printed)
        start = importlib.import_module(module).start
        serve(start, settings, Channel(socket.socket(fileno=connection), pickle))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
