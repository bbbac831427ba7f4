"""Worker processes that measure: children (`shardgym/processes.py`) whose end is a failed measurement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from shardgym.errors import MeasurementError, ShardGymError
from shardgym.processes import Child, preload

#: Module that imports what ranks need, which takes a second and a half.
PRELOADED = "shardgym.costs.fbgemm.preloaded"


class JobError(ShardGymError):
    """A job cannot be done on this device; the worker can go on with the next one."""


class ChildProcess(Child):
    """A process that runs `start` of a module, see `Child`, and raises `MeasurementError`.

    CUDA does not work in a copy of a process that has asked for a device, as libraries may do while they are imported,
    and the allocator of kernels' workers reads its variables first of all: these are new interpreters.
    """

    error = MeasurementError
    noun = "worker"

    def __init__(
        self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str], *, new_interpreter: bool = False
    ) -> None:
        require_linux()
        if not new_interpreter:
            preload(PRELOADED)
        super().__init__(module, settings, environment=environment, new_interpreter=new_interpreter, quiet=True)


def require_linux() -> None:
    """Raise `MeasurementError` on systems where plans cannot be measured."""
    if sys.platform != "linux":
        raise MeasurementError(
            f"measuring needs Linux, this is {sys.platform}: workers are pinned to cores and inherit connections; "
            "use the cost 'roofline' or 'simulator' here"
        )
