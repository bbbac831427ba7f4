"""GpuCost: what FBGEMM's fused kernels and NCCL's collectives take on a GPU, without one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import SummedCost
from shardgym.costs.gpu.cards import CARDS, Card, card
from shardgym.costs.gpu.collectives import all_reduce_ms, reduce_scatter_ms
from shardgym.costs.gpu.exchange import (
    Algorithm,
    Wire,
    exchange_ms,
    exchange_topology,
    id_exchange_ms,
    sheet_topology,
    two_step_ms,
)
from shardgym.costs.gpu.host_memory import HostShards, host_ms, shard_work_with_host
from shardgym.costs.gpu.kernels import (
    KERNELS,
    ShardSizes,
    Work,
    backward_ms,
    forward_ms,
    least_ms,
    matched,
    row_classes,
    shard_work,
)
from shardgym.costs.links import (
    COLUMNS,
    GROUP_BYTES,
    REPLICA_BYTES,
    ExchangeTimes,
    exchange_times,
    part_of,
    peers_of,
    with_row_exchange_ms,
)
from shardgym.costs.mixed_tables import operator_notes
from shardgym.costs.roofline import ID_BYTES, WEIGHT_BYTES, dense_update_bytes
from shardgym.costs.shard_keys import ShardKey, host_misses
from shardgym.errors import InputError, check_instance
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.row_access import access_share, distinct_ids
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask
from shardgym.tasks.topology import Topology

#: Cards whose fused kernels others have measured and published.
_HELD_CARDS = ("v100", "a100", "h100")

#: GPUs of the largest published all-to-alls.
_HELD_DEVICES = 128
#: Of a cache that holds all rows.
_ALL_ROWS = 2**60


@dataclass(frozen=True)
class GpuSettings:
    """What can be set of `GpuCost`."""

    #: A key of `shardgym.costs.gpu.cards.CARDS`, which brings its links along; nodes stay those of the task. When None,
    #: each task's topology names device and links.
    hardware: str | None = None
    exchange: Algorithm = "flat"  #: how pooled values and gradients go between nodes; on one node it does not matter
    #: Whether the exchange of ids counts. Training that sends the ids of the next step while this one computes hides
    #: it. It decides how a step adds up, see `shardgym.costs.links.exchange_times`.
    ids: bool = False
    #: Precision of outputs and their gradients in exchanges. "fp16" halves what FP32 tasks send; what replicas exchange
    #: stays, and conversions are not counted. Not validated: published is a gain of 6 % of whole steps, but not the
    #: share of exchanges in them.
    wire: Wire = "task"

    def __post_init__(self) -> None:
        if self.hardware is not None:
            card(self.hardware)
        if self.exchange not in get_args(Algorithm):
            raise InputError(f"exchange: expected 'flat' or 'two_step', got {self.exchange!r:.40}")
        check_instance("ids", self.ids, bool)
        if self.wire not in get_args(Wire):
            raise InputError(f"wire: expected 'task' or 'fp16', got {self.wire!r:.40}")

    @property
    def changed(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) != field.default}


class GpuCost(SummedCost):
    """A model of fused kernels and exchanges on GPUs, held against publications (benchmarks/published_gpu).

    All tables of a device share launches, the L2 cache and the memory bus: see `kernels.py`. Rows in the memory of the
    host: `host_memory.py`. Exchanges: `exchange.py`, `collectives.py`. Nothing of it was measured by us. Arguments are
    the fields of `GpuSettings`.

    The model assumes that an NCCL exchange begins when the last device enters it. With ids in the step, all devices
    leave when the busiest link is done, as what a rank sends is far larger than NCCL's buffers. With hidden ids, a
    device leaves when its own links are done, see `shardgym.costs.links.exchange_times`: the times of devices with
    little to exchange are then too short, that of the step is the same.

    Raises:
        UnknownNameError: no such card.
        InputError: settings that do not fit, see `GpuSettings`; the topology of a task names a device that is not a
            GPU, or its nodes differ in size and exchanges go in two steps.
    """

    name = "gpu"
    version = "3"
    deterministic = True
    replicas = True
    unpooled = True
    host_memory = True

    def __init__(
        self, hardware: str | None = None, *, exchange: Algorithm = "flat", ids: bool = False, wire: Wire = "task"
    ) -> None:
        self._settings = GpuSettings(hardware, exchange, ids, wire)
        super().__init__()

    @property
    def hardware(self) -> str:
        """Return "CARD-modelled", or "gpu-modelled" when each task names its own, with other settings appended."""
        given = self._settings
        others = {"-two_step": given.exchange == "two_step", "-ids": given.ids, "-fp16_wire": given.wire == "fp16"}
        return f"{given.hardware or 'gpu'}-modelled" + "".join(name for name, is_set in others.items() if is_set)

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        return self._settings.changed

    def _why_not(self, task: ShardingTask, plan: ShardingPlan) -> str:
        """See `CostModel`; groups have to suit the nodes of the card."""
        if plan.has_replicas and self._settings.hardware is not None:
            links = sheet_topology(CARDS[self._settings.hardware], task.topology)
            task = dataclasses.replace(task, topology=links)
        return super()._why_not(task, plan)

    def make_prices(self) -> AdditiveGpu:
        """See `SummedCost`."""
        return AdditiveGpu(self._settings)

    def notes(self, task: ShardingTask) -> tuple[str, ...]:
        """See `CostModel`."""
        notes = untested(task, self._settings.hardware or task.topology.device)
        two_step = self._settings.exchange == "two_step"
        if self._settings.ids or (two_step and task.topology.fast_domain_size < task.num_devices):
            notes += ("gpu was not validated for exchanges of ids, nor for exchanges in two steps",)
        if self._settings.wire == "fp16" and task.precision != "fp16":
            notes += ("gpu was not validated for exchanges that convert to fp16, and does not count the conversion",)
        if task.num_devices > _HELD_DEVICES:
            notes += (f"all-to-alls of more than {_HELD_DEVICES} GPUs are extrapolated: none have been published",)
        return notes + operator_notes(task)


def untested(task: ShardingTask, hardware: str) -> tuple[str, ...]:
    """Return notes if no published measurement is close to a task: see benchmarks/published_gpu/README.md."""
    notes = []
    if hardware not in _HELD_CARDS:
        cards = ", ".join(_HELD_CARDS)
        notes.append(f"gpu was validated against published kernels of {cards}, not of {hardware}")
    if any(group.precision == "fp16" and group.optimizer != "exact_sgd" for group in task.fused_groups):
        notes.append("gpu was validated against only one backward pass in fp16, which took longer than predicted")
    if any(group.optimizer == "adagrad" for group in task.fused_groups):
        notes.append("gpu was not validated for backward passes with adagrad")
    if any(group.optimizer == "rowwise_adagrad" for group in task.fused_groups):
        notes.append(
            "gpu was validated against two backward passes with rowwise_adagrad, on unnamed cards: one took "
            "longer than predicted, one less"
        )
    return tuple(notes)


class AdditiveGpu(AdditiveCosts):
    """The prices of `GpuCost`: latents are the work of shards, by the columns of `Work`.

    A card that is given takes the place of the one that settings or tasks name: what another one would take.
    """

    def __init__(self, settings: GpuSettings, given: Card | None = None) -> None:
        super().__init__(num_latents=len(Work))
        self._settings = settings
        self._card = card(settings.hardware) if given is None and settings.hardware is not None else given
        # Two steps may take less than the links of single devices.
        self.bounded = settings.exchange == "flat"

    def ids_hidden(self, task: ShardingTask) -> bool:
        """See `AdditiveCosts`."""
        del task
        return not self._settings.ids

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`; a device that is not a GPU is an `InputError`."""
        card = self._card or card_of(task)
        served = np.array([key.served or task.num_devices for key in keys]) / task.num_devices
        shards = [(task.table(key.table), key.row_range, key.columns) for key in keys]
        senders = task.num_devices if task.dedup_ids else 1
        sizes = shard_sizes(shards, task.batch_size, task.precision, task.optimizer, served, senders)
        if all(key.compute_kernel == "fused" for key in keys):
            work = shard_work(card, sizes)
        else:
            # A card that is named brings its bus along.
            bus = card.host if self._card is not None else task.topology.host_bandwidth or card.host
            in_host = np.array([key.compute_kernel != "fused" for key in keys])
            fetched, bypassed, lookups = np.array([host_misses(task, key) for key in keys]).T
            work = shard_work_with_host(card, sizes, HostShards(in_host, fetched, bypassed, lookups, bus))
        dense = np.array([dense_update_bytes(task, key) if key.served == 1 else 0.0 for key in keys])
        work[:, Work.UPDATES] += dense / card.memory_bandwidth * 1e3
        # Of a table that features share, each counts as a shard; the chain and the rows of weights do not grow with it.
        work[:, Work.CROWD] *= [task.table(key.table).num_features for key in keys]
        return {"latents": work}

    def device_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`."""
        some = np.maximum(counts, 1)
        times = np.stack([forward_ms(sums, some), backward_ms(sums)], axis=-1) + host_ms(sums)
        return np.where(counts[..., None] > 0, times, 0.0)

    def operator_ms(self, sums: Floats, counts: Floats) -> Floats:
        """See `AdditiveCosts`: the launches of a forward and of a backward pass."""
        del sums
        launches = np.array([KERNELS.forward_launches, KERNELS.backward_launches])
        return np.broadcast_to(launches * KERNELS.launch_us * 1e-3, (*counts.shape, 2))

    def least_ms(self, vectors: Floats, typical: Floats) -> Floats:
        """See `AdditiveCosts`."""
        work = vectors[:, : len(Work)]
        return least_ms(work, typical[: len(Work)]) + work[:, [Work.HOST_FORWARD, Work.HOST_BACKWARD]]

    def unlimited(self, task: ShardingTask) -> AdditiveGpu:
        """See `AdditiveCosts`."""
        return _UnlimitedGpu(self._settings, dataclasses.replace(self._card or card_of(task), l2_bytes=_ALL_ROWS))

    def all_to_all_links(self, task: ShardingTask) -> tuple[Topology, int]:
        """See `AdditiveCosts`: ramps come on top."""
        element_bytes = ELEMENT_BYTES[task.precision if self._settings.wire == "task" else self._settings.wire]
        return exchange_topology(self._card, task.topology), element_bytes

    def exchange_of(self, task: ShardingTask, compute_ms: Floats, loads: Floats) -> ExchangeTimes:
        """See `AdditiveCosts`."""
        links, element_bytes = self.all_to_all_links(task)
        all_to_all_ms = exchange_ms if self._settings.exchange == "flat" else two_step_ms
        transfer = all_to_all_ms(links, loads[..., COLUMNS], task.batch_size, element_bytes)
        sheet = sheet_topology(self._card, task.topology)  # rings get other shares of links than all-to-alls

        def reduce_scatter(among: Topology, input_bytes: Floats) -> Floats:
            return reduce_scatter_ms(part_of(sheet, among.num_devices), input_bytes)

        column_bytes = task.batch_size * element_bytes
        transfer = with_row_exchange_ms(links, transfer, loads, column_bytes, reduce_scatter)
        ids_ms = id_exchange_ms(links, loads, task.batch_size) if self._settings.ids else None
        return exchange_times(compute_ms, transfer, ids_hidden=not self._settings.ids, ids_ms=ids_ms)

    def replicas_ms(self, task: ShardingTask, loads: Floats, groups: int) -> Floats:
        """See `AdditiveCosts`: an all-reduce of all devices, and one of the same places of all groups."""
        links = sheet_topology(self._card, task.topology)
        gradients = loads[..., REPLICA_BYTES]
        found = np.where(gradients > 0, all_reduce_ms(links, gradients), 0.0)
        if groups > 1:
            weights = loads[..., GROUP_BYTES]
            peers = peers_of(links, task.num_devices // groups)
            found = found + np.where(weights > 0, all_reduce_ms(peers, weights), 0.0) / (task.group_sync_interval or 1)
        return np.asarray(found, dtype=np.float64)


class _UnlimitedGpu(AdditiveGpu):
    """The prices of a card whose cache holds all rows, where ids are sorted in one pass."""

    def describe(self, task: ShardingTask, keys: Sequence[ShardKey]) -> dict[str, Floats]:
        """See `AdditiveCosts`."""
        found = super().describe(task, keys)
        found["latents"][:, Work.ROWS] = 0.0
        return found


def card_of(task: ShardingTask) -> Card:
    """Return the card that a task's topology names; a device that is not a known GPU is an `InputError`."""
    device = task.topology.device
    if device not in CARDS:
        raise InputError(
            f"cost 'gpu': the task's device '{device}' is not one of {', '.join(CARDS)}: name a card, as in "
            "'gpu,hardware=h100'"
        )
    return CARDS[device]


def shard_sizes(
    shards: Sequence[tuple[EmbeddingTable, tuple[int, int], int]],
    batch_size: int,
    precision: Precision,
    optimizer: Optimizer,
    served: Floats | float = 1.0,
    senders: int = 1,
) -> ShardSizes:
    """Return the sizes of shards.

    A range of rows has the table's mix of popular and other rows, as many of them as it is expected to touch; and each
    is looked up as much more or less often than in the table as lookups of the range say.

    Args:
        shards: table, rows and columns of each; of rows the first and the one after the last.
        batch_size: samples over all devices.
        precision: precision of pooled rows, and of the weights of tables that do not say otherwise.
        optimizer: optimizer of tables that do not say otherwise; fused into the backward pass.
        served: share of the samples that a device looks up in each shard, shape (n,) or one for all.
        senders: devices that have the samples, each of which sends distinct ids of unpooled tables once; 1 where all
            ids are sent.
    """
    served = np.broadcast_to(served, len(shards))
    tables = [table for table, _, _ in shards]
    rows = np.array([stop - start for _, (start, stop), _ in shards], dtype=np.float64)
    columns = np.array([columns for _, _, columns in shards], dtype=np.float64)
    share = np.array([access_share(table, *of_rows) for table, of_rows, _ in shards])
    classes = [row_classes(table, batch_size, *of_rows) for table, of_rows, _ in shards]
    touched = np.stack([touched for touched, _ in classes])
    accesses = np.stack([accesses for _, accesses in classes])
    # A share s of the samples touches a row that all of them touch in n runs with probability 1 - (1 - s) ** n.
    some = served[:, None] < 1
    runs = np.maximum(accesses / np.array([[table.run_length] for table in tables]), 1.0)
    kept = np.where(some, -np.expm1(runs * np.log1p(-np.where(some, served[:, None], 0.5))), 1.0)
    pooled = np.array([table.is_pooled for table in tables])
    ids = batch_size * served * share * np.array([table.pooling_factor for table in tables])
    accesses = accesses * served[:, None] / kept
    for n in np.flatnonzero(~pooled).tolist() if senders > 1 else ():
        table, of_rows, _ = shards[n]
        ids[n] = served[n] * distinct_ids(table, batch_size, of_rows, senders)
        # By the same rule: of these devices, those look a row up whose samples touch it.
        per_row = senders * served[n] * -np.expm1(runs[n] * np.log1p(-1 / senders)) / kept[n]
        accesses[n] = matched(touched[n] * kept[n], np.maximum(per_row, 1.0), ids[n])
    states = np.array([OPTIMIZER_STATE[table.optimizer or optimizer] for table in tables])
    return ShardSizes(
        bags=batch_size * served * np.array([table.num_features for table in tables]),
        ids=ids,
        rows=rows,
        width_bytes=columns * np.array([ELEMENT_BYTES[table.precision or precision] for table in tables]),
        state_bytes=4.0 * (states[:, 0] * columns + states[:, 1]),
        output_bytes=columns * ELEMENT_BYTES[precision],
        touched=touched * kept,
        accesses=accesses,
        id_bytes=np.array([float(ID_BYTES + WEIGHT_BYTES * table.weighted) for table in tables]),
        pooled=pooled,
    )
