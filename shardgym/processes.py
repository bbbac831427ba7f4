"""Child processes that answer messages: how they start, how long an answer may take, and how they end.

A child is a copy of `multiprocessing`'s fork server, which has imported what this process has of this project, or a new
interpreter, where variables of the environment must be in place before libraries are loaded. In neither is the caller's
main script imported again. A child leads a process group of its own, and ends with its parent, however that ends.

A child answers every message with a pair: "ok" and a value, "refused" and a reason (it can go on), or "failed" and a
reason (it should be replaced). Its first answer reports the start. What it logs is logged by its parent.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from pickle import UnpicklingError
from types import ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from shardgym.errors import InputError, ShardGymError, error_text, one_line

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

CAN_FORK = hasattr(os, "fork")
#: Takes a message and returns the value of the answer.
Handler = Callable[[Any], Any]

_LOG = "log"
#: How long a child that closed its connection may take to end by itself.
_END_S = 5.0
#: Linux's kind of clock for the processor time of a process.
_CPUCLOCK_SCHED = 2
#: The fork server imports what this process has of these packages, and the modules it was asked for.
_PACKAGES = ("shardgym", "baselines", "neuroshard")
_asked_for: list[str] = []
_starting = threading.Lock()


class ChildError(ShardGymError):
    """A child ended, or gave no answer in time; it is gone."""


def preload(*modules: str) -> None:
    """Make the fork server import more modules; no effect once it has started."""
    _asked_for.extend(modules)


class Child:
    """A child process as its parent sees it.

    Args:
        module: has a function `start`, which takes the settings and returns the function that answers messages, and
            facts about the child, its first answer.
        settings: passed to `start`; pickled, what this session alone has by its value. Raises `InputError` where they
            cannot be.
        environment: variables of the child; those of this process, unless given.
        new_interpreter: whether the variables must be in place before anything is loaded.
        quiet: whether what it prints goes to a file, whose last line tells why it ended, and not to standard error.
    """

    error: type[ShardGymError] = ChildError  #: what is raised, and what messages call the process
    noun = "its process"

    def __init__(
        self,
        module: str,
        settings: Any,
        *,
        environment: Mapping[str, str] | None = None,
        new_interpreter: bool = False,
        quiet: bool = False,
    ) -> None:
        try:
            pickled = cloudpickle.dumps(settings)
        except Exception as error:
            raise InputError(f"cannot be pickled for a child process: {one_line(error)}") from None
        self._printed = tempfile.TemporaryFile() if quiet else None  # noqa: SIM115
        self._cpu_s: float | None = None
        context: SpawnContext | ForkServerContext = multiprocessing.get_context("forkserver")
        if new_interpreter:
            context = multiprocessing.get_context("spawn")
        levels = {name: logging.getLogger(name).level for name in ("", *_PACKAGES)}
        variables = dict(os.environ if environment is None else environment)
        self.connection, theirs = context.Pipe()
        # A connection, as these are handed over.
        errors = Connection(os.dup(2 if self._printed is None else self._printed.fileno()), readable=False)
        self._process = context.Process(target=_serve, args=(module, pickled, variables, levels, theirs, errors))
        with theirs, errors, _starting:
            _start(self._process, context, variables)
        assert self._process.pid is not None
        self.pid = self._process.pid
        # With a priority it is done before `multiprocessing` waits for all children at the end.
        self._finalizer = Finalize(self, _end, (self._process,), exitpriority=10)

    @property
    def dead(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    def cpu_seconds(self) -> float | None:
        """Return the processor time of the process so far, of its threads and the children it waited for.

        None where that is not known.
        """
        if sys.platform == "linux" and not self.dead:
            with contextlib.suppress(OSError):
                own_s = time.clock_gettime((~self.pid << 3) | _CPUCLOCK_SCHED)
                # After the name in brackets, user and system time of children that it has waited for are 14th and 15th.
                fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
                self._cpu_s = own_s + (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        return self._cpu_s

    def send(self, message: Any) -> None:
        """Send what is to be worked on; raises `error` when the child has died."""
        try:
            self.connection.send(message)
        except OSError:
            raise self.error(self.cause_of_death()) from None

    def receive(self, timeout_s: float, deadline: float | None = None) -> tuple[str, Any]:
        """Return the child's answer, a pair, and log what it logs until then.

        Raises `error` when the child died, or did not answer in `timeout_s` from now, or until
        a deadline on the monotonic clock; it is killed then.
        """
        end = time.monotonic() + timeout_s if deadline is None else deadline
        try:
            while True:
                if not wait([self.connection, self._process.sentinel], max(0.0, end - time.monotonic())):
                    raise TimeoutError
                if not self.connection.poll():  # it has ended, and a copy of it holds the connection
                    raise EOFError
                kind, value = self.connection.recv()
                if kind != _LOG:
                    return str(kind), value
                name, level, text = value
                logging.getLogger(name).log(level, "%s", text)
        except TimeoutError:
            self.kill()
            raise self.error(f"{self.noun} took longer than {timeout_s:g} s and was stopped") from None
        except (EOFError, OSError, UnpicklingError):
            raise self.error(self.cause_of_death()) from None

    def cause_of_death(self) -> str:
        """Wait for the end of a child that closed its connection; return its signal, or exit code and last line."""
        self._process.join(_END_S)
        code = self._process.exitcode
        if code is None:
            self.kill()
            return f"{self.noun} closed its connection and was stopped"
        if code < 0:
            hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
            return f"{self.noun} was killed by signal {-code} ({signal.Signals(-code).name}){hint}"
        cause = f"{self.noun} ended with exit code {code}"
        if self._printed is None or self._printed.closed:
            return cause
        self._printed.seek(0)
        lines = self._printed.read().decode(errors="replace").split("\n")
        return f"{cause}: {next((text[:300] for text in reversed(lines) if text), 'it printed nothing')}"

    def kill(self) -> None:
        """End the process and its group at once; it has no state to save. May be called again."""
        self.cpu_seconds()
        self._finalizer()
        self.connection.close()
        if self._printed is not None:
            self._printed.close()


def _start(process: BaseProcess, context: ForkServerContext | SpawnContext, variables: Mapping[str, str]) -> None:
    """Start a process without the caller's main script, which it would import again."""
    main = sys.modules["__main__"]
    before = dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    ours = [name for name in sys.modules if name.partition(".")[0] in _PACKAGES]
    context.set_forkserver_preload([*ours, *_asked_for])
    try:
        if context.get_start_method() == "spawn":  # the server's children may differ: they get theirs when they start
            _set_environment(variables)
        end = None
        while process.pid is None:
            try:
                process.start()
            except (EOFError, OSError):  # an import ended the server: the child itself will say what is wrong
                end = end or time.monotonic() + _END_S
                if time.monotonic() > end:
                    raise
                context.set_forkserver_preload([])
                time.sleep(0.05)
    finally:
        sys.modules["__main__"] = main
        _set_environment(before)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        os.environ.pop(name, None)
    os.environ.update(variables)


