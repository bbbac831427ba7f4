"""Jobs of compute workers, and their answers. Both are pickled; nothing here loads torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardgym.arrays import Floats
from shardgym.errors import ShardGymError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.row_access import access_share
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision
from shardgym.tasks.task import OPTIMIZER_STATE, ShardingTask

#: Note on times that include waiting. The same for all, so that boards say it once.
HOST_WAITED = "the GPU waited for the host in timed steps: compute times include the wait"

_INDEX_BYTES = 8


class JobError(ShardGymError):
    """A job cannot be done on this device; the process can go on with the next one."""


class ShardSpec(NamedTuple):
    """A shard as the kernel sees it: only the number of its columns matters, not which they are."""

    table: EmbeddingTable
    rows: tuple[int, int]
    width: int

    @property
    def num_rows(self) -> int:
        """Rows of the shard."""
        return self.rows[1] - self.rows[0]

    @property
    def ids_per_sample(self) -> float:
        """Mean ids that fall into the shard."""
        return self.table.pooling_factor * access_share(self.table, *self.rows)

    @property
    def is_whole(self) -> bool:
        """Whether the shard has all rows of its table."""
        return self.rows == (0, self.table.num_embeddings)


class ShardSet(NamedTuple):
    """All that the compute time of one device depends on; equal sets are measured once."""

    shards: tuple[ShardSpec, ...]  #: at least one, in an order that does not depend on the plan
    batch_size: int  #: samples of one step over all devices; each device looks all of them up
    precision: Precision  #: of weights and pooled values
    optimizer: Optimizer  #: fused into the backward pass

    @classmethod
    def of(cls, task: ShardingTask, shards: Iterable[Shard]) -> ShardSet:
        """Return the set of a device that holds `shards`."""
        specs = (ShardSpec(task.table(s.table), s.rows, s.num_columns) for s in shards)
        return cls.in_order(specs, task.batch_size, task.precision, task.optimizer)

    @classmethod
    def in_order(
        cls, shards: Iterable[ShardSpec], batch_size: int, precision: Precision, optimizer: Optimizer
    ) -> ShardSet:
        """Return the set of shards that come in any order."""
        ordered = tuple(sorted(shards, key=lambda s: (s.table.name, s.rows, s.width)))
        return cls(ordered, batch_size, precision, optimizer)

    @property
    def width(self) -> int:
        """Columns of the pooled output."""
        return sum(shard.width for shard in self.shards)

    @property
    def num_weights(self) -> int:
        """Weights of all shards."""
        return sum(shard.num_rows * shard.width for shard in self.shards)

    @property
    def num_states(self) -> int:
        """Elements of optimiser state."""
        per_weight, per_row = OPTIMIZER_STATE[self.optimizer]
        return per_weight * self.num_weights + per_row * sum(shard.num_rows for shard in self.shards)

    def request_bytes(self, batches: int) -> int:
        """Bytes of the ids of this many batches."""
        ids = sum(shard.table.pooling_factor for shard in self.shards) + len(self.shards)
        return int(ids * self.batch_size * _INDEX_BYTES * batches)


def shard_sets(task: ShardingTask, plan: ShardingPlan) -> list[ShardSet | None]:
    """Return the shard set of each device, None where a device holds nothing, length D."""
    return [ShardSet.of(task, plan.on(d)) if plan.on(d) else None for d in range(task.num_devices)]


class TimingJob(NamedTuple):
    """One measurement of a shard set. Every step has ids of its own, the same ones in every job."""

    shard_set: ShardSet
    warmups: int  #: steps that are run and not reported
    iterations: int  #: steps that are reported


class ReferenceJob(NamedTuple):
    """A message to all ranks of complete steps: kernels that each of them times alone, while the others do the same."""

    of_ranks: tuple[tuple[TimingJob, ...], ...]  #: of each rank


class StepTimes(NamedTuple):
    """The answer to a `TimingJob`."""

    times: Floats  #: forward and backward in ms, shape (iterations, 2)
    notes: tuple[str, ...] = ()  #: caveats for a reader of the times
    #: What the host takes to launch the kernels of a step in ms, median, which is not part of `times`; 0 on CPUs.
    launch_ms: float = 0.0
