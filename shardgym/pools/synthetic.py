"""The synthetic pool: 856 made-up tables that together behave like the dlrm_datasets 2021 file.

Published of that file (`embedding_bag/2021/locality_stats.txt`) are totals over its 856 tables at batch 65,536: ids,
distinct rows, and both reuse histograms. The ids of this pool, drawn with `draw_bags`, match them (`check_pool`).
Nothing is published per table, so the following is our choice:

- Rows are log-normal up to 20 million, a tenth of the tables being small vocabularies from 100 rows; the mean is 1.3
  million. That lets the NeuroShard protocol (10 to 59 tables, widths up to 128, at most 15 GiB in FP32 on four
  devices of 4 GiB) find a task in a few draws, and memory binds: 29 tables exceed a device at width 128.
- Half of the tables are single-valued features that some samples lack (pooling factor around 0.7), the others
  multi-valued with a log-normal pooling factor up to about 200; larger tables tend to have more. The mean is 15.8, as
  published.
- Every table has its own skew. Exponents s (around 1.1) and shifts q (from 0 to half of the rows) were drawn at
  random and drawn anew, table by table, until the totals matched.

Widths are not part of that file: `embedding_dim` is a placeholder of 16, suites draw their own. The reuse histograms
are those of one real draw at batch 65,536. `tools/calibrate_synthetic_pool.py` made the data.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any

from tabulate import tabulate

from shardgym.errors import InputError
from shardgym.ids import ReuseCounts, draw_bags
from shardgym.table import REUSE_BINS, EmbeddingTable, ZipfIds

#: Width of every table until a suite draws one.
PLACEHOLDER_DIM = 16

#: File of the package that holds one table per line.
DATA_FILE = "synthetic-2021.csv"

BIN_COLUMNS = tuple(f"bin_{i}" for i in range(REUSE_BINS))
COLUMNS = ("name", "num_embeddings", "pooling_factor", "s", "q", *BIN_COLUMNS)

#: Largest deviations of `check_pool`: relative for the totals, absolute for the share of a bin.
IDS_TOLERANCE = 0.01
DISTINCT_ROWS_TOLERANCE = 0.02
SHARE_TOLERANCE = 0.01


@functools.lru_cache(maxsize=1)
def synthetic_tables() -> tuple[EmbeddingTable, ...]:
    """Return the 856 tables, in an order that carries no information."""
    data = resources.files("shardgym.pools").joinpath("data", DATA_FILE)
    with data.open(encoding="utf-8") as lines:
        return tuple(
            EmbeddingTable(
                name=row["name"],
                num_embeddings=int(row["num_embeddings"]),
                embedding_dim=PLACEHOLDER_DIM,
                pooling_factor=float(row["pooling_factor"]),
                ids=ZipfIds(s=float(row["s"]), q=float(row["q"]), lengths="poisson"),
                reuse_histogram=tuple(float(row[column]) for column in BIN_COLUMNS),
            )
            for row in csv.DictReader(lines)
        )


@dataclass(frozen=True)
class PoolStatistics:
    """Statistics of one batch of all tables of a pool.

    Attributes:
        num_tables: tables in the pool.
        batch_size: samples.
        ids: ids in all tables.
        distinct_rows: distinct rows in all tables.
        row_shares: share of the distinct rows per reuse bin, shape (17,); the bins of `EmbeddingTable.reuse_histogram`.
        access_shares: share of the ids per reuse bin of their row, shape (17,).
    """

    num_tables: int
    batch_size: int
    ids: int
    distinct_rows: int
    row_shares: tuple[float, ...]
    access_shares: tuple[float, ...]


#: github.com/facebookresearch/dlrm_datasets, embedding_bag/2021/locality_stats.txt, file fbgemm_t856_bs65536.pt.
#: Shares are published with three decimals.
PUBLISHED_2021 = PoolStatistics(
    num_tables=856,
    batch_size=65_536,
    ids=887_017_990,
    distinct_rows=128_435_723,
    row_shares=(0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001, *[0.0] * 7),
    access_shares=(
        *(0.069, 0.044, 0.068, 0.101, 0.121, 0.104, 0.073, 0.058, 0.052),
        *(0.050, 0.049, 0.048, 0.048, 0.043, 0.031, 0.023, 0.019),
    ),
)


@dataclass(frozen=True)
class StatisticCheck:
    """One published statistic next to the measured one.

    Attributes:
        name: of the statistic.
        published: the published value.
        measured: the value of the drawn ids.
        tolerance: largest deviation that passes, in the unit of the statistic.
    """

    name: str
    published: float
    measured: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the statistic is within its tolerance."""
        return abs(self.measured - self.published) <= self.tolerance


