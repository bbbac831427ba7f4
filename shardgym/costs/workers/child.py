"""The child's side: say whether it works, then answer messages until the parent closes or dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from shardgym.errors import ShardGymError, error_text

#: Seconds between two looks at whether the parent still lives while a message is being worked on.
WATCH_S = 2.0

#: A message that any child answers at once.
PING = "ping"

Handler = Callable[[Any], Any]


def serve(start: Callable[[dict[str, Any]], tuple[Handler, dict[str, Any]]]) -> None:
    """Serve the connection whose descriptor is the last command-line argument, after the settings.

    Every answer is a pair: "ok" and a value, "refused" and a reason (the child is as good as before), or "failed" and
    a reason (the child should be replaced). The first answer, which nobody asked for, is that of `start`.

    Args:
        start: given the settings, loads what is needed, checks that it works, and returns the function that answers
            messages and facts about the child.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    _prefer_as_memory_victim()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    connection: Connection[Any, Any] = Connection(int(sys.argv[-1]))
    with contextlib.suppress(EOFError, ConnectionError):
        handler: Handler | None = None

        def begin(_: Any) -> dict[str, Any]:
            nonlocal handler
            handler, facts = start(json.loads(sys.argv[-2]))
            return facts

        connection.send(_answer(begin, None))
        while handler is not None:
            message = connection.recv()
            connection.send(("ok", None) if message == PING else _answer(handler, message))


class Refusal(ShardGymError):
    """What was asked cannot be done here, and the child is as good as before."""


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
        time.sleep(WATCH_S)
    os._exit(1)


def _prefer_as_memory_victim() -> None:
    """Ask the kernel to end this process rather than the parent when memory runs out."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
