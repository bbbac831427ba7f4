"""How the lookups of a row lie in a batch: anywhere, or in runs that follow each other, so that one device has them."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Ints

#: Parts of a batch, of neighbouring samples, whose distinct rows are counted.
_PARTS = 8
#: Runs that are shorter are those of samples in any order.
_SHORTEST = 1.05


def mean_run_length(indices: Ints, lengths: Ints) -> float:
    """Return the run length with which parts of a batch are expected to touch as many rows as they do.

    See `EmbeddingTable.run_length`. It is 1 for samples in any order.

    Args:
        indices: ids of a batch, shape (N,).
        lengths: bag sizes, shape (samples,).
    """
    ends = np.concatenate([[0], np.cumsum(lengths)])
    cuts = ends[np.arange(_PARTS + 1) * len(lengths) // _PARTS]
    found = sum(len(np.unique(indices[cuts[n] : cuts[n + 1]])) for n in range(_PARTS)) / _PARTS
    accesses, rows = np.unique(np.unique(indices, return_counts=True)[1], return_counts=True)

    def touched(run_length: float) -> float:
        return float(rows @ (1 - (1 - 1 / _PARTS) ** np.maximum(accesses / run_length, 1.0)))

    low, high = 1.0, float(accesses.max(initial=1))
    if touched(low) <= found:
        return 1.0
    while high - low > 1e-3 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if touched(middle) > found else (low, middle)
    return round(low, 2) if low >= _SHORTEST else 1.0
