"""Columns of tables whose rows may be in host memory: ways to split their rows, and filling device memory.

Searches choose columns and devices as usual. This module then chooses the rows in each device's memory, those that
save the most time per byte, and prices the result.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from neuroshard.jit import jit
from neuroshard.plus.moves import BACK_TABLE, BACK_UNITS, GIVER, NONE, TABLE, TAKER, UNITS
from neuroshard.plus.pricing import Pricing
from neuroshard.row_splits import Split, added_ms, keys_on_one_device
from neuroshard.shard_table import ShardTable
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.ties import BITS, rounded
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask


class TieredShards(ShardTable):
    """Shards of 0, 1, 2, ... units of columns, each with several ways to split its rows.

    The ways of a row are in the order of its table's, starting with the least device memory.
    """

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, splits: Sequence[Sequence[Split]]) -> None:
        super().__init__(task)
        self.splits = splits  #: of each table, see `splits_of`
        counts = np.array([len(of_table) for of_table in splits])
        self.ways: Ints = np.where(self.columns > 0, counts[self.tables], 1)  #: number of them of each row, shape (R,)
        self.first_way: Ints = np.cumsum(self.ways) - self.ways  #: number of each row's first way, shape (R,)
        #: What each way takes in the memory of the device, and of the host, shape (W,).
        self.way_bytes, self.way_host_bytes = self._sizes()
        self.bytes = self.way_bytes[self.first_way]
        self.way_vectors: Floats = self._vectors(costs)  #: that ways add to the sums of a device, shape (W, V)
        ms = np.zeros(len(self.way_bytes))
        of_rows = np.repeat(self.columns > 0, self.ways)
        ms[of_rows] = added_ms(task, costs, self.way_vectors[of_rows])
        more = np.maximum(np.diff(self.way_bytes, append=0), 1)
        #: Time that the next way of the same row saves per byte of the device, in ms, 0 for the last one, shape (W,).
        self.gain: Floats = np.maximum(-np.diff(ms, append=0), 0.0) / more
        self.gain[self.first_way + self.ways - 1] = 0.0

    def shards_of_way(self, way: int, first_column: int, device: int) -> list[Shard]:
        """Return the shards of a way."""
        row = int(self.first_way.searchsorted(way, side="right")) - 1
        split = self.splits[self.tables[row]][way - int(self.first_way[row])]
        columns = (first_column, first_column + int(self.columns[row]))
        return [shard.with_columns(*columns).on(device) for shard in split.shards]

    def _sizes(self) -> tuple[Ints, Ints]:
        """Return the bytes of all ways on the device and its host, per shard and per column."""
        sizes: Ints = np.zeros((2, int(self.ways.sum())), dtype=np.int64)
        for table, of_table in enumerate(self.splits):
            of_unit, of_two = (
                np.array([self._split_bytes(split, units * COLUMN_UNIT) for split in of_table]) for units in (1, 2)
            )
            rows = np.arange(self.first[table] + 1, self.whole[table] + 1)
            units = rows - self.first[table]
            entries = self.first_way[rows][:, None] + np.arange(len(of_table))
            sizes[:, entries] = (of_unit + (units[:, None, None] - 1) * (of_two - of_unit)).transpose(2, 0, 1)
        return sizes[0], sizes[1]

    def _split_bytes(self, split: Split, columns: int) -> tuple[int, int]:
        shards = [dataclasses.replace(shard, columns=(0, columns)) for shard in split.shards]
        task = self.task
        return sum(shard.bytes(task) for shard in shards), sum(shard.host_bytes(task) for shard in shards)

    def _vectors(self, costs: AdditiveCosts) -> Floats:
        """Return the vectors of all ways, described together; zeros for empty rows."""
        templates = [[keys_on_one_device(self.task, split.shards) for split in of_table] for of_table in self.splits]
        keys = []
        ways = []
        for row in np.flatnonzero(self.columns).tolist():
            columns = int(self.columns[row])
            for number, of_split in enumerate(templates[self.tables[row]]):
                keys += [key._replace(columns=columns) for key in of_split]
                ways += [int(self.first_way[row]) + number] * len(of_split)
        known = costs.vectors(costs.encode_keys(self.task, keys))
        vectors: Floats = np.zeros((len(self.way_bytes), known.shape[1]))
        np.add.at(vectors, ways, known)
        return vectors


@jit
def fill_device(
    rows: Ints, room: int, first_way: Ints, way_bytes: Ints, gain: Floats, chosen: Ints, full: Ints
) -> None:  # fmt: skip
    """Choose a way for each row on a device, spending memory where it saves the most time per byte.

    `first_way`, `way_bytes` and `gain` are those of `TieredShards`. The ways overwrite `chosen`; `full` is scratch.
    """
    for n in range(len(rows)):
        chosen[n] = first_way[rows[n]]
        room -= way_bytes[chosen[n]]
        full[n] = 0
    while True:
        best = -1
        most = 0.0
        for n in range(len(rows)):
            if full[n] == 0 and gain[chosen[n]] > most:
                best = n
                most = gain[chosen[n]]
        if best < 0:
            return
        more = way_bytes[chosen[best] + 1] - way_bytes[chosen[best]]
        if more > room:
            full[best] = 1
        else:
            room -= more
            chosen[best] += 1


@jit
def fill_devices(
    units: Ints, memory: Ints, first: Ints, first_way: Ints, way_bytes: Ints, gain: Floats
) -> Ints:  # fmt: skip
    """Return the way of each table on each device by `fill_device`, -1 for tables that it lacks, (D, T) to (D, T)."""
    found = np.full(units.shape, -1, dtype=np.int64)
    chosen = np.empty(units.shape[1], dtype=np.int64)
    full = np.empty(units.shape[1], dtype=np.int64)
    for device in range(len(units)):
        tables = np.flatnonzero(units[device])
        fill_device(
            first[tables] + units[device, tables], memory[device], first_way, way_bytes, gain, chosen, full
        )  # fmt: skip
        for n in range(len(tables)):
            found[device, tables[n]] = chosen[n]
    return found


@jit
def sums_of_moves(
    moves: Ints, units: Ints, shared: Floats, memory: Ints, first: Ints, first_way: Ints, way_bytes: Ints,
    gain: Floats, vectors: Floats,
) -> Floats:  # fmt: skip
    """Return the sums of giver and taker after each move, with their memory filled anew, (M, 6) to (M, 2, V).

    Arguments are as in `fill_devices`, plus the sums of shared tables, (D, V), and vectors of ways, (W, V).
    """
    sums = np.empty((len(moves), 2, vectors.shape[1]))
    chosen = np.empty(units.shape[1], dtype=np.int64)
    full = np.empty(units.shape[1], dtype=np.int64)
    for n in range(len(moves)):
        for side in (GIVER, TAKER):
            device = moves[n, side]
            after = units[device].copy()
            sign = -1 if side == GIVER else 1
            after[moves[n, TABLE]] += sign * moves[n, UNITS]
            if moves[n, BACK_TABLE] != NONE:
                after[moves[n, BACK_TABLE]] -= sign * moves[n, BACK_UNITS]
            tables = np.flatnonzero(after)
            fill_device(first[tables] + after[tables], memory[device], first_way, way_bytes, gain, chosen, full)
            sums[n, side] = shared[device]
            for k in range(len(tables)):
                sums[n, side] += vectors[chosen[k]]
    return sums


class TieredPricing(Pricing):
    """Pricing by an additive cost model of columns whose rows are split as in `TieredShards`.

    Device memory has a price, `byte_ms`: the saving of the last byte if all tables shared the memory of all devices.
    Rows are described in their best way at this price, so that searches see first-order times however full a device is.
    Sums of devices are those after their memory was filled. If `alike`, all shards of a table are split in the same
    way, because TorchRec has one kernel per table.
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
        """Return the way of each table on each device, -1 for tables that it lacks, (D, T) to (D, T)."""
        shards = self.shards
        found = fill_devices(units, self.memory, shards.first, shards.first_way, shards.way_bytes, shards.gain)
        if self._alike:
            first = shards.first_way[shards.first + units]
            least = np.where(units > 0, found - first, len(shards.gain)).min(axis=0)
            found = np.where(units > 0, first + least, -1)
        return found

    def vectors_of(self, units: Ints, devices: Ints, tables: Ints) -> Floats:
        """See `Pricing`."""
        return self.shards.way_vectors[self.ways(units)[devices, tables]]

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
        """See `Pricing`; assigns columns from the left by device number."""
        next_column = [0] * self.shards.task.num_tables
        placed: list[Shard] = []
        for device, ways in enumerate(self.ways(units)):
            for table in np.flatnonzero(ways >= 0).tolist():
                placed += self.shards.shards_of_way(int(ways[table]), next_column[table], device)
                next_column[table] = placed[-1].columns[1]
        return ShardingPlan.of(self.shards.task, [*placed, *self.shared_shards()])


def _price_of_memory(shards: TieredShards) -> float:
    """Return the saving in ms of the last byte if whole tables share the memory of all devices; 0 if all fits."""
    room = shards.task.total_capacity_bytes - int(shards.bytes[shards.whole].sum())
    firsts = shards.first_way[shards.whole]
    lasts = firsts + shards.ways[shards.whole] - 1
    ways = np.concatenate([np.arange(*ends) for ends in zip(firsts.tolist(), lasts.tolist(), strict=True)])
    ways = ways[(-shards.gain[ways]).argsort(kind="stable")]
    used = np.cumsum(shards.way_bytes[ways + 1] - shards.way_bytes[ways])
    beyond = ways[used > room]
    return float(rounded(shards.gain[beyond[0]], BITS)) if len(beyond) else 0.0
