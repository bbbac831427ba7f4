"""The exchange of ids before the forward pass: what every device gets from all others, and how long that takes.

Each device holds the ids of its samples, and each shard needs those of all samples. TorchRec's `KJTAllToAll`
(torchrec/distributed/dist_data.py) sends them in three collectives: how much will come, the lengths of bags, the ids.
Every piece of a table that is cut by columns gets all of its ids. Of one that is cut by rows, each id goes to one piece
and the lengths go to all.

A device takes as long as its busier link takes to receive. What it sends are the ids of its own samples, about as
much as all others do, so sending holds up no device that has its share of the ids. Times follow from sums over shards.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.gpu.exchange import ramp_ms
from shardgym.costs.gpu.kernels import ID_BYTES, ShardSizes
from shardgym.topology import Topology

#: Splits, lengths and ids.
_COLLECTIVES = 3


class IdWork(IntEnum):
    """What a shard adds to the sum over its device, by column; the start-up times are the same for every shard."""

    LENGTHS = 0  #: bytes from each peer
    IDS = 1  #: likewise
    FAST = 2  #: ms on links inside of the domain
    SLOW = 3  #: ms on links to other domains
    FAST_START = 4  #: ms of a collective on these links, 0 where a device has none
    SLOW_START = 5


def id_work(topology: Topology, sizes: ShardSizes) -> Floats:
    """Return what shards add to the sums of `id_exchange_ms`, shape (n, len(IdWork)).

    Args:
        topology: devices and links, as `exchange_topology` returns them.
        sizes: of the shards.
    """
    devices = topology.num_devices
    domain = topology.fast_domain_size
    work = np.zeros((len(sizes.bags), len(IdWork)))
    work[:, IdWork.LENGTHS] = sizes.bags * ID_BYTES / devices
    work[:, IdWork.IDS] = sizes.ids * ID_BYTES / devices
    from_peer = work[:, IdWork.LENGTHS] + work[:, IdWork.IDS]
    if domain > 1:
        work[:, IdWork.FAST] = (domain - 1) * from_peer / topology.intra_bandwidth * 1e3
        work[:, IdWork.FAST_START] = topology.intra_latency_ms
    if devices > domain:
        work[:, IdWork.SLOW] = (devices - domain) * from_peer / topology.inter_bandwidth * 1e3
        work[:, IdWork.SLOW_START] = topology.inter_latency_ms
    return work


def id_exchange_ms(sums: Floats, counts: Floats) -> Floats:
    """Return the exchange of ids of devices in ms, shape (...).

    Args:
        sums: of what `id_work` says of the shards of each device, shape (..., len(IdWork)).
        counts: shards of each device, at least 1, shape (...).
    """
    fast = sums[..., IdWork.FAST] + _COLLECTIVES * sums[..., IdWork.FAST_START] / counts
    slow = sums[..., IdWork.SLOW] + _COLLECTIVES * sums[..., IdWork.SLOW_START] / counts
    ramps = ramp_ms(sums[..., IdWork.LENGTHS]) + ramp_ms(sums[..., IdWork.IDS])
    return np.asarray(np.where(np.maximum(fast, slow) > 0, np.maximum(fast, slow) + ramps, 0.0), dtype=np.float64)
