"""What a complete step takes on the CPU besides the kernels: packing and grouping ids, joining and packing values."""

import functools
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.link_model import StepWork
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, IDS, REPLICAS, ROW_COLUMNS, SHARDS, samples_per_device
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

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


class _Lines(NamedTuple):
    """Lines of one kind of task, of D devices; see `LINES`."""

    sent_ms: Floats  #: of parts of a device's own samples, per load of all devices, shape (3, 3 D)
    sent_constant_ms: Floats  #: shape (3, 1)
    received_ms: Floats  #: of parts of a device's own shards, per load of it, shape (3, 2)
    received_constant_ms: Floats  #: shape (2,)
    added_ms: Floats  #: of joining outputs, per column of partial sums, of all devices and of one domain, shape (2, D)


@functools.lru_cache(maxsize=256)  # environments and searches ask about few placements at a time
def _lines_of(lines: bytes, batch_size: int, element_bytes: int, num_devices: int, domain: int) -> _Lines:
    of_parts = np.frombuffer(lines).reshape(len(LINES), len(AMOUNTS))
    per_load = of_parts[:, 1:] * (batch_size * np.array([1, element_bytes, 1]))
    share = samples_per_device(batch_size, num_devices) / batch_size
    own_samples, own_shards = list(OF_OWN_SAMPLES), list(OF_OWN_SHARDS)
    sent_ms = per_load[own_samples].T[:, :, None] * share
    # Partial sums of all devices are added up; or of a domain's, in which a device then has those of its columns.
    added_ms = np.array([[num_devices - 1.0], [domain]]) * sent_ms[COLUMNS - IDS, 1]
    return _Lines(
        sent_ms.reshape(len(sent_ms), -1), of_parts[own_samples, :1], per_load[own_shards].T, of_parts[own_shards, 0],
        added_ms,
    )  # fmt: skip


def step_work(lines: Floats, task: ShardingTask, compute_ms: Floats, loads: Floats) -> StepWork:
    """Return what devices work in a step.

    Args:
        lines: ms per amount, by `LINES` and `AMOUNTS`, shape (5, 4).
        task: batch and precision.
        compute_ms: forward and backward of every device of placements, shape (..., D, 2).
        loads: of every device, by the columns of `shardgym.costs.links`, shape (..., D, LOADS).
    """
    domain = task.topology.fast_domain_size
    prices = _lines_of(lines.tobytes(), task.batch_size, ELEMENT_BYTES[task.precision], task.num_devices, domain)
    handled = loads[..., IDS:]
    sums = loads[..., [ROW_COLUMNS, DOMAIN_ROW_COLUMNS]] if loads[..., :IDS].any() else None
    if sums is not None:
        handled = handled.copy()
        handled[..., COLUMNS - IDS] += sums.sum(axis=-1)
        handled[..., SHARDS - IDS] -= loads[..., REPLICAS]  # no bags of theirs are exchanged
    everything = np.add.reduce(handled, axis=-2)
    sent = (everything @ prices.sent_ms).reshape(*everything.shape[:-1], len(OF_OWN_SAMPLES), -1)
    sent += prices.sent_constant_ms
    if sums is not None:
        sent[..., 1, :] += sums.sum(axis=-2) @ prices.added_ms
    # One product for all placements: one for each takes several times as long.
    received = handled.reshape(-1, handled.shape[-1]) @ prices.received_ms
    received += prices.received_constant_ms
    received = received.reshape(*handled.shape[:-1], -1)
    return StepWork(
        pack_ids=sent[..., 0, :],
        count_ids=received[..., 0],
        group_ids=received[..., 1],
        forward=compute_ms[..., 0],
        join_outputs=sent[..., 1, :],
        pack_gradients=sent[..., 2, :],
        backward=compute_ms[..., 1],
    )
