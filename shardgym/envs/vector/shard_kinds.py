"""ShardKinds: figures and features of tables and of all that they can be halved into, as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardgym.arrays import GrowingArrays, Ints
from shardgym.envs.figures import Figures
from shardgym.envs.observation import ObservationBuilder
from shardgym.envs.observation_space import TABLE_FEATURES
from shardgym.envs.shards import SplitLimits, WaitingShard
from shardgym.plan import COLUMN_UNIT, Shard
from shardgym.table import EmbeddingTable

#: The kind of shard that stands for "none is left": it fits on no device.
NOTHING = 0
_FITS_NOWHERE = 2**62

_FIGURES = ("size", "width", "lookups", "key", "table", "position")


class ShardKinds(GrowingArrays):
    """Kinds of shards: a table and a width each. The first one is `NOTHING`.

    `size`, `width`, `lookups`, `key`, `table` and `position` are those of `WaitingShard`. `half` is the kind of the
    halves, -1 where it is not to be halved; `rank`: of the table's name among those of its task; `name`: of the table;
    `features`: as observed; `width_share`: of the table.

    Args:
        limits: how often shards may be halved.
    """

    def __init__(self, limits: SplitLimits) -> None:
        ints, floats = ((), np.int64), ((), np.float64)
        super().__init__(
            size=ints, width=ints, lookups=floats, key=floats, table=ints, position=ints, half=ints, rank=ints,
            name=((), np.object_), features=((len(TABLE_FEATURES),), np.float32), width_share=floats,
        )  # fmt: skip
        self._limits = limits
        self._leftmost: list[WaitingShard] = []
        self._tables: list[EmbeddingTable | None] = []
        nothing = WaitingShard(-1, -1, 0, 0, _FITS_NOWHERE, 0.0, 0.0)
        features = np.zeros((1, len(TABLE_FEATURES)), np.float32)
        self._enter([nothing], [None], half=[-1], rank=[-1], name=[""], features=features, width_share=[0.0])

    def add(self, figures: Figures, builder: ObservationBuilder) -> Ints:
        """Add the tables of a task and their parts, and return the kinds of whole tables as they come up."""
        families = [list(self._family(figures, shard)) for shard in figures.shards]
        sizes = np.array([len(family) for family in families])
        shards, first = list(itertools.chain.from_iterable(families)), len(self)
        half = np.arange(first + 1, first + 1 + len(shards))
        half[np.cumsum(sizes) - 1] = -1
        tables = [figures.task.tables[shard.position] for shard in shards]
        rank = {name: number for number, name in enumerate(sorted({table.name for table in tables}))}
        self._enter(
            shards, tables, half=half, rank=[rank[table.name] for table in tables],
            name=[table.name for table in tables], features=[builder.features_of(shard) for shard in shards],
            width_share=[shard.width / figures.dims[shard.table] for shard in shards],
        )  # fmt: skip
        return np.asarray(first + np.cumsum(sizes) - sizes, dtype=np.int64)

    def waiting(self, kind: int, start: int) -> WaitingShard:
        """Return the shard of a kind that begins at this column."""
        return self._leftmost[kind]._replace(start=start)

    def shard(self, kind: int, start: int, device: int) -> Shard:
        """Return the shard of a kind that begins at this column, on a device."""
        table, width = self._tables[kind], self._leftmost[kind].width
        assert table is not None
        return Shard(table.name, (0, table.num_embeddings), (start, start + width), device)

    def _family(self, figures: Figures, shard: WaitingShard) -> Iterator[WaitingShard]:
        """Yield a table whole, halved, halved again and so on."""
        most, of_table = self._limits.per_episode, self._limits.per_table
        yield shard
        for _ in range(most if of_table is None else min(most, of_table)):
            if shard.width % (2 * COLUMN_UNIT):
                return
            shard = shard.halves(figures.task, figures.order)[0]
            yield shard

    def _enter(self, shards: list[WaitingShard], tables: Sequence[EmbeddingTable | None], **more: Any) -> None:
        self.append(**{name: [getattr(shard, name) for shard in shards] for name in _FIGURES}, **more)
        self._leftmost += shards
        self._tables += tables
