"""Make the data file of a synthetic pool, in a minute: `python studies/synthetic_pool/run.py synthetic-2021`.

1. Draw rows and pooling factors of the tables, and 60 candidate skews for each.
2. Compute the reuse histograms every candidate is expected to have.
3. Choose one candidate per table so that the sums match the published figures.
4. Draw the ids of the chosen tables for their own reuse histograms, check the pool, and write it if it passes.

Needs the extra `dev` (scipy). Every pool is a `Recipe`, seed included: a second run writes the same file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from shardgym.arrays import Floats, Ints
from shardgym.bags import ReuseCounts
from shardgym.ids import draw_bags, expected_counts
from shardgym.pools.load import COLUMNS, PLACEHOLDER_DIM, data_file
from shardgym.pools.statistics import PUBLISHED, PoolStatistics, compare, format_checks
from shardgym.table import EmbeddingTable, ZipfIds

#: Candidates for the law of every table: exponents are normal, shifts log-uniform up to half of the rows.
CANDIDATES, S_MEAN, S_SIGMA, S_RANGE = 60, 1.1, 0.25, (0.3, 1.8)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How the tables of a pool are drawn.

    Attributes:
        seed: of all draws.
        goal: published statistics that the pool shall have.
        prefix: of the tables' names. Pools have no name in common, so that no table passes for one of another pool.
        rows_median, rows_sigma, rows_max: of most tables, log-normal; sigma is the spread of the logarithm.
        small_share, small_range: the other tables are small vocabularies (countries, hours, devices) with log-uniform
            rows.
        single_share: share of single-valued features.
        single_median, single_sigma, single_range: of their pooling factors, which is how often they are present.
        multi_median, multi_sigma, multi_range: of the pooling factors of multi-valued features.
        multi_correlation: of their logarithm with that of rows.
    """

    seed: int
    goal: PoolStatistics
    prefix: str
    rows_median: float
    rows_sigma: float
    rows_max: float
    small_share: float
    small_range: tuple[float, float]
    single_share: float
    single_median: float
    single_sigma: float
    single_range: tuple[float, float]
    multi_median: float
    multi_sigma: float
    multi_range: tuple[float, float]
    multi_correlation: float


RECIPES = {
    # Median and spread of rows were set so that the mean is near 1.3 million, see `shardgym.pools.load`.
    "synthetic-2021": Recipe(
        seed=2021, goal=PUBLISHED["synthetic-2021"], prefix="t",
        rows_median=4.5e5, rows_sigma=1.95, rows_max=2.0e7, small_share=0.1, small_range=(100.0, 2.0e4),
        single_share=0.5, single_median=0.7, single_sigma=0.6, single_range=(0.02, 2.0),
        multi_median=18.0, multi_sigma=1.1, multi_range=(1.0, 190.0), multi_correlation=0.3,
    ),
    # Another population on purpose, as this pool tests how a simulator of the other one transfers.
    "synthetic-2022": Recipe(
        seed=2022, goal=PUBLISHED["synthetic-2022"], prefix="u",
        rows_median=2.5e5, rows_sigma=2.2, rows_max=6.0e7, small_share=0.2, small_range=(10.0, 5.0e3),
        single_share=0.35, single_median=0.9, single_sigma=0.4, single_range=(0.05, 2.0),
        multi_median=8.0, multi_sigma=1.4, multi_range=(1.0, 400.0), multi_correlation=0.1,
    ),
}  # fmt: skip


class Population(NamedTuple):
    """Tables without their skew.

    Attributes:
        rows: rows per table, shape (tables,).
        pooling: pooling factors, shape (tables,), rounded as they are written.
    """

    rows: Ints
    pooling: Floats


def draw_population(recipe: Recipe, rng: np.random.Generator) -> Population:
    """Draw rows and pooling factors; the latter are scaled to sum to the published ids per sample."""
    tables = recipe.goal.num_tables
    ids_per_sample = recipe.goal.ids / recipe.goal.batch_size
    rows = _draw_rows(recipe, rng)
    single = rng.random(tables) < recipe.single_share
    pooling: Floats = np.where(single, _draw_single(recipe, rng), _draw_multi(recipe, rows, rng))
    pooling[~single] *= (ids_per_sample - pooling[single].sum()) / pooling[~single].sum()
    return Population(rows, pooling.round(4))


