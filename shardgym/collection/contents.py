"""Which shard sets are measured: sample number i of a role, the same one whenever it is asked for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from shardgym.collection.placements import DIMS, UNIT, cut_in_two, draw_placed, whole_piece
from shardgym.collection.setup import OVERFULL, Role, Setup
from shardgym.collection.stream import Stream
from shardgym.collection.whole_plans import WholePlans
from shardgym.costs.fbgemm.content import Content, Piece
from shardgym.pools import TablePool, load_pool
from shardgym.records import canonical_json, sha256
from shardgym.table import EmbeddingTable
from shardgym.task import block_bytes

#: Shares of the kinds of draws: single tables, sets of any tables, nearly full devices, and devices of random
#: placements (the rest).
_SINGLE, _FREE, _FILLED = 0.12, 0.33, 0.15
_MAX_TABLES = 60
#: Shares of pieces that are cut by columns to an uneven width, of sets with row ranges, of twins in such sets.
_UNEVEN, _ROW_SETS, _ROW_PIECES, _TWINS = 0.15, 0.06, 0.5, 0.05


class ContentSampler:
    """Draws shard sets.

    The oracle's and the judge's sets come from the train half of the pool and are disjoint: which of the two may have a
    set follows from its digest. Test sets, and the devices of complete plans, come from the test half.

    Args:
        setup: pool, sizes and limits.
        seed: of all draws.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self._setup, self._seed = setup, seed
        self._limit = int(OVERFULL * setup.memory_bytes)

    def content(self, role: Role, number: int) -> Content:
        """Return the shard set of a sample."""
        if role == "plans":
            return self._content(self._plans.pieces(number))
        rng = Stream(self._seed, "compute", role, number)
        while True:
            content = self._within_limits(self._draw(rng, self.half(role).tables))
            if content is not None and may_have(role, content_digest(content)):
                return content

    def half(self, role: Role) -> TablePool:
        """Return the tables that samples of a role are drawn from."""
        train, test = self._halves
        return train if role in ("oracle", "judge") else test

    @functools.cached_property
    def _halves(self) -> tuple[TablePool, TablePool]:
        train, test = load_pool(self._setup.pool).split()
        return train.scaled(self._setup.scale), test.scaled(self._setup.scale)

    @functools.cached_property
    def _plans(self) -> WholePlans:
        setup = self._setup
        return WholePlans(self._halves[1].tables, setup.memory_bytes, setup.precision, setup.optimizer, self._seed)

    def _draw(self, rng: Stream, tables: Sequence[EmbeddingTable]) -> list[Piece]:
        kind = rng.uniform()
        if kind < _SINGLE:
            return _draw_free(rng, tables, 1)
        if kind < _SINGLE + _FREE:
            return _draw_free(rng, tables, rng.log_whole(1, min(_MAX_TABLES, len(tables))))
        if kind < _SINGLE + _FREE + _FILLED:
            return self._fill(_draw_free(rng, tables, min(_MAX_TABLES, len(tables))), rng.uniform(0.2, OVERFULL))
        return draw_placed(rng, tables)

    def _fill(self, pieces: Sequence[Piece], share: float) -> list[Piece]:
        """Return the first pieces, until they take this share of a device's memory."""
        sizes = itertools.accumulate(map(self._bytes, pieces))
        enough = int(share * self._setup.memory_bytes)
        return [piece for piece, total in zip(pieces, sizes, strict=True) if total <= enough] or list(pieces[:1])

    def _bytes(self, piece: Piece) -> int:
        return block_bytes(piece.num_rows, piece.width, self._setup.precision, self._setup.optimizer)

    def _within_limits(self, pieces: Sequence[Piece]) -> Content | None:
        """Leave out pieces that do not fit any more; None when none is left."""
        free, kept = self._limit, []
        for piece in pieces[:_MAX_TABLES]:
            size = self._bytes(piece)
            if size <= free:
                free -= size
                kept.append(piece)
        return self._content(kept) if kept else None

    def _content(self, pieces: Sequence[Piece]) -> Content:
        ordered = tuple(sorted(pieces, key=lambda p: (p.table.name, p.rows, p.width)))
        return Content(ordered, self._halves[0].batch_size, self._setup.precision, self._setup.optimizer)


def _draw_free(rng: Stream, tables: Sequence[EmbeddingTable], count: int) -> list[Piece]:
    """Draw any tables up to a random width, at times with column cuts, twins of one table, and row ranges."""
    dims = DIMS[: rng.whole(1, len(DIMS))]
    rows = rng.chance(_ROW_SETS)
    pieces: list[Piece] = []
    for table in rng.sample(tables, count):
        width = rng.choice(dims)
        if width > UNIT and rng.chance(_UNEVEN):
            width, other = cut_in_two(rng, width)
            if len(pieces) + 1 < count and rng.chance(_TWINS):
                pieces.append(whole_piece(table, other))
        piece = whole_piece(table, width)
        pieces.append(_row_range(rng, piece) if rows and rng.chance(_ROW_PIECES) else piece)
    return pieces[:count]


def _row_range(rng: Stream, piece: Piece) -> Piece:
    """Return a range of rows, from a sixteenth of the table to nearly all of it."""
    rows = piece.num_rows
    length = max(1, int(rows * 16 ** (-rng.uniform())))
    first = rng.whole(0, rows - length)
    return piece._replace(rows=(first, first + length))


def content_digest(content: Content) -> str:
    """Return the identity of a shard set: tables by name, rows and widths, batch, precision and optimiser."""
    pieces = [[p.table.name, p.table.num_embeddings, *p.rows, p.width] for p in content.pieces]
    return sha256(canonical_json([pieces, content.batch_size, content.precision, content.optimizer]))


#: Of 7 sets, 5 may be the oracle's and 2 the judge's: about the ratio in which they are collected.
_PARTS, _ORACLE_PARTS = 7, 5


def may_have(role: Role, digest: str) -> bool:
    """Say whether a sample of this digest may belong to `role`, so that oracle and judge never share one."""
    if role not in ("oracle", "judge"):
        return True
    return (int(digest[:8], 16) % _PARTS < _ORACLE_PARTS) == (role == "oracle")
