"""The worker process: `python -m shardgym.costs.fbgemm.worker SETTINGS DESCRIPTOR`."""

from __future__ import annotations

import gc
import os
from typing import Any

from shardgym.costs.fbgemm.backend import Backend
from shardgym.costs.fbgemm.content import Content, Piece
from shardgym.costs.fbgemm.device_facts import Probe
from shardgym.costs.fbgemm.measurer import Job, Measurer
from shardgym.costs.workers.child import Handler, serve
from shardgym.table import EmbeddingTable


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Load the backend and run one tiny job, so that versions that do not fit together show here.

    Args:
        settings: "device" ("cpu" or "cuda"), "seed", and "core" to be pinned to (CPU only).
    """
    backend = _backend(settings["device"])
    facts = backend.facts()
    if settings["device"] == "cpu":
        os.sched_setaffinity(0, {settings["core"]})
    measurer = Measurer(backend, settings["seed"])
    piece = Piece(EmbeddingTable("check", 4, 4), (0, 4), 4)
    measurer(Job(Content((piece,), 2, "fp32", "exact_sgd"), warmups=0, iterations=1))
    gc.collect()
    gc.freeze()

    def answer(message: Job | Probe) -> Any:
        if not isinstance(message, Probe):
            return measurer(message)
        from shardgym.costs.fbgemm.probe import probe

        return probe(settings["device"])

    return answer, facts


def _backend(device: str) -> Backend:
    if device == "cpu":
        from shardgym.costs.fbgemm.cpu import CpuBackend

        return CpuBackend()
    from shardgym.costs.fbgemm.cuda import CudaBackend

    return CudaBackend()


if __name__ == "__main__":
    serve(start)
