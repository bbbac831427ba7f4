"""What children of tests serve, importable in other processes."""

import ctypes
import fcntl
import logging
import os
import sys
import tempfile
import time

from shardgym.errors import InputError

logger = logging.getLogger("shardgym.toys")


def _spin():
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass


def start(settings):
    """Answers: doubles numbers, and does odd things on request."""

    def answer(message):
        if isinstance(message, int):
            return 2 * message
        if message == "fork and leave":  # the copy holds what the process held
            if os.fork():
                os._exit(3)
            time.sleep(60)
        if message == "leave":
            print("on purpose", flush=True)
            os._exit(3)
        if message == "return":
            raise SystemExit(4)
        if message == "hold":  # no thread of the process runs meanwhile
            ctypes.PyDLL(None).sleep(60)
        if message == "refuse":
            raise InputError("not this")
        if message == "fail":
            raise KeyError("that")
        if message == "log":
            logger.info("%d of %s", 3, "four")
        if message == "spin":
            _spin()
        if message == "let spin":
            if child := os.fork():
                os.waitpid(child, 0)
            else:
                _spin()
                os._exit(0)
        if message == "threads":
            import torch

            torch.set_num_threads(2)
            return float((torch.ones(512, 512) @ torch.ones(512, 512)).sum())
        if message == "lock":
            folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.environ.get(message)

    facts = {"settings": settings() if callable(settings) else settings, "server": os.getppid()}
    return answer, facts | {"main": getattr(sys.modules["__main__"], "__file__", None)}
