"""Rows in the memory of the host: what FBGEMM's kernels take for reading, caching and updating them.

TorchRec puts tables of all these kernels into one fused operator, whose threads take one table after the other. So
their times add up to what the rows in the memory of the device take:

- `fused_uvm`: every lookup reads its row over the bus. The backward pass reads and writes every distinct row and its
  optimiser state there.
- `fused_uvm_caching`: before the forward pass, distinct rows that are not in the cache are fetched, while as many
  others are written back (`row_popularity.cache_misses`: the cache is full, as it is in training). Lookups and updates
  of weights then are those of the device's memory. Rows that the cache has no room for, as where a batch touches more
  than it holds, are read and updated as those of `fused_uvm`. Optimiser states have no cache and cross the bus both
  ways.

A bus works in both directions at once. Its bandwidth is that of one device alone; devices that share a bus or the
host's own bandwidth are not modelled, nor is a pipeline that fetches the rows of the next batch meanwhile.
`HostConstants` are fitted to published measurements by `python benchmarks/published_gpu/run.py --fit`; 45 of these 47
rows are of one source.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.gpu.cards import Card
from shardgym.costs.gpu.kernels import KERNELS, KernelConstants, ShardSizes, Work, sectors, shard_work


@dataclass(frozen=True)
class HostConstants:
    """Shares of the bandwidth of a bus in one direction, and a time; all of them are fitted."""

    read_share: float = 1.12  #: when lookups read rows
    update_share: float = 0.672  #: when rows and states are read and written
    fetch_share: float = 0.451  #: when rows are fetched into a cache, and others are written back
    backward_us: float = 144.0  #: extra fixed time of the backward pass


HOST = HostConstants()


@dataclass(frozen=True)
class HostShards:
    """Which of n shards have their rows in the memory of the host, and what of them no cache has; see `CacheMisses`."""

    in_host: Bools  #: whether rows are in the memory of the host, shape (n,)
    fetched: Floats  #: share of the distinct rows of a batch that come into a cache first, shape (n,)
    #: Share of these rows that are read and updated in the memory of the host: all without a cache, shape (n,).
    bypassed: Floats
    bypassed_lookups: Floats  #: share of the lookups that is of the latter, shape (n,)
    bus: float  #: bytes per second in one direction


def shard_work_with_host(
    card: Card, sizes: ShardSizes, shards: HostShards, kernels: KernelConstants = KERNELS, host: HostConstants = HOST
) -> Floats:
    """Return what shards add to the sums over their devices, shape (n, len(Work)); see `shard_work`."""
    # Of rows that stay where they are, the device's memory has none to read or update; of states, nothing either.
    on_device = dataclasses.replace(
        sizes,
        touched=sizes.touched * (1 - shards.bypassed[:, None]),
        state_bytes=np.where(shards.in_host, 0.0, sizes.state_bytes),
    )
    work = shard_work(card, on_device, kernels)
    distinct = sizes.touched.sum(axis=1)
    row_bytes = sectors(sizes.width_bytes)
    state_bytes = np.where(shards.in_host & (sizes.state_bytes > 0), sectors(sizes.state_bytes), 0.0)
    bus_ms = 1e3 / shards.bus
    read = sizes.ids * shards.bypassed_lookups / host.read_share + distinct * shards.fetched / host.fetch_share
    work[:, Work.HOST_FORWARD] = read * row_bytes * bus_ms
    updated = shards.bypassed * row_bytes + state_bytes
    work[:, Work.HOST_BACKWARD] = distinct * updated * bus_ms / host.update_share
    work[:, Work.HOST_SHARDS] = shards.in_host
    return work


def host_ms(sums: Floats, host: HostConstants = HOST) -> Floats:
    """Return what rows in the memory of the host add to both passes by sums of shape (..., len(Work)), (..., 2)."""
    fixed = np.where(sums[..., Work.HOST_SHARDS] > 0, host.backward_us * 1e-3, 0.0)
    return np.stack([sums[..., Work.HOST_FORWARD], sums[..., Work.HOST_BACKWARD] + fixed], axis=-1)
