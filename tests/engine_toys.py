"""Workers that are simple, importable in other processes."""

import contextlib
import os
import signal
import time
from pathlib import Path

from shardgym.errors import UnknownNameError


@contextlib.contextmanager
def doubling(folder):
    """Answer with the process and twice the job; files say who opened and closed."""
    Path(folder, f"opened.{os.getpid()}").touch()
    print("what a worker prints is no result")
    try:
        yield lambda job: (os.getpid(), 2 * job)
    finally:
        Path(folder, f"closed.{os.getpid()}").touch()


@contextlib.contextmanager
def dying(folder, times):
    """Answer as `doubling`, but end the process at job 3, so many times."""

    def answer(job):
        died = len(list(Path(folder).glob("died.*")))
        if job == 3 and died < times:
            Path(folder, f"died.{died}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
        return os.getpid(), 2 * job

    yield answer


@contextlib.contextmanager
def refusing():
    """Raise an error on purpose, with arguments of its own."""
    yield _refuse


def _refuse(job):
    raise UnknownNameError("job", job, ["other"])


@contextlib.contextmanager
def reserving():
    """Answer with the node of a Ray cluster, and the cores of it that the worker has for itself."""
    import ray

    context = ray.get_runtime_context()

    def answer(_):
        time.sleep(0.5)
        return context.get_node_id(), context.get_assigned_resources()["CPU"]

    yield answer