@dataclass(frozen=True)
class PoolCheck:
    """Outcome of a pool check.

    Attributes:
        rows: one per published statistic.
    """

    rows: tuple[StatisticCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether every statistic is within its tolerance."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON-ready lists and dictionaries."""
        return {"ok": self.ok, "rows": [{**asdict(row), "ok": row.ok} for row in self.rows]}

    def table(self) -> str:
        """Return published and measured values side by side, as a table in plain text."""
        cells = []
        for row in self.rows:
            values = (row.published, row.measured, row.tolerance)
            numbers = [f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4f}" for x in values]
            cells.append([row.name, *numbers, "ok" if row.ok else "OFF"])
        headers = ("statistic", "published", "measured", "tolerance", "")
        align = ("left", "right", "right", "right", "left")
        return tabulate(cells, headers=headers, tablefmt="simple", colalign=align, disable_numparse=True)


def check_pool(
    tables: Sequence[EmbeddingTable],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    published: PoolStatistics = PUBLISHED_2021,
) -> PoolCheck:
    """Draw one batch of every table and compare it with published statistics.

    Args:
        tables: all tables of the pool.
        seed: seed of the draw.
        progress: called after every table with (tables done, tables in all).
        published: what to compare with; its batch size is drawn.

    Raises:
        InputError: `tables` is not a whole pool, which is all that statistics are published of.
    """
    if len(tables) != published.num_tables:
        raise InputError(
            f"the pool check compares a whole pool of {published.num_tables} tables with published totals, "
            f"got {len(tables)}: check the pool, not a part of it"
        )
    return compare(measure_pool(tables, published.batch_size, seed=seed, progress=progress), published)


def measure_pool(
    tables: Sequence[EmbeddingTable],
    batch_size: int,
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> PoolStatistics:
    """Draw batch 0 of every table, one table at a time, and count.

    Raises:
        InputError: recorded ids of a table cannot be found or hold fewer samples.
    """
    counts = ReuseCounts()
    for done, table in enumerate(tables, start=1):
        counts.add(ReuseCounts.of(draw_bags(table, batch_size, seed=seed).indices))
        if progress is not None:
            progress(done, len(tables))
    return PoolStatistics(
        num_tables=len(tables),
        batch_size=batch_size,
        ids=int(counts.accesses.sum()),
        distinct_rows=int(counts.rows.sum()),
        row_shares=counts.row_shares(),
        access_shares=counts.access_shares(),
    )


def compare(measured: PoolStatistics, published: PoolStatistics) -> PoolCheck:
    """Compare measured with published statistics: two totals and two histograms."""
    rows_tolerance = DISTINCT_ROWS_TOLERANCE * published.distinct_rows
    rows = [
        StatisticCheck("ids", published.ids, measured.ids, IDS_TOLERANCE * published.ids),
        StatisticCheck("distinct rows", published.distinct_rows, measured.distinct_rows, rows_tolerance),
    ]
    middle = [f"{2 ** (i - 1) + 1}-{2**i}" for i in range(2, REUSE_BINS - 1)]
    bin_names = ["1", "2", *middle, f"over {2 ** (REUSE_BINS - 2)}"]
    for noun, theirs, ours in (
        ("distinct rows", published.row_shares, measured.row_shares),
        ("accesses", published.access_shares, measured.access_shares),
    ):
        for name, x, y in zip(bin_names, theirs, ours, strict=True):
            rows.append(StatisticCheck(f"share of {noun}, reuse {name}", x, y, SHARE_TOLERANCE))
    return PoolCheck(tuple(rows))
