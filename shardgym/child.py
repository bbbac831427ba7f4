"""The inside of a child process: the messages between it and its parent, and how it answers them.

A message is eight bytes that say how long it is, and as many bytes. It is read with a deadline, and not beyond
`MAX_BYTES`: who says half a word, or too much, cannot make the other side wait or run out of memory.

A child answers every message with a pair: "ok" and a value, "refused" and a reason (it can go on), or "failed" and a
reason (it should be replaced). Its first answer comes without a message and reports the start. While it works, a forked
child may also log, and ask its parent something. The side of the parent is in `children.py`.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from shardgym.errors import ShardGymError, error_text

#: Of one message: a plan takes some megabytes at most.
MAX_BYTES = 2**28
#: What a parent sends: to be worked on, to be answered at once, the reply to a question.
WORK, PING, REPLY = "work", "ping", "reply"
#: What a child sends besides answers.
LOG, ASK = "log", "ask"
#: Seconds between looks whether a side that says nothing is alive: a copy of it may keep the connection open.
_LOOK_S = 0.2
#: Of Linux: the signal that a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: Takes a message and returns the value of the answer.
Handler = Callable[[Any], Any]


class Channel:
    """One end of a connection. Several threads may send.

    Args:
        connection: a stream socket.
        codec: `json`, or `pickle` where both sides are this package.
        has_ended: whether the other side is gone, although the connection may be open.
    """

    def __init__(
        self, connection: socket.socket, codec: ModuleType, has_ended: Callable[[], bool] = lambda: False
    ) -> None:
        self._socket = connection
        self._codec = codec
        self._has_ended = has_ended
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, to be waited for."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close this end; may be called again."""
        self._socket.close()

    def send(self, message: Any, deadline: float = math.inf) -> None:
        """Send a message until a time on the monotonic clock; raises `OSError`, of which a timeout is one."""
        encoded = self._codec.dumps(message)
        data = encoded.encode() if isinstance(encoded, str) else encoded
        with self._lock:
            self._socket.settimeout(None if deadline == math.inf else max(0.001, deadline - time.monotonic()))
            self._socket.sendall(len(data).to_bytes(8, "little") + data)

    def receive(self, deadline: float = math.inf) -> Any:
        """Return the next message.

        Raises:
            TimeoutError: it is not here by then.
            EOFError: the other side is gone.
            OSError: the connection is broken.
            ValueError: it is no message, or too long.
        """
        size = int.from_bytes(self._read(8, deadline), "little")
        if size > MAX_BYTES:
            raise ValueError(f"sent a message of {size} bytes, at most {MAX_BYTES} are read")
        data = self._read(size, deadline)
        try:
            return self._codec.loads(data)
        except Exception:
            raise ValueError("sent what is no message") from None

    def _read(self, count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < count:
            while not wait([self], max(0.0, min(_LOOK_S, deadline - time.monotonic()))):  # type: ignore[list-item]
                if time.monotonic() >= deadline:
                    raise TimeoutError
                if self._has_ended() and not wait([self], 0):  # type: ignore[list-item]
                    raise EOFError
            part = self._socket.recv(min(count - len(data), 2**20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


class Parent(logging.Handler):
    """The parent as a forked child sees it: answers what threads of the child ask, and takes what they log.

    Processes that the child forks log to standard error and ask nothing.

    Args:
        channel: to the parent.
    """

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._pid = os.getpid()
        self._asking = threading.Lock()
        self.replies: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def ask(self, question: Any) -> Any:
        """Return the parent's reply to a question, one question after the other."""
        if os.getpid() != self._pid:
            raise ShardGymError("a process that a solver forked cannot ask the oracle: ask in the process that solves")
        with self._asking:
            self._channel.send((ASK, question))
            return self.replies.get()

    def emit(self, record: logging.LogRecord) -> None:
        """Let the parent log."""
        try:
            if os.getpid() != self._pid:
                print(self.format(record), file=sys.stderr, flush=True)
            else:
                self._channel.send((LOG, (record.name, record.levelno, record.getMessage())))
        except Exception:
            self.handleError(record)


def serve(start: Callable[[dict[str, Any]], tuple[Handler, Any]], settings: dict[str, Any], channel: Channel) -> None:
    """Answer messages in a fresh child, in its first thread, until the parent closes the connection.

    Args:
        start: takes the settings, loads and checks libraries, and returns the function that answers messages, and
            facts about the child.
        settings: of this child.
        channel: to the parent.
    """

    def messages() -> Iterator[tuple[str, Any]]:
        with contextlib.suppress(EOFError):
            while True:
                yield channel.receive()

    with contextlib.suppress(ConnectionError):
        _answer_all(channel, lambda: start(settings), messages())


def run_fork(channel: Channel, start: Callable[[Parent], tuple[Handler, Any]]) -> NoReturn:
    """Start the thread that works, and hand messages to it until the parent is gone."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # also while it is stopped, or native code keeps all of its threads from running
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    with contextlib.suppress(OSError):
        os.dup2(2, 1)
    parent = Parent(channel)
    ours = logging.getLogger("shardgym")
    ours.handlers = [parent]
    ours.propagate = False
    requests: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def work() -> NoReturn:
        try:
            _answer_all(channel, lambda: start(parent), iter(requests.get, None))
        finally:
            os._exit(1)

    threading.Thread(target=work, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            kind, message = channel.receive()
            if kind == REPLY:
                parent.replies.put(message)
            else:
                requests.put((kind, message))
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _answer_all(
    channel: Channel, start: Callable[[], tuple[Handler, Any]], messages: Iterator[tuple[str, Any]]
) -> None:
    """Answer the start, and every message unless that failed."""
    pid = os.getpid()
    handlers: list[Handler] = []

    def begin(_: Any) -> Any:
        handler, facts = start()
        handlers.append(handler)
        return facts

    channel.send(_answer(begin, None))
    for kind, message in messages if handlers else ():
        answer = ("ok", None) if kind == PING else _answer(handlers[0], message)
        if os.getpid() != pid:
            os._exit(0)  # a copy that the handler forked and that returned as well
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        channel.send(answer)


def _answer(handler: Handler, message: Any) -> tuple[str, Any]:
    try:
        return "ok", handler(message)
    except ShardGymError as error:
        return "refused", str(error)
    except Exception as error:  # it belongs to the parent, which takes it for the outcome and replaces this process
        return "failed", error_text(error)
