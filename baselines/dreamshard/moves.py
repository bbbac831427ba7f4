"""Moves and swaps of pieces that relieve the slowest device, by what DreamShard's cost network predicts of devices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.dreamshard.pieces import Pieces
from shardgym.arrays import Floats, Ints

#: Changes that the cost network prices in every step: those that balance best if times of pieces added up.
PRICED = 8


class Placement(NamedTuple):
    """Where pieces of tables are.

    Attributes:
        numbers: of the pieces, as `Pieces` numbers them.
        devices: that hold them.
        predicted_ms: of the slowest device; infinite where nobody asked.
    """

    numbers: Sequence[int]
    devices: Sequence[int]
    predicted_ms: float = math.inf


class Change(NamedTuple):
    """A piece goes from the slowest device to another one, from which another piece may come back.

    Attributes:
        given: position of the piece that goes.
        taken: position of what comes back, one of the D last positions for nothing.
        device_ms: predicted of all devices afterwards, shape (D,).
    """

    given: int
    taken: int
    device_ms: Floats


class Devices:
    """The devices of a placement, between changes.

    Behind the n pieces come D empty ones that stay where they are, one on every device: a move is a swap with one.

    Args:
        pieces: of the task.
        placement: where they are.

    Attributes:
        devices: of all pieces, then of the empty ones, shape (n + D,).
        device_ms: predicted, shape (D,).
    """

    def __init__(self, pieces: Pieces, placement: Placement) -> None:
        memory = pieces.task.capacity_bytes
        numbers = list(placement.numbers)
        empty = [0] * len(memory)
        self._network = pieces.network
        self._num_pieces = len(numbers)
        self._ms = np.array([pieces.ms[number] for number in numbers] + empty)
        self._bytes: Ints = np.array([pieces.bytes[number] for number in numbers] + empty, dtype=np.int64)
        self._added = np.pad(pieces.loads[numbers], ((0, len(memory)), (0, 0)))
        self._loads = pieces.device_loads(numbers, placement.devices)
        self.devices: Ints = np.array([*placement.devices, *range(len(memory))], dtype=np.int64)
        self._room: Ints = np.array(memory, dtype=np.int64)
        np.subtract.at(self._room, self.devices, self._bytes)
        self.device_ms = self._network.device_ms(self._loads)

    def best_change(self) -> Change | None:
        """Return the change that leads to the lowest predicted cost; None where none lowers it."""
        slowest = int(self.device_ms.argmax())
        given = np.flatnonzero(self.devices[: self._num_pieces] == slowest)
        taken = np.flatnonzero(self.devices != slowest)
        targets = self.devices[taken]
        relief = self._ms[given, None] - self._ms[taken]
        growth = self._bytes[given, None] - self._bytes[taken]
        possible = (relief > 0) & (growth <= self._room[targets]) & (-growth <= self._room[slowest])
        estimates = np.maximum(self.device_ms[slowest] - relief, self.device_ms[targets] + relief)
        estimates[~possible] = np.inf
        ranked = estimates.ravel()
        best = np.flatnonzero(ranked < np.inf)
        if best.size > PRICED:
            best = best[ranked[best] <= np.partition(ranked[best], PRICED)[PRICED]]
            best = best[ranked[best].argsort(kind="stable")[:PRICED]]
        if not best.size:
            return None
        given = given[best // len(taken)]
        taken = taken[best % len(taken)]
        targets = self.devices[taken]
        moved = self._added[given] - self._added[taken]
        loads = np.concatenate([self._loads[slowest] - moved, self._loads[targets] + moved])
        after = np.repeat(self.device_ms[None], len(best), axis=0)
        of_slowest, of_targets = self._network.device_ms(loads).reshape(2, -1)
        after[:, slowest] = of_slowest
        after[np.arange(len(best)), targets] = of_targets
        costs = after.max(axis=1)
        lowest = int(costs.argmin())
        if costs[lowest] >= self.device_ms[slowest]:
            return None
        return Change(int(given[lowest]), int(taken[lowest]), after[lowest])

    def make(self, change: Change) -> None:
        """Change the placement."""
        source, target = self.devices[[change.given, change.taken]].tolist()
        moved = self._added[change.given] - self._added[change.taken]
        self._loads[source] -= moved
        self._loads[target] += moved
        growth = self._bytes[change.given] - self._bytes[change.taken]
        self._room[source] += growth
        self._room[target] -= growth
        self.devices[change.given] = target
        if change.taken < self._num_pieces:
            self.devices[change.taken] = source
        self.device_ms = change.device_ms


def relieved(pieces: Pieces, placement: Placement, most: int) -> Placement:
    """Return a placement after changes, each of which lowers the predicted cost.

    Args:
        pieces: of the task.
        placement: to begin with.
        most: changes.
    """
    devices = Devices(pieces, placement)
    for _ in range(most):
        change = devices.best_change()
        if change is None:
            break
        devices.make(change)
    return Placement(
        placement.numbers, devices.devices[: len(placement.numbers)].tolist(), float(devices.device_ms.max())
    )
