"""What the devices of complete random plans hold: the cost of plans, for checking simulators."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shardgym.collection.placements import DIMS, whole_piece
from shardgym.collection.stream import Stream
from shardgym.costs.fbgemm.content import Piece
from shardgym.table import EmbeddingTable
from shardgym.task import Optimizer, Precision, block_bytes

#: Every plan is for so many devices, and so many plans are for the same tables.
DEVICES, PLANS_PER_TASK = 4, 20

#: Tables of a task, as in the suites for four devices.
_TABLES = (10, 59)
#: Trial plans of a task's tables, of which a quarter must fit into memory.
_TRIALS = 40


class WholePlans:
    """Draws complete table-wise plans whose devices all hold something and have the memory for it.

    Sample number i is device `i % DEVICES` of plan `i // DEVICES`. Plans are from balanced to lopsided.

    Args:
        tables: that tasks are drawn from.
        memory_bytes: of a device.
        precision: of weights.
        optimizer: whose state counts.
        seed: of all draws.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], memory_bytes: int, precision: Precision, optimizer: Optimizer,
        seed: int,
    ) -> None:  # fmt: skip
        self._tables, self._memory, self._kind, self._seed = tables, memory_bytes, (precision, optimizer), seed

    def pieces(self, number: int) -> list[Piece]:
        """Return what the device of a sample holds."""
        return self._plan(number // DEVICES)[number % DEVICES]

    @functools.lru_cache(maxsize=8)  # noqa: B019  (lives as long as one collection)
    def _plan(self, plan: int) -> list[list[Piece]]:
        pieces = self._task(plan // PLANS_PER_TASK)
        rng = Stream(self._seed, "plan", plan)
        while True:
            held = _scatter(rng, pieces)
            if self._fits(held):
                return held

    def _task(self, task: int) -> list[Piece]:
        """Return the tables of a task that random plans of any balance have the memory for."""
        rng = Stream(self._seed, "plan task", task)
        while True:
            dims = DIMS[: rng.whole(1, len(DIMS))]
            chosen = rng.sample(self._tables, min(len(self._tables), rng.whole(*_TABLES)))
            pieces = [whole_piece(table, rng.choice(dims)) for table in chosen]
            fitting = sum(self._fits(_scatter(rng, pieces)) for _ in range(_TRIALS))
            if fitting > _TRIALS // 4:
                return pieces

    def _fits(self, held: Sequence[Sequence[Piece]]) -> bool:
        return all(pieces and self._bytes(pieces) <= self._memory for pieces in held)

    def _bytes(self, pieces: Sequence[Piece]) -> int:
        return sum(block_bytes(piece.num_rows, piece.width, *self._kind) for piece in pieces)


def _scatter(rng: Stream, pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Put every piece on a random device; how unevenly devices are preferred is random too."""
    weights = [rng.uniform(0.3, 1.0) for _ in range(DEVICES)]
    held: list[list[Piece]] = [[] for _ in range(DEVICES)]
    for piece in pieces:
        share = rng.uniform(0.0, sum(weights))
        for device, weight in enumerate(weights):
            share -= weight
            if share <= 0 or device == DEVICES - 1:
                held[device].append(piece)
                break
    return held
