"""Make the data file of the synthetic pool, in half a minute: `python tools/synthetic_pool/calibrate.py`.

1. Draw rows and pooling factors of 856 tables and 60 candidate skews for each (`population.py`).
2. Compute the reuse histograms every candidate is expected to have (`occupancy.py`).
3. Choose one candidate per table so that the sums match the published figures (`fit.py`).
4. Draw the ids of the chosen tables for their own reuse histograms, check the pool, and write it if it passes.

Needs the extra `dev` (scipy). The seed is fixed: a second run writes the same file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from fit import choose, targets
from occupancy import expected_counts
from population import Population, draw_candidates, draw_population
from tqdm import tqdm

import shardgym.pools
from shardgym.ids import ReuseCounts, draw_bags
from shardgym.pools.synthetic import COLUMNS, DATA_FILE, PLACEHOLDER_DIM, PoolStatistics, compare
from shardgym.pools.synthetic import PUBLISHED_2021 as GOAL
from shardgym.table import EmbeddingTable, ZipfIds

SEED = 2021

Float64s = npt.NDArray[np.float64]


def main() -> int:
    """Calibrate, check and write; returns 1 when the drawn ids miss the published figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(shardgym.pools.__file__).parent / "data" / DATA_FILE
    parser.add_argument("--out", type=Path, default=default, help="file to write (default: %(default)s)")
    arguments = parser.parse_args()
    tables, statistics = with_histograms(chosen_tables(np.random.default_rng(SEED)))
    check = compare(statistics, GOAL)
    print(check.table())
    if not check.ok:
        return 1
    arguments.out.write_text(csv_text(tables), encoding="utf-8")
    print(f"wrote {arguments.out}")
    return 0


def chosen_tables(rng: np.random.Generator) -> list[EmbeddingTable]:
    """Draw the population and choose the skew of every table."""
    population = draw_population(GOAL.num_tables, GOAL.ids / GOAL.batch_size, rng)
    s, q = draw_candidates(population.rows, rng)
    chosen = choose(expected_contributions(population, s, q), targets(GOAL), rng)
    return [
        EmbeddingTable(
            name=f"t{i:03}",
            num_embeddings=int(rows),
            embedding_dim=PLACEHOLDER_DIM,
            pooling_factor=float(pooling),
            ids=ZipfIds(s=float(s[i, k]), q=float(q[i, k]), lengths="poisson"),
        )
        for i, (rows, pooling, k) in enumerate(zip(*population, chosen, strict=True))
    ]


def expected_contributions(population: Population, s: Float64s, q: Float64s) -> Float64s:
    """Return expected rows and accesses per bin over the published totals, shape (tables, candidates, 34)."""
    ids = population.pooling * GOAL.batch_size
    counts = np.array(
        [
            [expected_counts(a, b, int(rows), n) for a, b in zip(s_row, q_row, strict=True)]
            for rows, n, s_row, q_row in zip(population.rows, ids, s, q, strict=True)
        ]
    )
    totals = np.array([GOAL.distinct_rows, GOAL.ids])
    contributions: Float64s = (counts / totals[:, None]).reshape(*s.shape, -1)
    return contributions


def with_histograms(tables: list[EmbeddingTable]) -> tuple[list[EmbeddingTable], PoolStatistics]:
    """Draw the ids of every table for its own reuse histogram and for the statistics of the pool."""
    done, total = [], ReuseCounts()
    for table in tqdm(tables, desc="draw ids", unit="table"):
        counts = ReuseCounts.of(draw_bags(table, GOAL.batch_size, seed=0).indices)
        total.add(counts)
        done.append(dataclasses.replace(table, reuse_histogram=rounded(counts.row_shares())))
    ids, rows = int(total.accesses.sum()), int(total.rows.sum())
    shares = total.row_shares(), total.access_shares()
    return done, PoolStatistics(len(tables), GOAL.batch_size, ids, rows, *shares)


def rounded(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Round to four decimals; the largest share takes what is left to one."""
    values = [round(x, 4) for x in shares]
    largest = values.index(max(values))
    values[largest] = round(values[largest] + 1 - sum(values), 4)
    return tuple(values)


def csv_text(tables: list[EmbeddingTable]) -> str:
    """Return the data file: one line per table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for t in tables:
        assert isinstance(t.ids, ZipfIds)
        assert t.reuse_histogram is not None
        writer.writerow(
            [t.name, t.num_embeddings, t.pooling_factor, t.ids.s, t.ids.q, *(f"{x:g}" for x in t.reuse_histogram)]
        )
    return text.getvalue()


if __name__ == "__main__":
    sys.exit(main())
