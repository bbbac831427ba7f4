"""Loads torch and FBGEMM, prints what it found as JSON. Run as a process: a wrong pair of versions may crash it."""

from __future__ import annotations

import json
from typing import Any

from shardgym.errors import error_text


def probe() -> dict[str, Any]:
    """Return what torch sees, and why FBGEMM kernels do not run: at all, and on the first GPU; "" where they do."""
    import torch

    gpus, no_gpus = _gpus()
    problem = _fbgemm_error("cpu")
    return {
        "torch": torch.__version__,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "gpus": gpus,
        "fbgemm_error": problem,
        "cuda_error": no_gpus or ("" if problem or not gpus else _fbgemm_error("cuda")),
    }


def _gpus() -> tuple[list[dict[str, Any]], str]:
    """Return name and memory of each GPU, or none and why: torch counts GPUs that a driver is too old to use."""
    import torch

    try:
        found = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        return [{"name": p.name, "memory_bytes": p.total_memory} for p in found], ""
    except Exception as error:
        return [], error_text(error)


def _fbgemm_error(device: str) -> str:
    """Run one small operator. Operators live in libraries that may fail to load, or lack kernels, without a word."""
    import torch

    try:
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

        assert SplitTableBatchedEmbeddingBagsCodegen is not None
        lengths = torch.tensor([1, 2], device=device)
        assert torch.ops.fbgemm.asynchronous_complete_cumsum(lengths).tolist() == [0, 1, 3]
    except Exception as error:
        return error_text(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(probe()))
