"""Which share of a table's lookups falls into a range of its rows."""

from __future__ import annotations

from shardgym.table import EmbeddingTable


def access_share(table: EmbeddingTable, start: int, stop: int) -> float:
    """Return the expected share of a table's lookups that fall into rows `start` to `stop`, the latter left out.

    Popular rows are scattered, so that a range of rows gets its fair share.
    """
    return (stop - start) / table.num_embeddings
