"""What each device looks up in complete steps, by how its outputs are exchanged.

TorchRec runs a fused operator and a set of exchanges for each of these ways, and so does `plan_on_rank.py`:

- what is whole in its rows goes by an all-to-all;
- partial sums of tables cut by rows are added up by a reduce-scatter of all devices;
- those of tables that one fast domain of several has all rows of are added up inside of it, and sent from there;
- replicas look up their own samples, and exchange gradients instead;
- rows of unpooled tables go by an all-to-all for those of whole tables, one for tables cut by columns and one for those
  cut by rows, all under way at once. A kernel puts out rows of one width.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.shard_keys import plan_keys
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class StepClock(Protocol):
    """Hears of each part of a step when it is done."""

    def work(self, part: str) -> None:
        """End a part in which this rank worked alone."""

    def exchange(
        self, part: str, run: Callable[[], object], sent_bytes: Sequence[int], group: ProcessGroup | None = None
    ) -> None:
        """Run an exchange of a group, or of all ranks, in which this rank sends these bytes to every rank."""


class Part(NamedTuple):
    """Shards of one device that are looked up together, and where their columns go.

    These are columns that are added up with those of other devices; or those of the table, of unpooled ones.
    """

    shards: ShardSet | None  #: None where the device has none
    begins: tuple[int, ...]  #: first column of each shard
    width: int  #: columns that are added up, or those of each unpooled shard


class StepPlan(NamedTuple):
    """A plan as ranks need it; D devices."""

    whole: tuple[ShardSet | None, ...]  #: shards with all rows of their tables, None where a device has none, length D
    rows: tuple[Part, ...] = ()  #: shards of tables whose rows any devices have, length D; empty if there are none
    #: Shards of tables whose rows one fast domain has, likewise; the columns added up are those of the device's domain.
    domain_rows: tuple[Part, ...] = ()
    replicas: Part | None = None  #: shards that every device holds; None if there are none
    domain_size: int = 1  #: devices of a fast domain
    #: Shards of unpooled tables by what is exchanged together: whole tables, tables cut by columns, tables cut by rows.
    #: In each those of one width and whole in their rows, or not, are together, length D.
    unpooled: tuple[tuple[tuple[Part, ...], ...], ...] = ()

    @classmethod
    def of(cls, task: ShardingTask, plan: ShardingPlan) -> StepPlan:
        """Return how the shards of a feasible plan without groups and tiers are exchanged."""
        whole: list[Shard] = []
        rows: list[Shard] = []
        domain_rows: list[Shard] = []
        replicas: list[Shard] = []
        unpooled: list[Shard] = []
        for shard, key in zip(plan.shards, plan_keys(task, plan), strict=True):
            if not task.table(key.table).is_pooled:
                unpooled.append(shard)
            elif key.served == 1:
                replicas.append(shard)
            elif key.rows == task.table(key.table).num_embeddings:
                whole.append(shard)
            else:
                (domain_rows if key.in_domain else rows).append(shard)
        devices = range(task.num_devices)
        size = task.topology.fast_domain_size
        of_domain = {d // size: [s for s in domain_rows if s.devices[0] // size == d // size] for d in devices}
        return cls(
            tuple(ShardSet.of(task, held) if (held := _on(whole, d)) else None for d in devices),
            tuple(_sums(task, _on(rows, d), rows) for d in devices) if rows else (),
            tuple(_sums(task, _on(domain_rows, d), of_domain[d // size]) for d in devices) if domain_rows else (),
            _sums(task, replicas, replicas) if replicas else None,
            size,
            tuple(_of_widths(task, together) for together in _exchanged_together(task, unpooled)),
        )

    @property
    def num_devices(self) -> int:
        """D."""
        return len(self.whole)

    @property
    def has_whole(self) -> bool:
        """Whether any device has a shard with all rows of its table."""
        return any(held is not None for held in self.whole)

    def exchanged(self, device: int) -> Iterator[ShardSet]:
        """Yield the shard sets of a device that look up ids of all samples, in the order of the attributes."""
        pooled = (self.whole[device], *(sums[device].shards for sums in (self.rows, self.domain_rows) if sums))
        for held in (*pooled, *(of_devices[device].shards for of_devices in itertools.chain(*self.unpooled))):
            if held is not None:
                yield held

    @property
    def unpooled_tables(self) -> list[EmbeddingTable]:
        """Tables that put out a row for each id."""
        of_devices = itertools.chain(*self.unpooled)
        held = [rows.shards for rows in itertools.chain(*of_devices) if rows.shards is not None]
        return list({shard.table.name: shard.table for of in held for shard in of.shards}.values())

    def replicated(self) -> Iterator[ShardSet]:
        """Yield the shard set that every device holds for its own samples, if there is one."""
        if self.replicas is not None and self.replicas.shards is not None:
            yield self.replicas.shards

    @property
    def example(self) -> ShardSet:
        """Any shard set: they have batch, precision and optimiser in common."""
        exchanged = (held for device in range(self.num_devices) for held in self.exchanged(device))
        return next(itertools.chain(exchanged, self.replicated()))

    @property
    def pooled_columns(self) -> int:
        """Columns that devices put out for the whole batch, zeros and partial sums too; an unpooled one for each id."""
        sums = (*self.rows, *self.domain_rows, *([] if self.replicas is None else [self.replicas]))
        unpooled = [
            math.ceil(shard.width * shard.ids_per_sample)
            for of_devices in itertools.chain(*self.unpooled)
            for held in of_devices if held.shards is not None
            for shard in held.shards.shards
        ]  # fmt: skip
        pooled = sum(held.width for held in self.whole if held is not None) + sum(part.width for part in sums)
        return pooled + sum(unpooled)


def _on(shards: Sequence[Shard], device: int) -> list[Shard]:
    return [shard for shard in shards if device in shard.devices]


def _exchanged_together(task: ShardingTask, unpooled: Sequence[Shard]) -> list[list[Shard]]:
    """Return shards of whole tables, of tables cut by columns, and of those cut by rows; TorchRec's sharding types."""
    held: dict[str, list[Shard]] = {}
    for shard in unpooled:
        held.setdefault(shard.table, []).append(shard)
    by_type: tuple[list[Shard], ...] = ([], [], [])
    for name, shards in held.items():
        by_rows = any(shard.num_rows < task.table(name).num_embeddings for shard in shards)
        by_type[2 if by_rows else len(shards) > 1].extend(shards)
    return [shards for shards in by_type if shards]


