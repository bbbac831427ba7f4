"""Streams that are drawn from what tables say of their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardgym.arguments import check_int, check_list
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import EmbeddingTable, check_distinct_names


class DrawnStream(IdStream):
    """Ids of tables by `draw_bags`, batch after batch.

    Args:
        tables: each is a feature, with its name.
        samples: of the stream.
        seed: of the draws.

    Raises:
        InputError: an argument is none of these, or two tables have the same name.
    """

    def __init__(self, tables: Sequence[EmbeddingTable], samples: int, seed: int = 0) -> None:
        self._tables = {table.name: table for table in check_list("tables", tables, "tables")}
        check_distinct_names(tables)
        self.name = "drawn ids"
        self.features = tuple(self._tables)
        self._samples = check_int("samples", samples, 1)
        self._seed = check_int("seed", seed)

    def batches(self, batch_size: int, features: Sequence[str] | None = None) -> Iterator[dict[str, Bags]]:
        """Yield whole batches, ids by feature; see `IdStream`. Batches of another size have other ids."""
        tables = [self._tables[feature] for feature in self.checked(features)]
        for batch in range(self._samples // batch_size):
            yield {table.name: draw_bags(table, batch_size, seed=self._seed, batch=batch) for table in tables}

    def rows(self, features: Sequence[str] | None = None) -> dict[str, int]:
        """Return the rows of tables."""
        return {feature: self._tables[feature].num_embeddings for feature in self.checked(features)}
