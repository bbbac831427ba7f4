"""What a complete step takes on the CPU besides the kernels: packing and grouping ids, joining and packing values."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.link_model import StepWork
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, IDS, REPLICAS, ROW_COLUMNS, SHARDS, samples_per_device
from shardgym.task import ELEMENT_BYTES, ShardingTask

#: What the other parts of a step are lines in: 1, ids that a device handles, values of pooled rows in bytes, and bags.
AMOUNTS = ("constant", "ids", "bytes", "bags")
#: Which of them each part depends on, see `shardgym.costs.fbgemm.step.PARTS`; the constant always.
LINES = {
    "pack_ids": ("ids", "bags"),
    "count_ids": ("bags",),
    "group_ids": ("ids", "bags"),
    "join_outputs": ("bytes",),
    "pack_gradients": ("bytes",),
}
#: Parts in which a device handles its own samples, of the shards of all devices; in the others it handles all samples,
#: of its own shards.
OF_OWN_SAMPLES = (0, 3, 4)
OF_OWN_SHARDS = (1, 2)


def step_work(lines: Floats, task: ShardingTask, compute_ms: Floats, loads: Floats) -> StepWork:
    """Return what devices work in a step.

    Args:
        lines: ms per amount, by `LINES` and `AMOUNTS`, shape (5, 4).
        task: batch and precision.
        compute_ms: forward and backward of every device of placements, shape (..., D, 2).
        loads: of every device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).
    """
    handled = loads[..., IDS:].copy()
    sums = loads[..., [ROW_COLUMNS, DOMAIN_ROW_COLUMNS]]
    handled[..., COLUMNS - IDS] += sums.sum(axis=-1)
    handled[..., SHARDS - IDS] -= loads[..., REPLICAS]  # no bags of theirs are exchanged
    constant = lines[:, 0]
    per_load = lines[:, 1:] * (task.batch_size * np.array([1, ELEMENT_BYTES[task.precision], 1]))
    share = samples_per_device(task.batch_size, task.num_devices)[:, None] / task.batch_size
    own_samples = list(OF_OWN_SAMPLES)
    own_shards = list(OF_OWN_SHARDS)
    everything = handled.sum(axis=-2) @ per_load[own_samples].T
    sent = constant[own_samples] + share * everything[..., None, :]
    # Partial sums of all devices are added up; or of a domain's, in which a device then has those of its columns.
    added = sums.sum(axis=-2) @ np.array([task.num_devices - 1, task.topology.fast_domain_size])
    sent[..., 1] += share[:, 0] * (added[..., None] * per_load[OF_OWN_SAMPLES[1], COLUMNS - IDS])
    # One product for all placements: one for each takes several times as long.
    own = handled.reshape(-1, handled.shape[-1]) @ per_load[own_shards].T
    received = constant[own_shards] + own.reshape(*handled.shape[:-1], -1)
    return StepWork(
        pack_ids=sent[..., 0],
        count_ids=received[..., 0],
        group_ids=received[..., 1],
        forward=compute_ms[..., 0],
        join_outputs=sent[..., 1],
        pack_gradients=sent[..., 2],
        backward=compute_ms[..., 1],
    )