def _of_widths(task: ShardingTask, shards: Sequence[Shard]) -> tuple[tuple[Part, ...], ...]:
    """Return unpooled shards by width, whole in their rows or cut apart, and by device."""
    alike: dict[tuple[bool, int], list[Shard]] = {}
    for shard in shards:
        is_whole = shard.num_rows == task.table(shard.table).num_embeddings
        alike.setdefault((is_whole, shard.num_columns), []).append(shard)
    devices = range(task.num_devices)
    return tuple(tuple(_rows(task, _on(alike[kind], d), kind[1]) for d in devices) for kind in sorted(alike))


def _rows(task: ShardingTask, own: Sequence[Shard], width: int) -> Part:
    """Return the unpooled shards of a device, of one width."""
    # As shard sets order them.
    ordered = sorted(own, key=lambda shard: (shard.table, shard.rows, shard.num_columns))
    return Part(ShardSet.of(task, ordered) if ordered else None, tuple(s.columns[0] for s in ordered), width)


def _sums(task: ShardingTask, own: Sequence[Shard], together: Sequence[Shard]) -> Part:
    """Return the shards of a device among those that are added up together."""
    begins: dict[Shard, int] = {}
    width = 0
    table = ""
    end = 0
    skipped = 0  # columns of the table that nobody adds up, minus those of tables before
    for shard in sorted(together, key=operator.attrgetter("table", "columns")):
        first, last = shard.columns
        if shard.table != table or first > end:
            table, end, skipped = shard.table, first, first - width
        begins[shard] = first - skipped
        width += max(0, last - end)
        end = max(end, last)
    # As shard sets order them.
    ordered = sorted(own, key=lambda shard: (shard.table, shard.rows, shard.num_columns))
    return Part(ShardSet.of(task, ordered) if ordered else None, tuple(begins[shard] for shard in ordered), width)
