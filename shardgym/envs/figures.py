"""What renderings show of an episode: times and loads of its devices, and how far it is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.plan_cost import COMPUTE_COLUMNS
from shardgym.envs.game import Game
from shardgym.errors import MeasurementError


class DeviceFigures(NamedTuple):
    """Times and loads of the devices of one episode.

    Attributes:
        times_ms: compute and communication, forward and backward, shape (D, 2); None where the cost model has no times.
        loads: bytes, columns, columns times pooling factor and number of shards, shape (D, 4).
        capacity: bytes of memory, shape (D,).
        slowest: the device that sets the cost, in a tie the one that computes longest; None if nothing is placed
            or there are no times.
    """

    times_ms: Floats | None
    loads: Floats
    capacity: Floats
    slowest: int | None

    @property
    def slowest_ms(self) -> float:
        """The slowest device's time; 0 where there are no times."""
        return 0.0 if self.times_ms is None else float(self.times_ms.sum(axis=1).max())


class Shown(NamedTuple):
    """What is shown of an episode.

    Attributes:
        devices: times and loads.
        noun: what is placed, "tables" or "shards".
        done: how many of them are placed.
        total: how many there are.
        next: what comes up, in words; "" if nothing does.
    """

    devices: DeviceFigures
    noun: str
    done: int
    total: int
    next: str


def shown(game: Game, row: int) -> Shown:
    """Return what is shown of an episode; times are those of the complete plan, or of what is placed so far."""
    p = game.placements
    num_devices = game.catalog.tasks[p.task[row]].num_devices
    cost = game.cost_of[row]
    try:
        phases = game.scorer.partial_per_device(row) if cost is None else cost.per_device
    except MeasurementError:
        phases = None
    loads, capacity = p.loads[row, :num_devices], p.capacity[row, :num_devices]
    devices = _figures(phases, loads, capacity, started=bool(p.placed[row]))
    noun = "shards" if game.rules.limits and game.rules.limits.max_splits else "tables"
    coming = ""
    if p.placed[row] < p.count[row]:
        shard = {name: game.catalog.shard[name][p.next[row]] for name in ("name", "rows", "width", "bytes")}
        coming = f"'{shard['name']}', {shard['rows']} x {shard['width']}, {shard['bytes'] / 2**20:.1f} MiB"
        if p.kinds is not None and game.catalog.kind["holders"][p.next[row]] > 1:
            coming += f" on each of {game.catalog.kind['holders'][p.next[row]]} devices"
    return Shown(devices, noun, int(p.placed[row]), int(p.count[row]), coming)


def _figures(phases: Floats | None, loads: Floats, capacity: Floats, *, started: bool) -> DeviceFigures:
    """Return figures of devices by what each phase takes them, shape (D, 5), None where there are no times."""
    if phases is None or not np.isfinite(phases).all():
        return DeviceFigures(None, loads, capacity, None)
    total = phases.sum(axis=1)
    compute = phases[:, COMPUTE_COLUMNS].sum(axis=1)
    # Waiting counts as communication, so devices often tie but for rounding.
    slowest = int(np.where(np.isclose(total, total.max(), rtol=1e-9), compute, -1.0).argmax())
    times = np.stack([compute, total - compute], axis=1)
    return DeviceFigures(times, loads, capacity, slowest if started else None)
