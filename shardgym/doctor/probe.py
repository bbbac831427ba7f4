"""Loads torch and FBGEMM, prints what it found as JSON. Run as a process: a wrong pair of versions may crash it."""

from __future__ import annotations

import json
from typing import Any

from shardgym.errors import told


def probe() -> dict[str, Any]:
    """Return what torch sees, and why FBGEMM does not load; "" when it does."""
    import torch

    return {
        "torch": torch.__version__,
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "gpus": [
            {"name": p.name, "memory_bytes": p.total_memory}
            for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
        ],
        "fbgemm_error": _fbgemm_error(),
    }


def _fbgemm_error() -> str:
    import torch

    try:
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

        assert SplitTableBatchedEmbeddingBagsCodegen is not None
        # The operators live in shared libraries that may fail to load without an exception.
        assert torch.ops.fbgemm.asynchronous_complete_cumsum(torch.tensor([1, 2])).tolist() == [0, 1, 3]
    except Exception as error:
        return told(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(probe()))
