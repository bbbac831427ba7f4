"""FBGEMM's fused embedding operator for the shards of one device, on the CPU and on a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from shardgym.costs.fbgemm.jobs import ShardSet

#: Optimisers of tasks by FBGEMM's names.
OPTIMIZERS = {
    "exact_sgd": "EXACT_SGD",
    "rowwise_adagrad": "EXACT_ROWWISE_ADAGRAD",
    "adagrad": "EXACT_ADAGRAD",
    "adam": "ADAM",
}
#: Weights are uniform in +- this value. Values do not matter, but every page must have been written to: otherwise it is
#: the kernel's shared zero page, which stays in the cache, so that reads would be too fast.
WEIGHT_SPREAD = 0.01


def build_operator(
    shard_set: ShardSet,
    device: torch.device,
    host_buffers: Mapping[str, torch.Tensor] | None = None,
    *,
    bounds_check: bool = False,
) -> Any:
    """Build `SplitTableBatchedEmbeddingBagsCodegen` with one table per shard and sum pooling.

    Args:
        shard_set: the shards of the device.
        device: where weights live and kernels run.
        host_buffers: memory for "weights" and "momentum1" on the CPU, one-dimensional and of the exact size, for
            versions of FBGEMM that take it; FBGEMM allocates its own when it is not given.
        bounds_check: whether every forward pass looks at all ids first, as it does by FBGEMM's default.
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
    extra: dict[str, Any] = {"preallocated_host_buffers": dict(host_buffers)} if host_buffers else {}
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(shard.num_rows, shard.width, *where) for shard in shard_set.shards],
        weights_precision=precision,
        output_dtype=precision,
        optimizer=getattr(EmbOptimType, OPTIMIZERS[shard_set.optimizer]),
        learning_rate=0.01,
        eps=0.01,
        pooling_mode=PoolingMode.SUM,
        bounds_check_mode=BoundsCheckMode.WARNING if bounds_check else BoundsCheckMode.NONE,
        device=device,
        **extra,
    )


def fill_weights(operator: Any) -> None:
    """Give all weights of an operator small random values."""
    for weights in operator.split_embedding_weights():
        weights.uniform_(-WEIGHT_SPREAD, WEIGHT_SPREAD)


def takes_host_buffers() -> bool:
    """Return whether this FBGEMM takes memory of the caller for weights (1.8 does, 1.6 does not)."""
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
