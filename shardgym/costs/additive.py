"""Additive costs: what a device computes follows from a sum over its shards.

Each shard is described once, by a short vector. The vectors of a device are added up, and the sum is priced. So placing
one shard more takes one addition, and any number of devices, placements and tasks is priced in one call.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, GrowingArrays, Ints
from shardgym.costs.links import ExchangeTimes, exchange_times
from shardgym.errors import InputError
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask
from shardgym.ties import quantized

#: What a shard's time depends on: table, rows, columns. Where rows and columns begin does not matter.
ShardKey = tuple[str, int, int]

#: Where a candidate is that is on no device.
UNPLACED = -1


class NumberedShards(abc.ABC):
    """Tasks and their shards under numbers. They are kept as long as this object is, and each is described once.

    Args:
        **arrays: what `describe` returns of each shard: shape and type of one row, by name.
    """

    def __init__(self, **arrays: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        self._tasks: list[ShardingTask] = []
        self._number_of_task: dict[str, int] = {}
        self._number_of_shard: list[dict[ShardKey, int]] = []
        #: Of each task, the first one to which the link model says the same; and those first ones by what it reads.
        self._first_alike = GrowingArrays(task=((), np.int64))
        self._first_with_links: dict[tuple[Any, ...], int] = {}
        #: The first shard of all those alike, by what descriptions depend on; None where they are not shared.
        self._first_like: dict[tuple[Any, ...], int] | None = None
        self._shards = GrowingArrays(task=((), np.int64), widths=((), np.float64), **arrays)
        self._described_by = tuple(arrays)

    @abc.abstractmethod
    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Return arrays with one row per shard; called once for each shard.

        A row may depend on the shard's table, rows and columns, and on the task's devices, batch, precision and
        optimiser; not on its other tables.

        Args:
            task: that the shards are of.
            keys: at least one: table, number of rows, number of columns.
        """

    @property
    def num_tasks(self) -> int:
        """How many tasks are known."""
        return len(self._tasks)

    def add_task(self, task: ShardingTask) -> int:
        """Return the number of a task.

        Raises:
            InputError: the cost knows no tasks of this kind.
        """
        number = self._number_of_task.setdefault(task.digest, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(task)
            self._number_of_shard.append({})
            topology = task.topology
            links = (
                task.num_devices, task.batch_size, task.precision, topology.fast_domain_size, topology.intra_bandwidth,
                topology.inter_bandwidth, topology.intra_latency_ms, topology.inter_latency_ms,
            )  # fmt: skip
            self._first_alike.append(task=[self._first_with_links.setdefault(links, number)])
        return number

    def encode(self, task: ShardingTask, shards: Sequence[Shard]) -> Ints:
        """Return the numbers of shards, shape (n,). Those not seen before are described together.

        Where rows and columns of a shard begin does not matter, nor does its device: the halves of a table have one
        number.

        Raises:
            InputError: as `add_task`.
        """
        return self.encode_keys(task, [(s.table, s.rows[1] - s.rows[0], s.columns[1] - s.columns[0]) for s in shards])

    def encode_keys(self, task: ShardingTask, keys: Sequence[ShardKey]) -> Ints:
        """Return the same for shards that nobody has made records of: table, rows and columns of each."""
        number = self.add_task(task)
        known = self._number_of_shard[number]
        numbers = [known.get(key) for key in keys]
        if None in numbers:
            new = [key for key in dict.fromkeys(keys) if key not in known]
            first = self._shards.append(
                task=np.full(len(new), number), widths=[key[2] for key in new], **self._described(task, new)
            )
            known.update(zip(new, itertools.count(first), strict=False))
            numbers = [known[key] for key in keys]
        return np.array(numbers, dtype=np.int64)

    def share_descriptions(self) -> None:
        """Describe shards of a table once for all tasks, for those who see many tasks of the same tables.

        How a description is rounded may then depend on which task came first.
        """
        self._first_like = {}

    def _described(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Return what `describe` does, or what it returned for the same shards of other tasks."""
        known = self._first_like
        if known is None:
            return self.describe(task, keys)
        kind = (task.topology, task.batch_size, task.precision, task.optimizer)
        alike = [(task.table(name).canonical_text, rows, columns, kind) for name, rows, columns in keys]
        source = np.array([known.get(key, -1) for key in alike])
        new = np.flatnonzero(source < 0).tolist()
        if len(new) == len(keys):
            arrays = self.describe(task, keys)
        else:
            arrays = {name: self._shards[name][source] for name in self._described_by}
            if new:
                for name, rows in self.describe(task, [keys[place] for place in new]).items():
                    arrays[name][new] = rows
        known.update({alike[place]: len(self._shards) + place for place in new})
        return arrays

    def widths(self, shards: Ints) -> Floats:
        """Return the columns of shards, shape (n,)."""
        widths: Floats = self._shards["widths"][shards]
        return widths

    def modelled_exchanges(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """Return what the link model says of the exchanges of P placements, by the topology of each one's task.

        Args:
            tasks: number of each placement's task, shape (P,), or one for all.
            compute_ms: forward plus backward compute of every device, shape (P, D).
            widths: columns of every device, shape (P, D).
        """
        if np.ndim(tasks) == 0:
            return self.exchange_of(self._tasks[int(tasks)], compute_ms, widths)
        alike = self._first_alike["task"][tasks]
        numbers = np.unique(alike).tolist()
        if len(numbers) == 1:
            return self.exchange_of(self._tasks[numbers[0]], compute_ms, widths)
        times = np.zeros((3, *widths.shape))
        for number in numbers:
            rows = alike == number
            times[:, rows] = self.exchange_of(self._tasks[number], compute_ms[rows], widths[rows])
        return ExchangeTimes(*times)

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """Return what `modelled_exchanges` says of placements of one task; a link model of your own goes here.

        It may depend on the task's devices, batch, precision and links, and on nothing else of the task.
        """
        return exchange_times(task, compute_ms, widths)


class AdditiveCosts(NumberedShards):
    """The prices of devices, from what their shards add up to.

    `CostModel.additive()` returns one. To make a cost of your own additive, subclass this and implement `describe`,
    which returns the vectors of shards under the name "latents", and `device_ms`, which prices their sums. Exchanges
    take what the link model says of the task's topology, unless you override `exchange_times`.

    Args:
        num_latents: length K of the vectors.
    """

    def __init__(self, num_latents: int) -> None:
        super().__init__(latents=((num_latents,), np.float64))

    @abc.abstractmethod
    def device_ms(self, sums: Floats, counts: Ints) -> Floats:
        """Return forward and backward compute of devices in ms; an empty device takes none.

        Args:
            sums: added latents of each device, shape (..., K).
            counts: shards of each device, shape (...).

        Returns:
            Shape (..., 2).
        """

    def latents(self, shards: Ints) -> Floats:
        """Return what shards add to the sum over their device, shape (n, K)."""
        latents: Floats = self._shards["latents"][shards]
        return latents

    def exchange_times(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """Return communication of P placements in ms: three arrays of shape (P, D); see `modelled_exchanges`."""
        return self.modelled_exchanges(tasks, compute_ms, widths)

    def per_device_ms(self, tasks: int | Ints, sums: Floats, counts: Ints, widths: Floats) -> Floats:
        """Return all four phases of P placements, complete or not.

        Args:
            tasks: number of each placement's task, shape (P,), or one for all.
            sums: added latents of every device, shape (P, D, K).
            counts: shards of every device, shape (P, D); an empty one computes for free.
            widths: columns of every device, shape (P, D).

        Returns:
            Ms in the order of `PHASES`, shape (P, D, 4).
        """
        compute_ms = self.device_ms(sums, counts)
        return join_phases(compute_ms, self.exchange_times(tasks, compute_ms.sum(axis=2), widths))

    def slowest_ms(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> Floats:
        """Return what the slowest device of P placements takes in ms, quantized, shape (P,).

        Arguments are those of `modelled_exchanges`; searches compare the result, see `shardgym.ties`.
        """
        exchange = self.exchange_times(tasks, compute_ms, widths)
        return quantized((compute_ms + exchange.forward_ms + exchange.backward_ms).max(axis=1))

    def plans_ms(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> Floats:
        """Return all four phases of P plans of a task, in the order of `PHASES`, shape (P, D, 4).

        Memory, cover and widths are not checked: `CostModel.evaluate` has done that before it calls `score`.
        """
        number = self.add_task(task)
        shards = [shard for plan in plans for shard in plan.shards]
        encoded = self.encode(task, shards)
        shape = len(plans), task.num_devices
        plan_of_shard = np.repeat(np.arange(len(plans)), [len(plan.shards) for plan in plans])
        devices = plan_of_shard * task.num_devices + np.array([shard.device for shard in shards], dtype=np.int64)
        latents = self.latents(encoded)
        sums = np.zeros((shape[0] * shape[1], latents.shape[1]))
        np.add.at(sums, devices, latents)
        counts = np.bincount(devices, minlength=len(sums))
        widths = np.bincount(devices, weights=self.widths(encoded), minlength=len(sums)).astype(np.float64)
        return self.per_device_ms(number, sums.reshape(*shape, -1), counts.reshape(shape), widths.reshape(shape))


def join_phases(compute_ms: Floats, exchange: ExchangeTimes) -> Floats:
    """Join compute of shape (P, D, 2) and communication of shape (P, D) in the order of `PHASES`, (P, D, 4)."""
    phases = np.empty((*compute_ms.shape[:2], 4))
    phases[..., 0] = compute_ms[..., 0]
    phases[..., 1] = exchange.forward_ms
    phases[..., 2] = exchange.backward_ms
    phases[..., 3] = compute_ms[..., 1]
    return phases


class PlacementState:
    """Which candidate shard is on which device, and what that costs.

    `CostModel.begin` returns one. Adding a shard costs one vector addition and the price of one device. Candidates are
    numbered in the order they were given. Times agree with `CostModel.evaluate` on the finished plan to rounding.
    Memory is not checked here.

    Args:
        task: the task.
        costs: what prices devices.
        candidates: shards that can be placed; the devices they name are ignored.

    Attributes:
        candidates: shards by number.
        devices: of every candidate, `UNPLACED` where it is on none, shape (C,).
        latents: of every candidate, shape (C, K).
        widths: columns of every candidate, shape (C,).

    Raises:
        InputError: the cost knows no tasks of this kind.
    """

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, candidates: Sequence[Shard]) -> None:
        self._task = task
        self._costs = costs
        self._number = costs.add_task(task)
        none = np.zeros(0, dtype=np.int64)
        self.candidates: list[Shard] = []
        self.devices: Ints = none
        self.latents: Floats = costs.latents(none)
        self.widths: Floats = costs.widths(none)
        self._counts: Ints = np.zeros(task.num_devices, dtype=np.int64)
        self._sums: Floats = np.zeros((task.num_devices, self.latents.shape[1]))
        self.extend(candidates)

    def extend(self, shards: Sequence[Shard]) -> list[int]:
        """Add candidates, encoded together; return their numbers."""
        encoded = self._costs.encode(self._task, shards)
        first = len(self.candidates)
        self.candidates += shards
        self.devices = np.concatenate([self.devices, np.full(len(shards), UNPLACED)])
        self.latents = np.concatenate([self.latents, self._costs.latents(encoded)])
        self.widths = np.concatenate([self.widths, self._costs.widths(encoded)])
        return list(range(first, len(self.candidates)))

    def copy(self) -> PlacementState:
        """Return an independent state with the same placement."""
        other = object.__new__(PlacementState)
        other.__dict__.update(self.__dict__)
        other.candidates = list(self.candidates)
        other.devices = self.devices.copy()
        other._counts = self._counts.copy()
        other._sums = self._sums.copy()
        return other

    def add(self, candidate: int, device: int) -> None:
        """Put a candidate on a device.

        Raises:
            InputError: no such candidate or device, or the candidate is on a device already.
        """
        self._check(candidate, device)
        if self.devices[candidate] != UNPLACED:
            raise InputError(f"candidate {candidate} is on device {self.devices[candidate]}: remove it first")
        self.devices[candidate] = device
        self._sums[device] += self.latents[candidate]
        self._counts[device] += 1

    def remove(self, candidate: int) -> None:
        """Take a candidate off its device.

        Raises:
            InputError: no such candidate, or it is on no device.
        """
        self._check(candidate, 0)
        device = int(self.devices[candidate])
        if device == UNPLACED:
            raise InputError(f"candidate {candidate} is on no device")
        self.devices[candidate] = UNPLACED
        self._counts[device] -= 1
        # Summed anew: what subtraction leaves of large latents would drown small ones.
        self._sums[device] = self.latents[self.devices == device].sum(axis=0)

    def what_if(self, candidates: npt.ArrayLike, devices: npt.ArrayLike) -> Floats:
        """Predict compute of devices with one candidate more, for many hypothetical placements in one call.

        Args:
            candidates: numbers, shape (n,).
            devices: where each would go, shape (n,).

        Returns:
            Forward and backward ms of that device with that candidate, shape (n, 2). Nothing is placed.
        """
        where = np.asarray(devices, dtype=np.int64)
        sums = self._sums[where] + self.latents[np.asarray(candidates, dtype=np.int64)]
        return self._costs.device_ms(sums, self._counts[where] + 1)

    def compute_ms(self) -> Floats:
        """Return forward and backward compute of every device, shape (D, 2); an empty one takes none."""
        return self._costs.device_ms(self._sums, self._counts)

    def per_device(self) -> Floats:
        """Return all four phases of every device as placed so far, in the order of `PHASES`, shape (D, 4)."""
        placed = self.devices != UNPLACED
        widths = np.zeros(self._task.num_devices)
        np.add.at(widths, self.devices[placed], self.widths[placed])
        phases = self._costs.per_device_ms(self._number, self._sums[None], self._counts[None], widths[None])
        return np.asarray(phases[0], dtype=np.float64)

    def total(self) -> float:
        """Return what the slowest device takes in ms as placed so far."""
        return float(self.per_device().sum(axis=1).max())

    def totals(self, placements: npt.ArrayLike) -> Floats:
        """Predict many whole placements in one call, whatever is placed here.

        Args:
            placements: device of every candidate, `UNPLACED` for none, shape (P, C).

        Returns:
            What the slowest device takes in ms, shape (P,).
        """
        where = np.asarray(placements, dtype=np.int64)
        shape = len(where), self._task.num_devices
        sums = np.zeros((*shape, self.latents.shape[1]))
        counts = np.zeros(shape, dtype=np.int64)
        widths = np.zeros(shape)
        for device in range(self._task.num_devices):
            here = (where == device).astype(np.float64)
            sums[:, device] = here @ self.latents
            widths[:, device] = here @ self.widths
            counts[:, device] = here.sum(axis=1)
        phases = self._costs.per_device_ms(self._number, sums, counts, widths)
        return np.asarray(phases.sum(axis=-1).max(axis=-1), dtype=np.float64)

    def _check(self, candidate: int, device: int) -> None:
        if not 0 <= candidate < len(self.candidates):
            raise InputError(f"candidate {candidate}: there are candidates 0 to {len(self.candidates) - 1}")
        if not 0 <= device < self._task.num_devices:
            raise InputError(f"device {device}: the task has devices 0 to {self._task.num_devices - 1}")
