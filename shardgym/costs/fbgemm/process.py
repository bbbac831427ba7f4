"""Worker processes that measure: children (`shardgym/children.py`) whose end is a failed measurement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from shardgym.children import FreshChild
from shardgym.errors import MeasurementError, ShardGymError


class JobError(ShardGymError):
    """A job cannot be done on this device; the worker can go on with the next one."""


class ChildProcess(FreshChild):
    """A process that runs `main` of a module, which calls `child.serve`, and raises `MeasurementError`.

    Args:
        module: a module that can be run.
        settings: passed to the worker's `start`, JSON-ready.
        environment: variables of the worker in addition to the parent's.

    Raises:
        MeasurementError: this system is not Linux.
    """

    error = MeasurementError
    noun = "worker"

    def __init__(self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        require_linux()
        super().__init__(module, settings, environment)


def require_linux() -> None:
    """Raise `MeasurementError` on systems where plans cannot be measured."""
    if sys.platform != "linux":
        raise MeasurementError(
            f"measuring needs Linux, this is {sys.platform}: workers are pinned to cores and inherit connections; "
            "use the cost 'roofline' or 'simulator' here"
        )
