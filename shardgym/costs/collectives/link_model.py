"""Link model: latency plus bytes over bandwidth, inside a fast domain and between domains apart.

Used where a machine has fewer devices than the task, and by the analytic cost. Links are full duplex and the two
kinds work at the same time, so a device needs as long as the busiest direction of its busier kind of link.
"""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.collectives.splits import pooled_widths, samples_per_device, start_offsets
from shardgym.plan import ShardingPlan
from shardgym.task import ELEMENT_BYTES, ShardingTask
from shardgym.topology import Topology


def comm_times(task: ShardingTask, plan: ShardingPlan, compute_ms: Floats) -> tuple[Floats, Floats]:
    """Return what the exchanges of pooled values and of their gradients cost each device.

    Args:
        task: the task; its topology names latencies and bandwidths.
        plan: a feasible plan for it.
        compute_ms: forward plus backward compute of each device, shape (D,).

    Returns:
        Forward and backward communication in ms, each of shape (D,). An exchange runs once all devices have
        entered it; forward, where devices are ready at different times, the wait for the last one counts as
        communication of those that wait (as in the measured protocol). Backward starts aligned.
    """
    transfer = transfer_ms(task.topology, pooled_widths(task, plan), task.batch_size, ELEMENT_BYTES[task.precision])
    return wait_ms(compute_ms + transfer) + transfer, transfer


def wait_ms(busy_ms: Floats) -> Floats:
    """Return how long each device waits in the forward exchange for the last one to enter it, in ms, shape (D,)."""
    offsets = start_offsets(busy_ms)
    return np.asarray(offsets.max() - offsets, dtype=np.float64)


def transfer_ms(topology: Topology, widths: Ints | Floats, batch_size: int, element_bytes: int) -> Floats:
    """Return what one all-to-all with aligned start takes on each device, in ms, shape (..., D).

    Forward and backward take the same time, as the backward exchange swaps what is sent and what is received.

    Args:
        topology: devices and links.
        widths: columns of each device's pooled output, of one plan or of many, shape (..., D).
        batch_size: samples over all devices.
        element_bytes: bytes of one value.
    """
    devices = topology.num_devices
    if devices == 1:
        return np.zeros(widths.shape)
    domains = np.arange(devices) // topology.fast_domain_size
    samples = samples_per_device(batch_size, devices)
    domain_widths = np.add.reduceat(widths, np.flatnonzero(np.diff(domains, prepend=-1)), axis=-1)[..., domains]
    domain_samples = np.bincount(domains, weights=samples)[domains]
    intra = np.maximum(widths * (domain_samples - samples), samples * (domain_widths - widths))
    elsewhere = widths.sum(axis=-1, keepdims=True) - domain_widths
    inter = np.maximum(widths * (batch_size - domain_samples), samples * elsewhere)
    intra_ms = topology.intra_latency_ms + intra * element_bytes / topology.intra_bandwidth * 1e3
    inter_ms = topology.inter_latency_ms + inter * element_bytes / topology.inter_bandwidth * 1e3
    alone = np.bincount(domains)[domains] == 1
    between = topology.fast_domain_size < devices
    return np.maximum(np.where(alone, 0.0, intra_ms), inter_ms if between else 0.0)
