"""Worker processes that measure: children (`shardgym/children.py`) whose end is a failed measurement."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from shardgym.children import FreshChild
from shardgym.errors import MeasurementError, ShardGymError

#: Takes half a second to import. A worker imports it when it starts, and says what is wrong with it.
_FBGEMM = "fbgemm_gpu.split_table_batched_embeddings_ops_training"


class JobError(ShardGymError):
    """A job cannot be done on this device; the worker can go on with the next one."""


class ChildProcess(FreshChild):
    """A process that runs `start` of a module, see `child.serve`, and raises `MeasurementError`.

    CUDA does not work in a copy of a process that has asked for a device, as libraries may do while they are imported.
    So a worker on a GPU imports all itself.

    Args:
        module: a module of this package that measures.
        settings: passed to the worker's `start`, JSON-ready; "device" is "cpu" or "cuda".
        environment: variables of the worker in addition to the parent's.

    Raises:
        MeasurementError: this system is not Linux.
    """

    error = MeasurementError
    noun = "worker"

    def __init__(self, module: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        require_linux()
        super().__init__(module, settings, environment, (module, _FBGEMM) if settings["device"] == "cpu" else ())


def require_linux() -> None:
    """Raise `MeasurementError` on systems where plans cannot be measured."""
    if sys.platform != "linux":
        raise MeasurementError(
            f"measuring needs Linux, this is {sys.platform}: workers are pinned to cores and inherit connections; "
            "use the cost 'roofline' or 'simulator' here"
        )
