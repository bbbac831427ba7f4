"""Pricing where rows may be in the memory of hosts: devices fill their own with what saves the most time."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.pricing import Pricing
from neuroshard.plus.tiers import TieredShards, fill_devices, sums_of_moves
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.ties import BITS, rounded
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard


class TieredPricing(Pricing):
    """Pricing by an additive cost model of columns whose rows are split as `TieredShards` says.

    Memory of a device has a price, `byte_ms`: what the last byte saves if all tables share the memory of all devices.
    Rows are described as they are best split at this price, so that searches see what a device takes to first order,
    however full it is; sums of devices are those after their memory was filled.

    Args:
        shards: of the task.
        costs: of the cost model.
        alike: whether all shards of a table are split in the same way, as TorchRec has one kernel for each table.

    Raises:
        InputError: `costs` knows no tasks of this kind.
    """

    shards: TieredShards

    def __init__(self, shards: TieredShards, costs: AdditiveCosts, *, alike: bool) -> None:
        self._alike = alike
        price = _price_of_memory(shards)
        typical = shards.first_way.copy()
        for _ in range(int(shards.ways.max()) - 1):
            typical = np.where(shards.gain[typical] > price, typical + 1, typical)
        super().__init__(shards, costs, shards.way_vectors[typical])
        self.byte_ms = price
        self.row_bytes = shards.way_bytes[typical]
        topology = shards.task.topology
        self._hosts: Ints = np.arange(topology.num_devices) // topology.devices_per_host

    def ways(self, units: Ints) -> Ints:
        """Return the way of each table on each device, -1 where there is none of it, (D, T) to (D, T)."""
        shards = self.shards
        found = fill_devices(units, self.memory, shards.first, shards.first_way, shards.way_bytes, shards.gain)
        if self._alike:
            first = shards.first_way[shards.first + units]
            least = np.where(units > 0, found - first, len(shards.gain)).min(axis=0)
            found = np.where(units > 0, first + least, -1)
        return found

    def sums(self, units: Ints) -> Floats:
        """See `Pricing`."""
        sums = self.shared.sums.copy()
        ways = self.ways(units)
        devices, tables = np.nonzero(units)
        if len(devices):
            busy = np.flatnonzero(np.diff(devices, prepend=-1))
            sums[devices[busy]] += np.add.reduceat(self.shards.way_vectors[ways[devices, tables]], busy, axis=0)
        return sums

    def sums_after(self, units: Ints, sums: Floats, moves: Ints) -> Floats:
        """See `Pricing`; shards of tables that also lie on other devices keep their ways there."""
        del sums
        shards = self.shards
        return sums_of_moves(
            moves, units, self.shared.sums, self.memory, shards.first, shards.first_way, shards.way_bytes, shards.gain,
            shards.way_vectors,
        )  # fmt: skip

    def has_room(self, units: Ints) -> bool:
        """See `Pricing`."""
        ways = self.ways(units)
        topology = self.shards.task.topology
        of_hosts = np.where(ways >= 0, self.shards.way_host_bytes[ways], 0).sum(axis=1)
        for place in self.shared.places.values():
            of_hosts[place.devices] += place.form.host_bytes
        on_hosts = np.zeros(topology.num_hosts, dtype=np.int64)
        np.add.at(on_hosts, self._hosts, of_hosts)
        return bool((on_hosts <= topology.host_memory_bytes).all())

    def plan(self, units: Ints) -> ShardingPlan:
        """See `Pricing`; columns are handed out from the left, to the lowest device first."""
        next_column = [0] * self.shards.task.num_tables
        placed: list[Shard] = []
        for device, ways in enumerate(self.ways(units)):
            for table in np.flatnonzero(ways >= 0).tolist():
                placed += self.shards.shards_of_way(int(ways[table]), next_column[table], device)
                next_column[table] = placed[-1].columns[1]
        return ShardingPlan.of(self.shards.task, [*placed, *self.shared_shards()])


def _price_of_memory(shards: TieredShards) -> float:
    """Return what the last byte of memory saves where whole tables share that of all devices, in ms; 0 if all fits."""
    room = shards.task.total_capacity_bytes - int(shards.bytes[shards.whole].sum())
    firsts = shards.first_way[shards.whole]
    lasts = firsts + shards.ways[shards.whole] - 1
    ways = np.concatenate([np.arange(*ends) for ends in zip(firsts.tolist(), lasts.tolist(), strict=True)])
    ways = ways[(-shards.gain[ways]).argsort(kind="stable")]
    used = np.cumsum(shards.way_bytes[ways + 1] - shards.way_bytes[ways])
    beyond = ways[used > room]
    return float(rounded(shards.gain[beyond[0]], BITS)) if len(beyond) else 0.0
