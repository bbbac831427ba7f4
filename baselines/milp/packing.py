"""Packs the pieces of chosen kinds onto devices: greedily, then by moves, swaps and other cuts, of a soft maximum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baselines.milp.choices import Choice, Exchanges
from shardgym.arrays import Bools, Floats, Ints
from shardgym.incumbent import Budget
from shardgym.task import ShardingTask

#: Powers by which loads count, one after another: the higher, the more the largest decide.
_POWERS = 24, 120
#: What a device that holds more than its memory counts more, per share that is too much.
_OVERFULL = 1e4
#: Devices of the highest loads that changes start from, before packing counts as done.
_SOURCES = 4
#: Changes until the first kick, and between kicks.
_FIRST_STEPS = 4000
_STEPS = 150
#: Devices that a kick empties besides the worst ones.
_KICKED = 3


class Packing:
    """Pieces on devices. The loads of a device are what it does first, what it does at last, and memory.

    A device transfers as long as it takes to send its columns, or to receive an even share of all others.

    Args:
        task: the task.
        choices: one for each table.
        cuts: of each table, all choices that have pieces, among which packing may change.
        exchanges: of the task.

    Attributes:
        choices: as given, with other cuts where these pack better.
    """

    def __init__(
        self, task: ShardingTask, choices: Sequence[Choice], places: Sequence[Sequence[int]],
        cuts: Sequence[Sequence[Choice]], exchanges: Exchanges, fixed_ms: Floats,
    ) -> None:  # fmt: skip
        devices = task.num_devices
        size = task.topology.fast_domain_size
        several = devices > size
        self.choices = list(choices)
        self._cuts = cuts
        self._memory = np.array(task.topology.memory_bytes, dtype=np.float64)
        self._everywhere = np.arange(devices)
        self._weights = np.array([exchanges.first, exchanges.rest])
        #: Of a column, on each device.
        self._sent = exchanges.links.sent_ms.max(axis=0)
        #: What devices compute first and at last, and their columns.
        self._sums = np.zeros((devices, 3))
        self._held = np.zeros(devices)
        self._domains: dict[int, int] = {}
        for number, choice in enumerate(choices):
            if choice.spread == "pieces":
                continue
            where = slice(0, devices)
            if choice.spread == "domain":
                domain = places[number][0]
                where = slice(domain * size, (domain + 1) * size)
                if domain not in self._domains.values():
                    self._sums[where, :2] += self._weights[:, :2] @ fixed_ms
                self._domains[number] = domain
                self._sums[where, :2] += self._weights[:, 2] * exchanges.sent * choice.columns
            self._sums[where, :2] += choice.ms @ self._weights[:, :2].T
            self._held[where] += choice.bytes
        pieces = [choice for choice in choices if choice.spread == "pieces"]
        columns = sum(choice.columns * choice.pieces for choice in pieces)
        received = exchanges.links.received_ms[1 if several else 0].max()
        self._received = float(received * columns / devices * (devices - (size if several else 1)))
        even = sum((self._vector(choice) * choice.pieces for choice in pieces), start=self._sums.sum(axis=0)) / devices
        # No device has to have less than an even share, or less than the one with the largest piece.
        least = np.array([even, *(self._vector(choice) for choice in pieces)])
        self._even = np.maximum(self._times(least, np.zeros(len(least), dtype=np.int64)).max(axis=0), 1e-12)
        self._piece_even = np.maximum(even, 1e-12)
        self._power = _POWERS[0]
        self._order: list[int] = []
        self._holds: Bools = np.zeros((devices, len(choices)), dtype=np.bool_)
        self._device_of: Ints = np.zeros(0, dtype=np.int64)
        self._tables: Ints = np.zeros(0, dtype=np.int64)
        self._bytes: Floats = np.zeros(0)
        self._loads: Floats = np.zeros((0, 3))

    def places(self, number: int) -> list[int]:
        """Return devices of the pieces of a choice, or its domain."""
        if number in self._domains:
            return [self._domains[number]]
        return [int(device) for device in self._device_of[self._tables == number]]

    def pack(self, budget: Budget) -> None:
        """Place the largest pieces first where the soft maximum grows least, and improve that."""
        sizes = {
            number: float((self._vector(choice) / self._piece_even).max() + choice.bytes[0] / self._memory.mean())
            for number, choice in enumerate(self.choices)
            if choice.spread == "pieces"
        }
        self._order = sorted(sizes, key=lambda number: (-sizes[number], number))
        for number in self._order:
            self._add(number, self._best_devices(self.choices[number]))
        for self._power in _POWERS:
            self._descend(_FIRST_STEPS, budget)

    def kick(self, kicks: int, rng: np.random.Generator, budget: Budget) -> None:
        """Take all tables off the worst devices and some others, place them anew, and improve that; again and again.

        Args:
            kicks: their number.
            rng: chooses the other devices.
            budget: ends it early.
        """
        for _ in range(kicks if self._order else 0):
            if budget.left_s == 0:
                return
            kept = self._state()
            before = self._total()
            times = self._times(self._sums, self._everywhere)
            worst = [int(device) for device in times.argmax(axis=0)]
            others = rng.choice(len(self._everywhere), min(_KICKED, len(self._everywhere)), replace=False)
            kicked = np.isin(self._device_of, [*worst, *others.tolist()])
            tables = set(self._tables[kicked].tolist())
            for number in sorted(tables):
                self._remove(number)
            for number in self._order:
                if number in tables:
                    self._add(number, self._best_devices(self.choices[number]))
            self._descend(_STEPS, budget)
            if self._total() >= before:
                self._restore(kept)

    def _descend(self, steps: int, budget: Budget) -> None:
        for _ in range(steps):
            if budget.left_s == 0 or not self._improve():
                return

    def _total(self) -> float:
        return float(self._price(self._sums, self._held, self._everywhere).sum())

    def _state(self) -> tuple[list[Choice], tuple[Any, ...]]:
        arrays = self._sums, self._held, self._holds, self._device_of, self._tables, self._bytes, self._loads
        return list(self.choices), tuple(array.copy() for array in arrays)

    def _restore(self, state: tuple[list[Choice], tuple[Any, ...]]) -> None:
        self.choices, arrays = state
        self._sums, self._held, self._holds, self._device_of, self._tables, self._bytes, self._loads = arrays

    def _vector(self, choice: Choice) -> Floats:
        """Return what a piece adds to the sums of its device, shape (3,)."""
        return np.append(self._weights[:, :2] @ choice.ms[0], choice.columns)

    def _times(self, sums: Floats, devices: Ints) -> Floats:
        """Return what devices do first and at last, in ms, shape (..., 2)."""
        transfer = np.maximum(self._sent[devices] * sums[..., 2], self._received)
        return np.asarray(sums[..., :2] + transfer[..., None] * self._weights[:, 2])

    def _price(self, sums: Floats, held: Floats, devices: Ints) -> Floats:
        """Return what devices with these loads count, any shape (...) of devices, sums of shape (..., 3)."""
        memory = self._memory[devices]
        overfull = np.maximum(held - memory, 0.0) / memory
        return np.asarray((self._times(sums, devices) / self._even) ** self._power @ self._even + _OVERFULL * overfull)

    def _best_devices(self, choice: Choice) -> list[int]:
        """Return where the pieces of a table that is nowhere count least."""
        now = self._price(self._sums, self._held, self._everywhere)
        grown = self._price(self._sums + self._vector(choice), self._held + choice.bytes[0], self._everywhere) - now
        # At most one is on a device, so that each counts by itself.
        return [int(device) for device in np.argsort(grown, kind="stable")[: choice.pieces]]

    def _add(self, number: int, devices: Sequence[int]) -> None:
        choice = self.choices[number]
        count = len(devices)
        self._device_of = np.concatenate([self._device_of, np.array(devices, dtype=np.int64)])
        self._tables = np.concatenate([self._tables, np.full(count, number)])
        self._bytes = np.concatenate([self._bytes, np.full(count, float(choice.bytes[0]))])
        self._loads = np.concatenate([self._loads, np.tile(self._vector(choice), (count, 1))])
        self._sums[devices] += self._vector(choice)
        self._held[devices] += choice.bytes[0]
        self._holds[devices, number] = True

    def _remove(self, number: int) -> list[int]:
        """Take all pieces of a table off, and return where they were."""
        of_table = self._tables == number
        devices = self._device_of[of_table]
        self._sums[devices] -= self._loads[of_table]
        self._held[devices] -= self._bytes[of_table]
        self._holds[devices, number] = False
        kept = ~of_table
        self._device_of, self._tables = self._device_of[kept], self._tables[kept]
        self._bytes, self._loads = self._bytes[kept], self._loads[kept]
        return [int(device) for device in devices]

    def _put(self, piece: int, device: int) -> None:
        before = self._device_of[piece]
        self._sums[before] -= self._loads[piece]
        self._held[before] -= self._bytes[piece]
        self._holds[before, self._tables[piece]] = False
        self._sums[device] += self._loads[piece]
        self._held[device] += self._bytes[piece]
        self._holds[device, self._tables[piece]] = True
        self._device_of[piece] = device

    def _improve(self) -> bool:
        """Make the best move or swap off a device of the highest loads, or cut a table of it otherwise."""
        now = self._price(self._sums, self._held, self._everywhere)
        worst = [*np.argsort(-now, kind="stable")[:_SOURCES]]
        worst += self._times(self._sums, self._everywhere).argmax(axis=0).tolist()
        sources = list(dict.fromkeys(int(device) for device in worst))
        for source in sources:
            mine = np.flatnonzero(self._device_of == source)
            if len(mine):
                best = self._best_change(source, mine, now)
                if best is not None:
                    piece, other, target = best
                    self._put(piece, target)
                    if other >= 0:
                        self._put(other, source)
                    return True
        return any(self._cut_otherwise(source, now) for source in sources)

    def _cut_otherwise(self, source: int, now: Floats) -> bool:
        """Cut one of the tables of a device into another number of pieces, and place them, if that counts less."""
        before = float(now.sum())
        best: tuple[float, int, Choice, list[int]] | None = None
        for number in np.unique(self._tables[self._device_of == source]).tolist():
            old = self.choices[number]
            devices = self._remove(number)
            for choice in self._cuts[number]:
                if choice.pieces == old.pieces:
                    continue
                places = self._best_devices(choice)
                sums, held = self._sums.copy(), self._held.copy()
                sums[places] += self._vector(choice)
                held[places] += choice.bytes[0]
                after = float(self._price(sums, held, self._everywhere).sum())
                if after < before * (1 - 1e-9) and (best is None or after < best[0]):
                    best = after, number, choice, places
            self._add(number, devices)
        if best is None:
            return False
        _, number, choice, places = best
        self._remove(number)
        self.choices[number] = choice
        self._add(number, places)
        return True

    def _best_change(self, source: int, mine: Ints, now: Floats) -> tuple[int, int, int] | None:
        """Return the best piece to give away, piece to get or -1, and device; None when nothing helps."""
        least = -1e-9 * float(now.sum())
        without = self._sums[source] - self._loads[mine]
        held_without = self._held[source] - self._bytes[mine]
        left = self._price(without, held_without, np.full(len(mine), source))
        arrived = self._price(
            self._sums[:, None] + self._loads[mine],
            self._held[:, None] + self._bytes[mine],
            self._everywhere[:, None],
        )
        change = left - now[source] + arrived - now[:, None]
        change[self._holds[:, self._tables[mine]]] = np.inf
        target, given = np.unravel_index(int(change.argmin()), change.shape)
        best = None
        if change[target, given] < least:
            least = float(change[target, given])
            best = int(mine[given]), -1, int(target)
        others = np.flatnonzero(self._device_of != source)
        if not len(others):
            return best
        at = self._device_of[others]
        gained = self._price(
            without[:, None] + self._loads[others],
            held_without[:, None] + self._bytes[others],
            np.full((1, len(others)), source),
        )
        sums = self._sums[at] - self._loads[others] + self._loads[mine][:, None]
        held = self._held[at] - self._bytes[others] + self._bytes[mine][:, None]
        change = gained - now[source] + self._price(sums, held, at[None]) - now[at]
        change[self._holds[at][:, self._tables[mine]].T | self._holds[source, self._tables[others]]] = np.inf
        given, got = np.unravel_index(int(change.argmin()), change.shape)
        if change[given, got] < least:
            best = int(mine[given]), int(others[got]), int(at[got])
        return best
