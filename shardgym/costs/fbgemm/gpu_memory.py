"""What measuring takes of a GPU's memory, and how to tell that there was not enough."""

from __future__ import annotations

import torch

from shardgym.costs.fbgemm.backend import dtype_of
from shardgym.costs.fbgemm.content import Content

_OUTPUT_COPIES = 4
#: What the backward pass holds at once to sort the ids of a batch, in copies of them (8 bytes each): row numbers over
#: all tables, unsorted and sorted (2), the bag of each, likewise (2 halves), rows without duplicates (1), how often
#: each of those occurs and where its ids end (2 halves). Counted in transpose_embedding_input.cu of FBGEMM 1.6.
_SORT_COPIES = 5


def gpu_bytes(content: Content, batches: int) -> int:
    """Return the bytes of weights, optimiser state, pooled values, ids drawn and merged, and of sorting one batch."""
    item = dtype_of(content).itemsize
    output = content.batch_size * content.width * item
    state = content.num_weights * item + content.num_states * 4
    return state + _OUTPUT_COPIES * output + content.request_bytes(2 * batches + _SORT_COPIES)


def ran_out(error: RuntimeError) -> bool:
    """Say whether the GPU's memory ran out: torch's allocator has a type for that, CUDA and FBGEMM's kernels do not."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()
