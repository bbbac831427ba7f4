"""Who sends how much to whom in the all-to-all of pooled embeddings.

Forward, device d holds pooled values of the whole batch for its shards and owes every peer p the rows of p's samples:
samples[p] x widths[d] elements. Backward, the gradients go the same way in reverse. Sum pooling lets row shards send
partial sums, so a row shard counts with its full width on each device that holds one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


def pooled_widths(task: ShardingTask, plan: ShardingPlan) -> Ints:
    """Return the columns of each device's pooled output: the summed widths of its shards, shape (D,)."""
    return np.array([sum(s.num_columns for s in plan.on(d)) for d in range(task.num_devices)], dtype=np.int64)


def samples_per_device(batch_size: int, num_devices: int) -> Ints:
    """Split a global batch evenly; the first devices take one sample more when it does not divide, shape (D,)."""
    share, rest = divmod(batch_size, num_devices)
    return np.array([share + (d < rest) for d in range(num_devices)], dtype=np.int64)


def start_offsets(busy_ms: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how much later than the first each device is ready for the forward exchange, in ms, shape (D,).

    Args:
        busy_ms: what each device does between two forward exchanges besides them: forward and backward compute and
            backward communication, shape (D,). The devices left the last forward exchange together, so
            the one with most of it comes last (NeuroShard, `simulator.py`).
    """
    return np.asarray(busy_ms - busy_ms.min(), dtype=np.float64)
