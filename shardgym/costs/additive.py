"""Additive costs: what a device computes follows from a sum over its shards.

Each shard is described once, by a short vector. The vectors of a device are added up, and the sum is priced. So placing
one shard more takes one addition, and any number of devices, placements and tasks is priced in one call.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, GrowingArrays, Ints
from shardgym.costs.links import ExchangeTimes, exchange_times
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ShardingTask
from shardgym.ties import quantized

#: What a shard's time depends on: table, rows, columns. Where rows and columns begin does not matter.
ShardKey = tuple[str, int, int]


class PlanBatch(NamedTuple):
    """P complete plans as arrays. They may be of different tasks with the same number of devices.

    Attributes:
        num_devices: D of every plan.
        counts: shards of each plan, all at least 1, shape (P,).
        shards: numbers from `NumberedShards.encode`, plan after plan, shape (H,).
        devices: that hold them, shape (H,).
    """

    num_devices: int
    counts: Ints
    shards: Ints
    devices: Ints


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

    def batch(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> PlanBatch:
        """Return plans of one task as arrays.

        Raises:
            InputError: as `add_task`.
        """
        shards = [shard for plan in plans for shard in plan.shards]
        counts = np.array([len(plan.shards) for plan in plans], dtype=np.int64)
        devices = np.array([shard.device for shard in shards], dtype=np.int64)
        return PlanBatch(task.num_devices, counts, self.encode(task, shards), devices)

    def tasks_of(self, batch: PlanBatch) -> Ints:
        """Return the number of each plan's task, that of its first shard, shape (P,)."""
        tasks: Ints = self._shards["task"][batch.shards[np.cumsum(batch.counts) - batch.counts]]
        return tasks

    def task(self, number: int) -> ShardingTask:
        """Return a task by its number."""
        return self._tasks[number]

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

    def vectors(self, shards: Ints) -> Floats:
        """Return what searches add up over a device: a shard's latents, its columns, and 1; shape (n, K + 2)."""
        return np.column_stack([self.latents(shards), self.widths(shards), np.ones(len(shards))])

    def set_ms(self, sums: Floats) -> Floats:
        """Return forward plus backward compute of devices in ms, quantized, from added `vectors`.

        Args:
            sums: shape (..., K + 2); zeros for an empty device, which takes none.

        Returns:
            Shape (...).
        """
        ms = self.device_ms(sums[..., :-2], sums[..., -1].astype(np.int64))
        return quantized(ms[..., 0] + ms[..., 1])

    def exchange_times(self, tasks: int | Ints, compute_ms: Floats, widths: Floats) -> ExchangeTimes:
        """Return communication of P placements in ms: three arrays of shape (P, D); see `modelled_exchanges`."""
        return self.modelled_exchanges(tasks, compute_ms, widths)

    def per_device_ms(self, tasks: int | Ints, sums: Floats, counts: Ints, widths: Floats) -> Floats:
        """Return all phases of P placements, complete or not.

        Args:
            tasks: number of each placement's task, shape (P,), or one for all.
            sums: added latents of every device, shape (P, D, K).
            counts: shards of every device, shape (P, D); an empty one computes for free.
            widths: columns of every device, shape (P, D).

        Returns:
            Ms in the order of `PHASES`, shape (P, D, 5).
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
        """Return all phases of P plans of a task, in the order of `PHASES`, shape (P, D, 5).

        Memory, cover and widths are not checked: `CostModel.evaluate` has done that before it calls `score`.
        """
        return self.batch_ms(self.batch(task, plans))

    def batch_ms(self, batch: PlanBatch) -> Floats:
        """Return the same of plans as arrays, which may be of several tasks."""
        shape = len(batch.counts), batch.num_devices
        devices = np.repeat(np.arange(shape[0]) * shape[1], batch.counts) + batch.devices
        latents = self.latents(batch.shards)
        sums = np.zeros((shape[0] * shape[1], latents.shape[1]))
        np.add.at(sums, devices, latents)
        counts = np.bincount(devices, minlength=len(sums))
        widths = np.bincount(devices, weights=self.widths(batch.shards), minlength=len(sums)).astype(np.float64)
        tasks = self.tasks_of(batch)
        return self.per_device_ms(tasks, sums.reshape(*shape, -1), counts.reshape(shape), widths.reshape(shape))


def join_phases(compute_ms: Floats, exchange: ExchangeTimes) -> Floats:
    """Join compute of shape (P, D, 2) and communication of shape (P, D) in the order of `PHASES`, (P, D, 5).

    There is no exchange of ids.
    """
    phases = np.zeros((*compute_ms.shape[:2], 5))
    phases[..., 1] = compute_ms[..., 0]
    phases[..., 2] = exchange.forward_ms
    phases[..., 3] = exchange.backward_ms
    phases[..., 4] = compute_ms[..., 1]
    return phases
