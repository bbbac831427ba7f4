"""Whether a pool is like a dlrm_datasets file: totals and reuse histograms of drawn ids beside the published."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tabulate import tabulate

from shardgym.errors import InputError
from shardgym.tables.bags import ReuseCounts
from shardgym.tables.ids import draw_bags
from shardgym.tables.table import REUSE_BINS, EmbeddingTable

#: Largest deviations from what is published: relative for the totals, absolute for the share of a bin.
IDS_TOLERANCE = 0.01
DISTINCT_ROWS_TOLERANCE = 0.02
SHARE_TOLERANCE = 0.01


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

#: Likewise embedding_bag/2022/locality_stats.txt, file fbgemm_t788_bs131072_0.pt. The other eleven files of that year
#: differ by 0.03 % in the totals and by 0.001 in a share.
PUBLISHED_2022 = PoolStatistics(
    num_tables=788,
    batch_size=131_072,
    ids=1_405_163_864,
    distinct_rows=110_259_238,
    row_shares=(*(0.342, 0.144, 0.149, 0.138, 0.112, 0.068, 0.029, 0.010, 0.004, 0.002, 0.001, 0.001), *[0.0] * 5),
    access_shares=(
        *(0.027, 0.023, 0.040, 0.068, 0.105, 0.120, 0.099, 0.070, 0.059),
        *(0.054, 0.040, 0.072, 0.064, 0.047, 0.021, 0.017, 0.076),
    ),
)

#: What is published of the file that each synthetic pool stands for.
PUBLISHED = {"synthetic-2021": PUBLISHED_2021, "synthetic-2022": PUBLISHED_2022}


class StatisticCheck(NamedTuple):
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


def check_pool(
    tables: Sequence[EmbeddingTable],
    *,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
    published: PoolStatistics | None = None,
) -> list[StatisticCheck]:
    """Draw one batch of every table and compare it with published statistics.

    Args:
        tables: all tables of the pool.
        seed: seed of the draw.
        progress: called after every table.
        published: what to compare with; its batch size is drawn. The published file with as many tables when None.

    Raises:
        InputError: `tables` is not a whole pool, which is all that statistics are published of.
    """
    by_size = {statistics.num_tables: statistics for statistics in PUBLISHED.values()}
    if published is None and len(tables) not in by_size:
        raise InputError(
            f"the pool check compares a whole pool of {' or '.join(map(str, sorted(by_size)))} tables with published "
            f"totals, got {len(tables)}: check the pool, not a part of it"
        )
    published = published or by_size[len(tables)]
    return compare(measure_pool(tables, published.batch_size, seed=seed, progress=progress), published)


def measure_pool(
    tables: Sequence[EmbeddingTable],
    batch_size: int,
    *,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> PoolStatistics:
    """Draw batch 0 of every table, one table at a time, and count.

    Raises:
        InputError: recorded ids of a table cannot be found or hold fewer samples.
    """
    counts = ReuseCounts()
    for table in tables:
        counts.add(ReuseCounts.of(draw_bags(table, batch_size, seed=seed).indices))
        if progress is not None:
            progress()
    return PoolStatistics(
        num_tables=len(tables),
        batch_size=batch_size,
        ids=int(counts.accesses.sum()),
        distinct_rows=int(counts.rows.sum()),
        row_shares=counts.row_shares(),
        access_shares=counts.access_shares(),
    )


def compare(measured: PoolStatistics, published: PoolStatistics) -> list[StatisticCheck]:
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
    return rows


def format_checks(checks: Sequence[StatisticCheck]) -> str:
    """Return published and measured values side by side, as a table in plain text."""
    cells = []
    for check in checks:
        numbers = [f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4f}" for x in check[1:]]
        cells.append([check.name, *numbers, "ok" if check.ok else "OFF"])
    headers = ("statistic", "published", "measured", "tolerance", "")
    align = ("left", "right", "right", "right", "left")
    return tabulate(cells, headers=headers, tablefmt="simple", colalign=align, disable_numparse=True)
