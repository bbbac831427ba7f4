"""Builds FBGEMM's fused embedding operator for what one device holds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from shardgym.costs.fbgemm.content import Content

if TYPE_CHECKING:
    import torch

#: Optimisers of tasks by FBGEMM's names, and those that its CPU kernels have.
OPTIMIZERS = {
    "exact_sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
}
CPU_OPTIMIZERS = frozenset({"exact_sgd", "rowwise_adagrad", "adagrad"})


def build_operator(
    content: Content, device: torch.device, host_buffers: Mapping[str, torch.Tensor] | None = None
) -> Any:
    """Build `SplitTableBatchedEmbeddingBagsCodegen` with one table per piece and sum pooling.

    Args:
        content: what the device holds.
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
    precision = SparseType.FP16 if content.precision == "fp16" else SparseType.FP32
    extra: dict[str, Any] = {}
    if host_buffers:
        extra["preallocated_host_buffers"] = dict(host_buffers)
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(piece.num_rows, piece.width, *where) for piece in content.pieces],
        weights_precision=precision,
        output_dtype=precision,
        optimizer=getattr(EmbOptimType, OPTIMIZERS[content.optimizer]),
        learning_rate=0.01,
        eps=0.01,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.NONE,
        device=device,
        **extra,
    )


def fill_weights(operator: Any) -> None:
    """Give all weights small random values: memory that was never written to is read faster than it should be."""
    for weights in operator.split_embedding_weights():
        weights.uniform_(-0.01, 0.01)


def takes_host_buffers() -> bool:
    """Say whether this version of FBGEMM lets weights be placed in memory that the caller owns (1.8 does, 1.6 not)."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    return "preallocated_host_buffers" in inspect.signature(SplitTableBatchedEmbeddingBagsCodegen.__init__).parameters