def _end(process: BaseProcess) -> None:
    assert process.pid is not None
    with contextlib.suppress(OSError):  # it has no group yet, or no more
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()


# --- in the child -----------------------------------------------------------------------------------------------------


class _Parent(logging.Handler):
    """The parent as the child sees it: hears answers, and what any thread logs, one after the other."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.hear(_LOG, (record.name, record.levelno, record.getMessage()))
        except Exception:
            self.handleError(record)

    def hear(self, kind: str, value: Any) -> None:
        with self.lock or contextlib.nullcontext():
            self._connection.send((kind, value))


def _serve(
    module: str, settings: bytes, variables: dict[str, str], levels: dict[str, int], connection: Connection,
    errors: Connection,
) -> None:  # fmt: skip
    """Answer messages until the parent closes the connection."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    if sys.platform == "linux":
        _end_with_parent()
        with contextlib.suppress(OSError):  # when memory runs out, the kernel should end this process, not the parent
            Path("/proc/self/oom_score_adj").write_text("1000")
    with errors:
        for descriptor in (1, 2):
            os.dup2(errors.fileno(), descriptor)
    sys.stdout = sys.stderr
    _set_environment(variables)
    parent = _Parent(connection)
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().handlers = [parent]
    handlers: list[Handler] = []

    def begin(_: Any) -> Any:
        handler, facts = importlib.import_module(module).start(cloudpickle.loads(settings))
        handlers.append(handler)
        return facts

    with contextlib.suppress(EOFError, ConnectionError):
        parent.hear(*_answer(begin, None))
        while handlers:
            parent.hear(*_answer(handlers[0], connection.recv()))


def _end_with_parent() -> None:
    """Let the kernel end the group when the parent is gone, also while native code keeps all threads from running."""
    import fcntl  # not on Windows

    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)
    if not parent.is_alive():
        os._exit(1)


def _answer(handler: Handler, message: Any) -> tuple[str, Any]:
    try:
        return "ok", handler(message)
    except ShardGymError as error:
        return "refused", str(error)
    except Exception as error:  # it belongs to the parent, which takes it for the outcome and replaces this process
        return "failed", error_text(error)
