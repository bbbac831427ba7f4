"""The rules of shards with several holders: valid cuts by rows and replicas, and where they fit."""

from typing import Protocol

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.shard_catalog import NOTHING, ShardCatalog, SplitLimits

#: Actions that cut or replicate the next shard; they follow those of devices.
HALVE, CUT_ROWS, REPLICATE = range(3)


def num_cuts(limits: SplitLimits | None) -> int:
    """Return the number of actions that cut or replicate."""
    if limits is None:
        return 0
    return REPLICATE + 1 if limits.every_kind else HALVE + 1


class State(Protocol):
    """The attributes of `Placements` that the rules need."""

    catalog: ShardCatalog
    task: Ints
    shards: Ints
    devices: Ints
    next: Ints
    capacity: Floats
    loads: Floats
    allowed: Bools

    @property
    def count(self) -> Ints:
        """See `Placements`."""


class KindRules:
    """Rules of shards with several holders, for N placements at once. Methods take `rows`, numbers of episodes.

    All shards of a table have equally many holders, as in TorchRec. The first one that is cut by rows, or placed with
    one holder, decides their number. Holders are a run of consecutive devices: one fast domain, or all devices. Each
    shard of a table that is cut by rows has a run of its own.

    Args:
        placements: the state of the episodes, which includes these rules.
    """

    def __init__(self, placements: State) -> None:
        self._placements = placements
        self._rows = np.arange(len(placements.task))
        #: By table, in the order of `task.tables`, with one more for `NOTHING`: the number of shards, and the holders
        #: of each, 0 as long as that is open; shape (N, T + 1).
        self._pieces, self._decided = np.zeros((2, len(self._rows), 1), dtype=np.int64)

    def start(self, rows: Ints) -> None:
        """Start episodes with whole tables whose holders are undecided."""
        self._make_room()
        self._pieces[rows] = 1
        self._decided[rows] = 0

    def halve(self, rows: Ints, positions: Ints) -> None:
        """Count one more shard of the tables at these positions, shape (n,)."""
        self._pieces[rows, positions] += 1

    def place(self, rows: Ints, devices: Ints) -> None:
        """Load the holders of the next shards, given the first holder of each, shape (n,)."""
        p = self._placements
        shards = p.next[rows]
        holders = p.catalog.kind["holders"][shards]
        self._decided[rows, p.catalog.shard["position"][shards]] = holders
        on_device = p.catalog.kind["on_device"]
        one = holders == 1
        p.loads[rows[one], devices[one]] += on_device[shards[one]]
        several = np.flatnonzero(~one)
        if len(several):
            p.loads[rows[several]] += on_device[self.parts(shards[several], devices[several])]

    def become(self, rows: Ints) -> None:
        """Decide the holders of tables whose next shard was just cut by rows."""
        p = self._placements
        shards = p.next[rows]
        self._decided[rows, p.catalog.shard["position"][shards]] = p.catalog.kind["holders"][shards]

    def copy(self, row: int, rows: Ints) -> None:
        """Make other episodes copies of one."""
        self._pieces[rows] = self._pieces[row]
        self._decided[rows] = self._decided[row]

    def parts(self, shards: Ints, first: Ints) -> Ints:
        """Return the catalog numbers of each device's parts of shards, or `NOTHING` for other devices, shape (n, D).

        `shards` are catalog numbers, and `first` the first holders, (n,).
        """
        kind = self._placements.catalog.kind
        holders = kind["holders"][shards][:, None]
        place = np.arange(self._placements.capacity.shape[1]) - first[:, None]
        own = self.part(shards[:, None], place)
        return np.where((place >= 0) & (place < holders), own, NOTHING)

    def part(self, shards: Ints, places: Ints) -> Ints:
        """Return the catalog numbers of the parts of the n-th holders, for each n of `places`."""
        kind = self._placements.catalog.kind
        return np.where(
            places == kind["holders"][shards] - 1, kind["last"][shards], shards + kind["step"][shards] * places
        )

    def limit(self, room: Floats) -> None:
        """Update `Placements.allowed`, whose devices and halvings were computed for shards with one holder.

        Args:
            room: free bytes of devices, shape (N, D).
        """
        p = self._placements
        shard = p.catalog.shard
        kind = p.catalog.kind
        max_devices = room.shape[1]
        position = shard["position"][p.next]
        decided = self._decided[self._rows, position]
        pieces = self._pieces[self._rows, position]
        exists = p.capacity >= 0
        num_devices = exists.sum(axis=1)
        holders = kind["holders"][p.next]

        p.allowed[:, :max_devices] &= ((holders == 1) & (decided <= 1))[:, None]
        several = np.flatnonzero(holders > 1)
        if len(several):
            p.allowed[several, :max_devices] = self._runs(several, p.next[several], room)
        # There has to be a run for each shard.
        p.allowed[:, max_devices + HALVE] &= (decided <= 1) | (pieces < num_devices // np.maximum(decided, 1))

        cut = kind["by_rows"][p.next]
        wanted = kind["holders"][cut]
        # A table that is still one shard may be cut on; otherwise as the others of its table are.
        is_open = (decided == 0) | (pieces == 1) | (decided == wanted)
        rows = np.flatnonzero((cut != NOTHING) & is_open & (pieces <= num_devices // wanted))
        fits = np.logical_or.reduce(self._runs(rows, cut[rows], room), axis=1)
        again = kind["by_rows"][cut[rows]]
        if again.any():
            further = (pieces[rows] == 1) & (again != NOTHING)
            fits[further] |= np.logical_or.reduce(self._runs(rows[further], again[further], room), axis=1)
        p.allowed[:, max_devices + CUT_ROWS] = False
        p.allowed[rows, max_devices + CUT_ROWS] = fits

        replica = kind["replica"][p.next]
        least = np.where(exists, room, np.inf).min(axis=1)
        p.allowed[:, max_devices + REPLICATE] = (replica != NOTHING) & (least >= shard["bytes"][replica])

    def _runs(self, rows: Ints, shards: Ints, room: Floats) -> Bools:
        """Return the valid first holders of shards with several holders, (n,), (n,) and (N, D) to (n, D)."""
        p = self._placements
        kind = p.catalog.kind
        num_bytes = p.catalog.shard["bytes"]
        holders = kind["holders"][shards][:, None]
        devices = np.arange(room.shape[1])
        place = devices % holders
        needed = np.where(place == holders - 1, num_bytes[kind["last"][shards]][:, None], num_bytes[shards][:, None])
        lacking = np.zeros((len(rows), len(devices) + 1), dtype=np.int64)
        # Devices that do not exist have a room of -1 bytes.
        np.cumsum((room[rows] < needed) | self._held(rows, shards), axis=1, out=lacking[:, 1:])
        end = devices + holders
        lacking_in_run = np.take_along_axis(lacking, np.minimum(end, len(devices)), axis=1) - lacking[:, :-1]
        fits: Bools = (place == 0) & (end <= len(devices)) & (lacking_in_run == 0)
        return fits

    def _held(self, rows: Ints, shards: Ints) -> Bools:
        """Return the first holders of other shards of the same tables, shape (n, D); arguments as `_runs`."""
        p = self._placements
        position = p.catalog.shard["position"]
        held = np.zeros((len(rows), p.capacity.shape[1]), dtype=np.bool_)
        in_pieces = np.flatnonzero(self._pieces[rows, position[shards]] > 1)
        if len(in_pieces):
            queues = rows[in_pieces]
            placed = p.devices[queues] >= 0
            which, where = np.nonzero(placed & (position[p.shards[queues]] == position[shards[in_pieces]][:, None]))
            held[in_pieces[which], p.devices[queues[which], where]] = True
        return held

    def _make_room(self) -> None:
        """Widen arrays to all tables and `NOTHING`."""
        missing = self._placements.shards.shape[1] - self._pieces.shape[1]
        if missing > 0:
            self._pieces = np.pad(self._pieces, ((0, 0), (0, missing)))
            self._decided = np.pad(self._decided, ((0, 0), (0, missing)))
