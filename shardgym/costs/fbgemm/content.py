"""What one device holds, reduced to what its compute time depends on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from shardgym.plan import Shard, ShardingPlan
from shardgym.table import EmbeddingTable
from shardgym.task import OPTIMIZER_STATE, Optimizer, Precision, ShardingTask

_INDEX_BYTES = 8


class Piece(NamedTuple):
    """A shard as the kernel sees it: which columns does not matter, how many does."""

    table: EmbeddingTable
    rows: tuple[int, int]
    width: int

    @property
    def num_rows(self) -> int:
        """Rows of the piece."""
        return self.rows[1] - self.rows[0]

    @property
    def is_whole(self) -> bool:
        """Whether the piece has all rows of its table."""
        return self.rows == (0, self.table.num_embeddings)


class Content(NamedTuple):
    """Everything that the compute time of one device depends on; equal contents are measured once.

    Attributes:
        pieces: at least one, in an order that does not depend on the plan.
        batch_size: samples of one step over all devices; each device looks all of them up.
        precision: of weights and pooled values.
        optimizer: fused into the backward pass.
    """

    pieces: tuple[Piece, ...]
    batch_size: int
    precision: Precision
    optimizer: Optimizer

    @property
    def width(self) -> int:
        """Columns of the pooled output."""
        return sum(piece.width for piece in self.pieces)

    @property
    def num_weights(self) -> int:
        """Weights of all pieces."""
        return sum(piece.num_rows * piece.width for piece in self.pieces)

    @property
    def num_states(self) -> int:
        """Elements of optimiser state."""
        per_weight, per_row = OPTIMIZER_STATE[self.optimizer]
        return per_weight * self.num_weights + per_row * sum(piece.num_rows for piece in self.pieces)

    def request_bytes(self, batches: int) -> int:
        """Bytes of the ids of so many batches."""
        ids = sum(piece.table.pooling_factor for piece in self.pieces) + len(self.pieces)
        return int(ids * self.batch_size * _INDEX_BYTES * batches)


def content_of(task: ShardingTask, shards: Iterable[Shard]) -> Content:
    """Return the content of a device that holds `shards`."""
    pieces = (Piece(task.table(s.table), s.rows, s.num_columns) for s in shards)
    ordered = tuple(sorted(pieces, key=lambda p: (p.table.name, p.rows, p.width)))
    return Content(ordered, task.batch_size, task.precision, task.optimizer)


def contents_of(task: ShardingTask, plan: ShardingPlan) -> list[Content | None]:
    """Return the content of each device, None where a device holds nothing, length D."""
    return [content_of(task, plan.on(d)) if plan.on(d) else None for d in range(task.num_devices)]
