"""Backend, what differs between measuring on the CPU and on a GPU, and FBGEMM's operator, which both build."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol

import torch

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.requests import Ids

#: Optimisers of tasks by FBGEMM's names.
OPTIMIZERS = {
    "exact_sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
}
#: Weights are drawn from +-this. What they are does not matter, as long as no page is the kernel's shared zero page:
#: memory that was never written to is read faster than it should be.
WEIGHT_SPREAD = 0.01


class KeptBytes(NamedTuple):
    """How many bytes of ids may stay on the device for the next job.

    Attributes:
        drawn: of tables, one by one.
        merged: of whole shard sets.
    """

    drawn: int
    merged: int


class Backend(Protocol):
    """Builds operators on one device and times their steps.

    Attributes:
        keeps_operators: whether an operator costs nothing to keep, because operators share their weights' memory.
        device: where weights and ids live and kernels run.
    """

    keeps_operators: bool
    device: torch.device

    def facts(self) -> dict[str, Any]:
        """Return what the parent may want to know: hardware tag and versions."""
        ...

    def kept_bytes(self) -> KeptBytes:
        """Return how many bytes of ids may be kept."""
        ...

    @property
    def host_waits(self) -> int:
        """Steps so far whose times include waiting for the host."""
        ...

    def reserve(self, shard_set: ShardSet, batches: int) -> AbstractContextManager[None]:
        """Return a context in which there is memory to measure `shard_set` with so many batches of ids.

        Entering or leaving it raises `JobError`, with the bytes needed and available, when there is not.
        """
        ...

    def build(self, shard_set: ShardSet) -> Any:
        """Return the operator of `shard_set`."""
        ...

    def gradient(self, shard_set: ShardSet) -> torch.Tensor:
        """Return a fixed random normal gradient of the pooled output, shape (batch_size, width)."""
        ...

    def step(self, operator: Any, ids: Ids, gradient: torch.Tensor) -> tuple[float, float]:
        """Run forward and backward once and return both times in ms."""
        ...

    def release(self) -> None:
        """Give back memory that nothing uses any more."""
        ...


def build_operator(
    shard_set: ShardSet, device: torch.device, host_buffers: Mapping[str, torch.Tensor] | None = None
) -> Any:
    """Build `SplitTableBatchedEmbeddingBagsCodegen` with one table per shard and sum pooling.

    Args:
        shard_set: what the device holds.
        device: where weights live and kernels run.
        host_buffers: memory for "weights" and "momentum1" on the CPU, one-dimensional and of the exact size, for
            versions of FBGEMM that take it; FBGEMM allocates its own when it is not given.
    """
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode, EmbeddingLocation, PoolingMode
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    on_cpu = device.type == "cpu"
    where = (EmbeddingLocation.HOST, ComputeDevice.CPU) if on_cpu else (EmbeddingLocation.DEVICE, ComputeDevice.CUDA)
    precision = SparseType.FP16 if shard_set.precision == "fp16" else SparseType.FP32
    extra: dict[str, Any] = {}
    if host_buffers:
        extra["preallocated_host_buffers"] = dict(host_buffers)
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(shard.num_rows, shard.width, *where) for shard in shard_set.shards],
        weights_precision=precision,
        output_dtype=precision,
        optimizer=getattr(EmbOptimType, OPTIMIZERS[shard_set.optimizer]),
        learning_rate=0.01,
        eps=0.01,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.NONE,
        device=device,
        **extra,
    )


def fill_weights(operator: Any) -> None:
    """Give all weights of an operator small random values."""
    for weights in operator.split_embedding_weights():
        weights.uniform_(-WEIGHT_SPREAD, WEIGHT_SPREAD)


def takes_host_buffers() -> bool:
    """Say whether this version of FBGEMM lets weights be placed in memory that the caller owns (1.8 does, 1.6 not)."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    return "preallocated_host_buffers" in inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters


def versions() -> dict[str, str]:
    """Return the versions of torch and of whichever FBGEMM distribution is installed."""
    found = {"torch": str(torch.__version__)}
    for name in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def dtype_of(shard_set: ShardSet) -> torch.dtype:
    """Return the type of weights and pooled values."""
    return torch.float16 if shard_set.precision == "fp16" else torch.float32