def draw_candidates(rows: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw candidate exponents and shifts, each of shape (tables, CANDIDATES), rounded as they are written."""
    shape = (rows.size, CANDIDATES)
    s = _redrawn(lambda: rng.normal(S_MEAN, S_SIGMA, shape), *S_RANGE)
    q = (rows / 2)[:, None] ** rng.random(shape) - 1
    return np.round(s, 4), np.round(q, 3)


def _draw_rows(recipe: Recipe, rng: np.random.Generator) -> Ints:
    tables = recipe.goal.num_tables
    least, most = recipe.small_range
    large = _redrawn(
        lambda: recipe.rows_median * np.exp(recipe.rows_sigma * rng.standard_normal(tables)), least, recipe.rows_max
    )
    small = np.exp(rng.uniform(math.log(least), math.log(most), tables))
    rows: Ints = np.where(rng.random(tables) < recipe.small_share, small, large).astype(np.int64)
    return rows


def _draw_single(recipe: Recipe, rng: np.random.Generator) -> Floats:
    count = recipe.goal.num_tables
    return _redrawn(
        lambda: recipe.single_median * np.exp(recipe.single_sigma * rng.standard_normal(count)), *recipe.single_range
    )


def _draw_multi(recipe: Recipe, rows: Ints, rng: np.random.Generator) -> Floats:
    """Draw pooling factors of multi-valued features; none is longer than a tenth of its table."""
    common = recipe.multi_correlation * np.log(rows / recipe.rows_median) / recipe.rows_sigma
    own = np.sqrt(1 - recipe.multi_correlation**2)
    pooling = _redrawn(
        lambda: recipe.multi_median * np.exp(recipe.multi_sigma * (common + own * rng.standard_normal(rows.size))),
        *recipe.multi_range,
    )
    return np.minimum(pooling, rows / 10)


def _redrawn(draw: Callable[[], Floats], low: float, high: float) -> Floats:
    """Draw until every element is in [low, high]."""
    x = draw()
    while ((x < low) | (x > high)).any():
        x = np.where((x < low) | (x > high), draw(), x)
    return x


#: The search stops when every share is this near; going on would only pull the choices away from their random start.
GOOD_ENOUGH = 0.0005


def targets(published: PoolStatistics) -> Floats:
    """Return the figures that sums must reach: distinct rows and ids per bin, each over its total, shape (34,).

    Published shares are rounded and therefore scaled to sum to one.
    """
    shares = [np.array(x) for x in (published.row_shares, published.access_shares)]
    return np.concatenate([x / x.sum() for x in shares])


def choose(contributions: Floats, target: Floats, rng: np.random.Generator) -> Ints:
    """Return the index of the chosen candidate per table.

    Starts from candidate 0 of every table and tries candidates of tables at random, keeping what brings the sum nearer
    to the target, until it is good enough.

    Args:
        contributions: what a candidate adds to the sum, shape (tables, candidates, figures).
        target: the sum wanted, shape (figures,).
        rng: source of the order of trials.

    Raises:
        RuntimeError: a hundred thousand trials did not suffice.
    """
    tables, candidates, _ = contributions.shape
    chosen = np.zeros(tables, dtype=np.int64)
    gap = contributions[:, 0].sum(axis=0) - target
    for _ in range(100_000):
        if np.abs(gap).max() < GOOD_ENOUGH:
            return chosen
        table = int(rng.integers(tables))
        candidate = int(rng.integers(candidates))
        moved = gap + contributions[table, candidate] - contributions[table, chosen[table]]
        if moved @ moved < gap @ gap:
            gap = moved
            chosen[table] = candidate
    raise RuntimeError(f"no choice found: the worst figure is off by {np.abs(gap).max():.4f}")


def chosen_tables(recipe: Recipe, rng: np.random.Generator) -> list[EmbeddingTable]:
    """Draw the population and choose the skew of every table."""
    population = draw_population(recipe, rng)
    s, q = draw_candidates(population.rows, rng)
    chosen = choose(expected_contributions(population, s, q, recipe.goal), targets(recipe.goal), rng)
    return [
        EmbeddingTable(
            name=f"{recipe.prefix}{i:03}",
            num_embeddings=int(rows),
            embedding_dim=PLACEHOLDER_DIM,
            pooling_factor=float(pooling),
            ids=ZipfIds(s=float(s[i, k]), q=float(q[i, k]), lengths="poisson"),
        )
        for i, (rows, pooling, k) in enumerate(zip(*population, chosen, strict=True))
    ]


def expected_contributions(population: Population, s: Floats, q: Floats, goal: PoolStatistics) -> Floats:
    """Return expected rows and accesses per bin over the published totals, shape (tables, candidates, 34)."""
    ids = population.pooling * goal.batch_size
    counts = np.array(
        [
            [expected_counts(a, b, int(rows), n) for a, b in zip(s_row, q_row, strict=True)]
            for rows, n, s_row, q_row in zip(population.rows, ids, s, q, strict=True)
        ]
    )
    totals = np.array([goal.distinct_rows, goal.ids])
    contributions: Floats = (counts / totals[:, None]).reshape(*s.shape, -1)
    return contributions


def with_histograms(tables: list[EmbeddingTable], batch_size: int) -> tuple[list[EmbeddingTable], PoolStatistics]:
    """Draw the ids of every table for its own reuse histogram and for the statistics of the pool."""
    done = []
    total = ReuseCounts()
    for table in tqdm(tables, desc="draw ids", unit="table"):
        counts = ReuseCounts.of(draw_bags(table, batch_size, seed=0).indices)
        total.add(counts)
        done.append(dataclasses.replace(table, reuse_histogram=rounded(counts.row_shares())))
    ids = int(total.accesses.sum())
    rows = int(total.rows.sum())
    return done, PoolStatistics(len(tables), batch_size, ids, rows, total.row_shares(), total.access_shares())


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


def main() -> int:
    """Calibrate, check and write; returns 1 when the drawn ids miss the published figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", choices=RECIPES, help="which pool")
    parser.add_argument("--out", type=Path, help="file to write (default: the one that ships)")
    arguments = parser.parse_args()
    recipe = RECIPES[arguments.pool]
    chosen = chosen_tables(recipe, np.random.default_rng(recipe.seed))
    tables, statistics = with_histograms(chosen, recipe.goal.batch_size)
    checks = compare(statistics, recipe.goal)
    print(format_checks(checks))
    if not all(check.ok for check in checks):
        return 1
    path = arguments.out or data_file(arguments.pool)
    path.write_text(csv_text(tables), encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
