"""What each device looks up in complete steps, by how its outputs are exchanged.

TorchRec runs a fused operator and a set of exchanges for each of these ways, and so does `plan_on_rank.py`:

- what is whole in its rows goes by an all-to-all;
- partial sums of tables cut by rows are added up by a reduce-scatter of all devices;
- those of tables that one fast domain of several has all rows of are added up inside of it, and sent from there;
- replicas look up their own samples, and exchange gradients instead.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.shard_keys import plan_keys
from shardgym.plan import ShardingPlan
from shardgym.shard import Shard
from shardgym.task import ShardingTask


class Sums(NamedTuple):
    """Shards of one device that pool parts of columns, and where these go among the columns that are added up.

    Attributes:
        shards: None where the device has none and puts in zeros.
        begins: first column of each shard among those added up.
        width: columns that are added up.
    """

    shards: ShardSet | None
    begins: tuple[int, ...]
    width: int


class StepPlan(NamedTuple):
    """A plan as ranks need it; D devices.

    Attributes:
        whole: shards with all rows of their tables, None where a device has none, length D.
        rows: shards of tables whose rows any devices have, length D; empty if there are none.
        domain_rows: shards of tables whose rows one fast domain has, length D; empty if there are none. The columns
            added up are those of the device's domain.
        replicas: shards that every device holds; None if there are none.
        domain_size: devices of a fast domain.
    """

    whole: tuple[ShardSet | None, ...]
    rows: tuple[Sums, ...] = ()
    domain_rows: tuple[Sums, ...] = ()
    replicas: Sums | None = None
    domain_size: int = 1

    @classmethod
    def of(cls, task: ShardingTask, plan: ShardingPlan) -> StepPlan:
        """Return how the shards of a feasible plan without groups and tiers are exchanged."""
        whole: list[Shard] = []
        rows: list[Shard] = []
        domain_rows: list[Shard] = []
        replicas: list[Shard] = []
        for shard, key in zip(plan.shards, plan_keys(task, plan), strict=True):
            if key.served == 1:
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
        for held in (self.whole[device], *(sums[device].shards for sums in (self.rows, self.domain_rows) if sums)):
            if held is not None:
                yield held

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
        """Columns that devices pool for the whole batch, all together; zeros and partial sums count."""
        sums = (*self.rows, *self.domain_rows, *([] if self.replicas is None else [self.replicas]))
        return sum(held.width for held in self.whole if held is not None) + sum(part.width for part in sums)


def _on(shards: Sequence[Shard], device: int) -> list[Shard]:
    return [shard for shard in shards if device in shard.devices]


def _sums(task: ShardingTask, own: Sequence[Shard], together: Sequence[Shard]) -> Sums:
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
    return Sums(ShardSet.of(task, ordered) if ordered else None, tuple(begins[shard] for shard in ordered), width)
