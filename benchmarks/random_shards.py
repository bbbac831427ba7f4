"""Random shards that `measurement.py` and `repeatability.py` measure. Not a script."""

from __future__ import annotations

import numpy as np

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.table import EmbeddingTable, ZipfIds

_WIDTHS = (4, 8, 16, 32, 64, 128)


def random_tables(count: int, max_rows: int, rng: np.random.Generator) -> list[EmbeddingTable]:
    """Return tables with 100 to `max_rows` rows, pooling factors 1 to 100 and Zipf ids, both log-uniform."""
    rows = np.exp(rng.uniform(np.log(100), np.log(max_rows), count)).astype(int)
    pooling = np.exp(rng.uniform(0, np.log(100), count))
    return [
        EmbeddingTable(f"t{i}", int(rows[i]), max(_WIDTHS), float(pooling[i]), ZipfIds(s=1.05, q=2.0))
        for i in range(count)
    ]


def random_shard_sets(
    count: int, tables: list[EmbeddingTable], batch_size: int, rng: np.random.Generator
) -> list[ShardSet]:
    """Return shard sets of 1 to 11 different tables, each at a width of 4 to 128."""
    shard_sets = []
    for _ in range(count):
        chosen = sorted(rng.choice(len(tables), size=rng.integers(1, 12), replace=False).tolist())
        shards = [ShardSpec(tables[i], (0, tables[i].num_embeddings), int(rng.choice(_WIDTHS))) for i in chosen]
        shard_sets.append(ShardSet(tuple(shards), batch_size, "fp32", "exact_sgd"))
    return shard_sets
