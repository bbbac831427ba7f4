"""The synthetic pool: 856 made-up tables that together behave like the dlrm_datasets 2021 file.

Published of that file (`embedding_bag/2021/locality_stats.txt`) are totals over its 856 tables at batch 65,536: ids,
distinct rows, and both reuse histograms. The ids of this pool, drawn with `draw_bags`, match them
(`shardgym.pools.check` holds figures and tolerances). Nothing is published per table, so the following is our choice:

- Rows are log-normal up to 20 million, a tenth of the tables being small vocabularies from 100 rows; the mean is 1.3
  million. That lets the NeuroShard protocol (10 to 59 tables, widths up to 128, at most 15 GiB in FP32 on four
  devices of 4 GiB) find a task in a few draws, and memory binds: 29 tables exceed a device at width 128.
- Half of the tables are single-valued features that some samples lack (pooling factor around 0.7), the others
  multi-valued with a log-normal pooling factor up to about 200; larger tables tend to have more. The mean is 15.8, as
  published.
- Every table has its own skew. Exponents s (around 1.1) and shifts q (from 0 to half of the rows) were drawn at
  random and drawn anew, table by table, until the totals matched.

Widths are not part of that file: `embedding_dim` is a placeholder of 16, suites draw their own. The reuse histograms
are those of one real draw at batch 65,536. `tools/synthetic_pool/calibrate.py` made the data.
"""

from __future__ import annotations

import csv
import functools
from importlib import resources

from shardgym.ids.distribution import ZipfIds
from shardgym.table import REUSE_BINS, EmbeddingTable

#: Width of every table until a suite draws one.
PLACEHOLDER_DIM = 16

#: File of the package that holds one table per line.
DATA_FILE = "synthetic-2021.csv"

BIN_COLUMNS = tuple(f"bin_{i}" for i in range(REUSE_BINS))
COLUMNS = ("name", "num_embeddings", "pooling_factor", "s", "q", *BIN_COLUMNS)


@functools.lru_cache(maxsize=1)
def synthetic_tables() -> tuple[EmbeddingTable, ...]:
    """Return the 856 tables, in an order that carries no information."""
    data = resources.files("shardgym.pools").joinpath("data", DATA_FILE)
    with data.open(encoding="utf-8") as lines:
        return tuple(table_of_row(row) for row in csv.DictReader(lines))


def table_of_row(row: dict[str, str]) -> EmbeddingTable:
    """Build a table from one line of the data file."""
    return EmbeddingTable(
        name=row["name"],
        num_embeddings=int(row["num_embeddings"]),
        embedding_dim=PLACEHOLDER_DIM,
        pooling_factor=float(row["pooling_factor"]),
        ids=ZipfIds(s=float(row["s"]), q=float(row["q"]), lengths="poisson"),
        reuse_histogram=tuple(float(row[column]) for column in BIN_COLUMNS),
    )
