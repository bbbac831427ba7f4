"""Additive costs: what a device computes follows from a sum over its shards.

Each shard is described once, by a short vector: latents, from which compute follows, and loads, from which exchanges
follow. The vectors of a device are added up, and the sum is priced. So placing one shard more takes one addition, and
any number of devices, placements and tasks is priced in one call.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, GrowingArrays, Ints
from shardgym.costs.links import (
    IDS,
    LOADS,
    REPLICA_BYTES,
    SHARDS,
    ExchangeTimes,
    exchange_times,
    group_of,
    operators,
    output_exchange_ms,
    replica_exchange_ms,
)
from shardgym.costs.shard_keys import PlanBatch, ShardKey, plan_keys, shard_key, shard_loads
from shardgym.costs.ties import quantized
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask
from shardgym.tasks.topology import Topology


class NumberedShards(abc.ABC):
    """Tasks and their shards under numbers. They are kept as long as this object is, and each is described once.

    Args:
        **arrays: what `describe` returns of each shard: shape and type of one row, by name.
    """

    def __init__(self, **arrays: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        self._tasks: list[ShardingTask] = []
        self._number_of_task: dict[str, int] = {}
        self._number_of_shard: list[dict[ShardKey, int]] = []
        #: Of each task, the first one whose exchanges take the same, and whether ids are hidden.
        self._exchanges = GrowingArrays(first_alike=((), np.int64), ids_hidden=((), np.bool_))
        #: Those first tasks, by what `exchange_of` may depend on.
        self._first_with_links: dict[tuple[Any, ...], int] = {}
        #: Numbers of shards by what descriptions depend on, and numbers of all that they depend on of a task; None
        #: where shards of different tasks have numbers of their own.
        self._shared: dict[tuple[Any, ...], int] | None = None
        self._surroundings: dict[tuple[Any, ...], int] = {}
        self._shards = GrowingArrays(task=((), np.int64), loads=((LOADS,), np.float64), **arrays)

    @abc.abstractmethod
    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, npt.NDArray[Any]]:
        """Return arrays with one row per shard; called once for each shard.

        A row may depend on the shard's table, rows and columns, and on the task's devices, batch, precision and
        optimiser, and on whether ids are sent without repeats; not on its other tables. There is at least one key.
        """

    @property
    def num_tasks(self) -> int:
        """How many tasks are known."""
        return len(self._tasks)

    @property
    def num_shards(self) -> int:
        """How many shards are known."""
        return len(self._shards)

    def add_task(self, task: ShardingTask) -> int:
        """Return the number of a task; one of a kind that the cost does not know is an `InputError`."""
        number = self._number_of_task.setdefault(task.digest, len(self._tasks))
        if number == len(self._tasks):
            self._tasks.append(task)
            self._number_of_shard.append({})
            first_alike = self._first_with_links.setdefault(_links_of(task), number)
            self._exchanges.append(first_alike=[first_alike], ids_hidden=[self.ids_hidden(task)])
        return number

    def encode(self, task: ShardingTask, shards: Sequence[Shard]) -> Ints:
        """Return the numbers of shards that one device holds, shape (n,). Those not seen before are described together.

        Where columns of a shard begin does not matter, nor does its device: halves of the columns of a table have one
        number. So have halves of its rows, unless the table says that some are more popular than others.
        """
        return self.encode_keys(task, [shard_key(task, shard) for shard in shards])

    def encode_keys(self, task: ShardingTask, keys: Sequence[ShardKey]) -> Ints:
        """Return the same for any shards, which nobody needs to have made records of."""
        number = self.add_task(task)
        known: dict[Any, int] = self._number_of_shard[number] if self._shared is None else self._shared
        names: Sequence[Any] = keys
        if self._shared is not None:
            surroundings = *_links_of(task), task.optimizer, task.topology.host_bandwidth
            of_task = self._surroundings.setdefault(surroundings, len(self._surroundings))
            names = [(of_task, task.table(key.table).canonical_text, *key[1:]) for key in keys]
        numbers = [known.get(name) for name in names]
        if None in numbers:
            new = {name: key for name, key in zip(names, keys, strict=True) if name not in known}
            of_new = list(new.values())
            loads = [self.key_loads(task, key) for key in of_new]
            described = self.describe(task, of_new)
            first = self._shards.append(task=np.full(len(new), number), loads=loads, **described)
            known.update(zip(new, itertools.count(first), strict=False))
            numbers = [known[name] for name in names]
        return np.array(numbers, dtype=np.int64)

    def batch(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> PlanBatch:
        """Return plans of one task as arrays; raises as `add_task`."""
        keys = [key for plan in plans for key in plan_keys(task, plan)]
        numbers = self.encode_keys(task, keys)
        if not any(plan.has_replicas for plan in plans):
            counts = np.array([len(plan.shards) for plan in plans], dtype=np.int64)
            devices = np.array([shard.devices[0] for plan in plans for shard in plan.shards], dtype=np.int64)
            return PlanBatch(task.num_devices, counts, numbers, devices)
        holders = [[shard.devices for shard in plan.shards] for plan in plans]
        counts = np.array([sum(map(len, of_plan)) for of_plan in holders], dtype=np.int64)
        devices = np.array([d for of_plan in holders for held in of_plan for d in held], dtype=np.int64)
        numbers = np.repeat(numbers, [len(held) for of_plan in holders for held in of_plan])
        if all(plan.group_size is None for plan in plans):
            return PlanBatch(task.num_devices, counts, numbers, devices)
        groups = np.array([task.num_devices // (plan.group_size or task.num_devices) for plan in plans])
        return PlanBatch(task.num_devices, counts, numbers, devices, groups)

    def tasks_of(self, batch: PlanBatch) -> Ints:
        """Return the number of each plan's task, that of its first shard unless the batch says it, shape (P,)."""
        if batch.tasks is not None:
            return batch.tasks
        return np.asarray(self._shards["task"][batch.shards[np.cumsum(batch.counts) - batch.counts]])

    def task(self, number: int) -> ShardingTask:
        """Return a task by its number."""
        return self._tasks[number]

    def share_shards(self) -> None:
        """Give shards of a table one number in all tasks, for those who see many tasks of the same tables.

        Tasks with other devices, links, batch, precision or optimiser apart. Batches have to name their tasks then. How
        a description is rounded may depend on which task came first.
        """
        self._shared = {}

    def key_loads(self, task: ShardingTask, key: ShardKey) -> list[float]:
        """Return the loads of a shard, which may depend on what `describe` may depend on."""
        return shard_loads(task, key)

    def loads(self, shards: Ints) -> Floats:
        """Return the loads of shards, by the columns of `shardgym.costs.links`, shape (n, LOADS)."""
        return np.asarray(self._shards["loads"][shards])

    def ids_hidden(self, task: ShardingTask) -> bool:  # noqa: ARG002
        """Say whether ids of the next step travel while this one computes, which decides how steps add up.

        It may depend on what `exchange_of` may depend on. Override it for a cost of devices that train so. See
        `shardgym.costs.links.exchange_times`.
        """
        return False

    def are_ids_hidden(self, tasks: int | Ints) -> Bools:
        """Return the same of tasks by number, in the shape of `tasks`."""
        return np.asarray(self._exchanges["ids_hidden"][tasks], dtype=np.bool_)

    def exchange_times(self, tasks: int | Ints, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """Return the exchanges of P placements in one group each, replicas' gradients included, each of shape (P, D).

        Args:
            tasks: number of each placement's task, shape (P,), or one for all.
            compute_ms: forward and backward compute of every device, shape (P, D, 2).
            loads: loads of every device, shape (P, D, LOADS).
        """
        if np.ndim(tasks) == 0:
            return self.exchanges_in_groups(int(tasks), 1, compute_ms, loads)
        alike = self._exchanges["first_alike"][tasks]
        numbers = np.unique(alike).tolist()
        if len(numbers) == 1:
            return self.exchanges_in_groups(numbers[0], 1, compute_ms, loads)
        times = np.zeros((3, *loads.shape[:2]))
        for number in numbers:
            rows = alike == number
            times[:, rows] = self.exchanges_in_groups(number, 1, compute_ms[rows], loads[rows])
        return ExchangeTimes(*times)

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """Return what `exchange_times` does of placements of one task; a link model of your own goes here.

        It may depend on the task's devices, batch, precision and links, and on nothing else of the task. Here it is the
        link model of the task's topology, without an exchange of ids.
        """
        transfer = output_exchange_ms(task.topology, loads, task.batch_size, ELEMENT_BYTES[task.precision])
        return exchange_times(compute_ms, transfer, ids_hidden=self.ids_hidden(task))

    def exchanges_in_groups(self, number: int, groups: int, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """Return the exchanges of P placements of one task whose devices form groups, and of replicas' gradients.

        Groups exchange outputs among themselves, each with its share of the samples. At the end of the step replicas
        exchange their gradients, and after every `group_sync_interval` steps the same places of all groups their
        weights, of which a step takes its share. Groups are consecutive devices; arguments as `exchange_times`.
        """
        task = self._tasks[number]
        if groups == 1:
            times = self.exchange_of(task, compute_ms, loads)
        else:
            inside = group_of(task, task.num_devices // groups)
            of_group = -1, inside.num_devices
            parts = self.exchange_of(inside, compute_ms.reshape(*of_group, 2), loads.reshape(*of_group, LOADS))
            times = ExchangeTimes(*(part.reshape(loads.shape[:-1]) for part in parts))
        if groups == 1 and not loads[..., REPLICA_BYTES].any():
            return times
        return times._replace(backward_ms=times.backward_ms + self.replicas_ms(task, loads, groups))

    def replicas_ms(self, task: ShardingTask, loads: Floats, groups: int) -> Floats:
        """Return what each device takes to exchange what its replicas have in common, shape (..., D).

        It may depend on what `exchange_of` may depend on; arguments as `exchanges_in_groups`.
        """
        return replica_exchange_ms(task.topology, loads, groups, task.group_sync_interval or 1)


class AdditiveCosts(NumberedShards):
    """The prices of devices, from what their shards add up to.

    `CostModel.additive()` returns one. To make a cost of your own additive, subclass this and implement `describe`,
    which returns the latents of shards under that name, and `device_ms`, which prices their sums. Exchanges take what
    the link model says of the task's topology, unless you override `exchange_of`. `num_latents` is K.
    """

    #: Whether devices take at least what `least_ms` and `all_to_all_links` say, and collectives of rows and replicas
    #: take a time that grows ever more slowly with what they move, or as fast. Then bounds of linear programs hold for
    #: this cost.
    bounded = False

    def __init__(self, num_latents: int) -> None:
        super().__init__(latents=((num_latents,), np.float64))

    @abc.abstractmethod
    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """Return forward and backward compute of devices in ms; an empty device takes none.

        Args:
            sums: added latents of each device, shape (..., K).
            counts: shards of each device, shape (...); of an average device, as searches look at, no whole number.

        Returns:
            Shape (..., 2).
        """

    def operator_ms(self, sums: Floats, counts: Floats) -> Floats:  # noqa: ARG002
        """Return what one more fused operator on a device takes, forward and backward in ms, shape (..., 2).

        TorchRec runs one for each way in which outputs are exchanged. Here it takes nothing; arguments as `device_ms`.
        """
        return np.zeros((*counts.shape, 2))

    def least_ms(self, vectors: Floats, typical: Floats) -> Floats:  # noqa: ARG002
        """Return what shards add to the compute of their device, forward and backward in ms, shape (n, 2).

        With `operator_ms` for each operator, the shards of a device add up to at most what it computes where this is
        `bounded`; otherwise they are an estimate. Here it is what shards compute alone.

        Args:
            vectors: vectors of shards, see `vectors`, shape (n, K + LOADS).
            typical: added vectors of shards, in whose proportions sums are near to what devices compute,
                shape (K + LOADS,).
        """
        counts = vectors[:, -LOADS:][:, SHARDS]
        return self.exact_compute_ms(vectors) - self.operator_ms(vectors[:, :-LOADS], counts)

    def unlimited(self, task: ShardingTask) -> AdditiveCosts:
        """Return the prices of the same devices with caches for all rows, and ids that are sorted in one pass.

        By their `least_ms` shards of a table add up to at least what the whole table takes, however it is cut; and no
        shard takes more than by these. Where this is `bounded`, bounds of any plans hold for this cost, too.
        """
        raise NotImplementedError(f"{type(self).__name__} is bounded: expected unlimited({task.name!r:.40})")

    def all_to_all_links(self, task: ShardingTask) -> tuple[Topology, int]:
        """Return links, and bytes of a value, with which all-to-alls take at least what `links.transfer_ms` says."""
        return task.topology, ELEMENT_BYTES[task.precision]

    def latents(self, shards: Ints) -> Floats:
        """Return what shards add to the sum over their device, shape (n, K)."""
        return np.asarray(self._shards["latents"][shards])

    def vectors(self, shards: Ints) -> Floats:
        """Return what is added up over a device: the latents of shards, then their loads; shape (n, K + LOADS)."""
        return np.concatenate([self.latents(shards), self.loads(shards)], axis=1)

    def compute_ms(self, sums: Floats) -> Floats:
        """Return forward and backward compute of devices in ms, each quantized for searches to compare, shape (..., 2).

        `sums` are the added `vectors` of each device, shape (..., K + LOADS). An empty device takes none.
        """
        return quantized(self.exact_compute_ms(sums))

    def exact_compute_ms(self, sums: Floats) -> Floats:
        """Return `compute_ms` without quantizing it."""
        latents = sums[..., :-LOADS]
        loads = sums[..., -LOADS:]
        counts = loads[..., SHARDS]
        compute_ms = self.device_ms(latents, counts)
        if loads[..., :IDS].any():  # else there is one operator
            more = np.maximum(operators(loads) - 1, 0)
            compute_ms = compute_ms + more[..., None] * self.operator_ms(latents, counts)
        return compute_ms

    def per_device_ms(self, tasks: int | Ints, sums: Floats) -> Floats:
        """Return all phases of P placements in one group each, complete or not, in ms, shape (P, D, 5).

        Tasks are the number of each placement's, shape (P,), or one for all. Sums are added `vectors` of every device,
        shape (P, D, K + LOADS).
        """
        compute_ms = self.exact_compute_ms(sums)
        return join_phases(compute_ms, self.exchange_times(tasks, compute_ms, sums[..., -LOADS:]))

    def total_ms(self, tasks: int | Ints, sums: Floats) -> Floats:
        """Return what the slowest of each placement's devices takes in ms, exact, shape (P,); see `per_device_ms`."""
        return self.exact_slowest_ms(tasks, self.exact_compute_ms(sums), sums[..., -LOADS:])

    def exact_slowest_ms(self, tasks: int | Ints, compute_ms: Floats, loads: Floats) -> Floats:
        """Return `total_ms` from the compute of devices; arguments as `exchange_times`."""
        phases = join_phases(compute_ms, self.exchange_times(tasks, compute_ms, loads))
        device_ms = phases.sum(axis=2)
        hidden = self.are_ids_hidden(tasks)
        if hidden.any():
            device_ms = np.where(hidden[..., None], phases[..., 1:].sum(axis=2), device_ms)
        return np.asarray(device_ms.max(axis=1), dtype=np.float64)

    def slowest_ms(self, tasks: int | Ints, compute_ms: Floats, loads: Floats) -> Floats:
        """Return `total_ms`, quantized, from the compute of devices; arguments as `exchange_times`.

        Searches compare it, see `shardgym.costs.ties`.
        """
        exchange = self.exchange_times(tasks, compute_ms, loads)
        ids_ms = np.where(self.are_ids_hidden(tasks)[..., None], 0.0, exchange.ids_ms)
        ms = compute_ms[..., 0] + compute_ms[..., 1] + exchange.forward_ms + exchange.backward_ms + ids_ms
        return quantized(ms.max(axis=1))

    def plans_ms(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> Floats:
        """Return all phases of P feasible plans of a task, in the order of `PHASES`, shape (P, D, 5)."""
        return self.batch_ms(self.batch(task, plans))

    def batch_ms(self, batch: PlanBatch) -> Floats:
        """Return the same of plans as arrays, which may be of several tasks."""
        shape = len(batch.counts), batch.num_devices
        devices = np.repeat(np.arange(shape[0]) * shape[1], batch.counts) + batch.devices
        vectors = self.vectors(batch.shards)
        sums: Floats = np.zeros((*shape, vectors.shape[1]))
        np.add.at(sums.reshape(shape[0] * shape[1], -1), devices, vectors)
        tasks = self.tasks_of(batch)
        if batch.groups is None:
            return self.per_device_ms(tasks, sums)
        phases = np.empty((*shape, 5))
        for number, groups in {*zip(tasks.tolist(), batch.groups.tolist(), strict=True)}:
            rows = (tasks == number) & (batch.groups == groups)
            phases[rows] = self.phases_in_groups(number, groups, sums[rows])
        return phases

    def phases_in_groups(self, number: int, groups: int, sums: Floats) -> Floats:
        """Return all phases of P plans of one task; arguments as `exchanges_in_groups` and `per_device_ms`."""
        compute_ms = self.exact_compute_ms(sums)
        return join_phases(compute_ms, self.exchanges_in_groups(number, groups, compute_ms, sums[..., -LOADS:]))


def _links_of(task: ShardingTask) -> tuple[Any, ...]:
    """Return all of a task that exchanges may depend on."""
    topology = task.topology
    return (
        task.num_devices, task.batch_size, task.precision, task.dedup_ids, topology.device, topology.fast_domain_size,
        topology.intra_bandwidth, topology.inter_bandwidth, topology.intra_latency_ms, topology.inter_latency_ms,
        task.group_sync_interval,
    )  # fmt: skip


def join_phases(compute_ms: Floats, exchange: ExchangeTimes) -> Floats:
    """Join compute of shape (P, D, 2) and communication of shape (P, D) in the order of `PHASES`, (P, D, 5)."""
    phases = np.empty((*compute_ms.shape[:-1], 5))
    phases[..., 0] = exchange.ids_ms
    phases[..., 1] = compute_ms[..., 0]
    phases[..., 2] = exchange.forward_ms
    phases[..., 3] = exchange.backward_ms
    phases[..., 4] = compute_ms[..., 1]
    return phases
