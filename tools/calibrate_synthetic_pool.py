"""Make the data file of the synthetic pool, in half a minute: `python tools/calibrate_synthetic_pool.py`.

1. Draw rows and pooling factors of 856 tables and 60 candidate skews for each.
2. Compute the reuse histograms every candidate is expected to have.
3. Choose one candidate per table so that the sums match the published figures.
4. Draw the ids of the chosen tables for their own reuse histograms, check the pool, and write it if it passes.

Needs the extra `dev` (scipy). The seed is fixed: a second run writes the same file.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import io
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import poisson
from tqdm import tqdm

from shardgym.arrays import Floats, Ints
from shardgym.ids import HEAD_RANKS, ReuseCounts, ZipfLaw, draw_bags
from shardgym.pools.load import COLUMNS, DATA_FILE, PLACEHOLDER_DIM
from shardgym.pools.statistics import PUBLISHED_2021 as GOAL
from shardgym.pools.statistics import PoolStatistics, compare, format_checks
from shardgym.table import REUSE_BINS, EmbeddingTable, ZipfIds

SEED = 2021

#: Most tables: median and spread (of the logarithm) of rows. Spread and range were set so that the mean is near
#: 1.3 million, see `shardgym.pools.load`.
ROWS_MEDIAN, ROWS_SIGMA, ROWS_MAX = 4.5e5, 1.95, 2.0e7

#: The others are small vocabularies (countries, hours, devices) with log-uniform rows in a range.
SMALL_SHARE, SMALL_RANGE = 0.1, (100.0, 2.0e4)

#: Share of single-valued features; median and spread of their pooling factor, which is how often they are present.
SINGLE_SHARE, SINGLE_MEDIAN, SINGLE_SIGMA, SINGLE_RANGE = 0.5, 0.7, 0.6, (0.02, 2.0)

#: Multi-valued features: median, spread and range of the pooling factor, and how strongly its logarithm correlates
#: with that of rows.
MULTI_MEDIAN, MULTI_SIGMA, MULTI_RANGE, MULTI_CORRELATION = 18.0, 1.1, (1.0, 190.0), 0.3

#: Candidates for the law of every table: exponents are normal, shifts log-uniform up to half of the rows.
CANDIDATES, S_MEAN, S_SIGMA, S_RANGE = 60, 1.1, 0.25, (0.3, 1.8)


class Population(NamedTuple):
    """Tables without their skew.

    Attributes:
        rows: rows per table, shape (tables,).
        pooling: pooling factors, shape (tables,), rounded as they are written.
    """

    rows: Ints
    pooling: Floats


def draw_population(tables: int, ids_per_sample: float, rng: np.random.Generator) -> Population:
    """Draw rows and pooling factors; the latter are scaled to sum to `ids_per_sample`."""
    rows = _draw_rows(tables, rng)
    single = rng.random(tables) < SINGLE_SHARE
    pooling: Floats = np.where(single, _draw_single(tables, rng), _draw_multi(rows, rng))
    pooling[~single] *= (ids_per_sample - pooling[single].sum()) / pooling[~single].sum()
    return Population(rows, pooling.round(4))


def draw_candidates(rows: Ints, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Draw candidate exponents and shifts, each of shape (tables, CANDIDATES), rounded as they are written."""
    shape = (rows.size, CANDIDATES)
    s = _redrawn(lambda: rng.normal(S_MEAN, S_SIGMA, shape), *S_RANGE)
    q = (rows / 2)[:, None] ** rng.random(shape) - 1
    return np.round(s, 4), np.round(q, 3)


def _draw_rows(tables: int, rng: np.random.Generator) -> Ints:
    z = rng.standard_normal
    large = _redrawn(lambda: ROWS_MEDIAN * np.exp(ROWS_SIGMA * z(tables)), SMALL_RANGE[0], ROWS_MAX)
    small = np.exp(rng.uniform(math.log(SMALL_RANGE[0]), math.log(SMALL_RANGE[1]), tables))
    rows: Ints = np.where(rng.random(tables) < SMALL_SHARE, small, large).astype(np.int64)
    return rows


def _draw_single(tables: int, rng: np.random.Generator) -> Floats:
    return _redrawn(lambda: SINGLE_MEDIAN * np.exp(SINGLE_SIGMA * rng.standard_normal(tables)), *SINGLE_RANGE)


def _draw_multi(rows: Ints, rng: np.random.Generator) -> Floats:
    """Draw pooling factors of multi-valued features; none is longer than a tenth of its table."""
    common = MULTI_CORRELATION * np.log(rows / ROWS_MEDIAN) / ROWS_SIGMA
    own = np.sqrt(1 - MULTI_CORRELATION**2)
    pooling = _redrawn(
        lambda: MULTI_MEDIAN * np.exp(MULTI_SIGMA * (common + own * rng.standard_normal(rows.size))), *MULTI_RANGE
    )
    return np.minimum(pooling, rows / 10)


def _redrawn(draw: Callable[[], Floats], low: float, high: float) -> Floats:
    """Draw until every element is in [low, high]."""
    x = draw()
    while ((x < low) | (x > high)).any():
        x = np.where((x < low) | (x > high), draw(), x)
    return x


#: Logarithms of the expected accesses of one row at which bins are tabulated; beyond them the nearest is used.
_LOG_RATES = np.linspace(np.log(1e-9), np.log(1e8), 8001)


def expected_counts(s: float, q: float, rows: int, ids: float) -> Floats:
    """Return expected distinct rows and accesses per reuse bin, shape (2, 17).

    With Poisson bag sizes the accesses of every row are independent Poisson numbers, so the expectation is a sum over
    rows. Ranks behind the exact head are grouped on a logarithmic grid and share their mean rate.

    Args:
        s: exponent of the Zipf law.
        q: shift of the Zipf law.
        rows: rows of the table.
        ids: expected ids of the batch.
    """
    edges = _rank_edges(rows)
    widths = np.diff(edges)
    rates = np.maximum(ids * np.diff(ZipfLaw(s, q, rows).cumulative(edges)) / widths, 1e-9)
    position = np.clip((np.log(rates) - _LOG_RATES[0]) / (_LOG_RATES[1] - _LOG_RATES[0]), 0, _LOG_RATES.size - 1.001)
    low = position.astype(np.int64)
    above = (position - low)[:, None]
    shares = (1 - above) * _bins()[:, low] + above * _bins()[:, low + 1]
    result: Floats = np.einsum("kgb,kg->kb", shares, np.stack([widths, widths * rates]))
    return result


@functools.lru_cache(maxsize=1)
def _bins() -> Floats:
    """Tabulate, per rate, the probability of each bin and the share of the accesses in it, shape (2, rates, 17)."""
    rates = np.exp(_LOG_RATES)[:, None]
    upper = np.append(2.0 ** np.arange(REUSE_BINS - 1), np.inf)
    rows = poisson.cdf(upper, rates) - poisson.cdf(np.append(0, upper[:-1]), rates)
    accesses = poisson.cdf(upper - 1, rates) - poisson.cdf(np.append(-1, upper[:-1] - 1), rates)
    return np.stack([rows, accesses])


def _rank_edges(rows: int) -> Ints:
    head = np.arange(min(rows, HEAD_RANKS) + 1)
    if rows <= HEAD_RANKS:
        return head
    tail = np.geomspace(HEAD_RANKS, rows, 2 + int(12 * np.log(rows / HEAD_RANKS)))
    return np.unique(np.concatenate([head, np.rint(tail).astype(np.int64)]))


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


def expected_contributions(population: Population, s: Floats, q: Floats) -> Floats:
    """Return expected rows and accesses per bin over the published totals, shape (tables, candidates, 34)."""
    ids = population.pooling * GOAL.batch_size
    counts = np.array(
        [
            [expected_counts(a, b, int(rows), n) for a, b in zip(s_row, q_row, strict=True)]
            for rows, n, s_row, q_row in zip(population.rows, ids, s, q, strict=True)
        ]
    )
    totals = np.array([GOAL.distinct_rows, GOAL.ids])
    contributions: Floats = (counts / totals[:, None]).reshape(*s.shape, -1)
    return contributions


def with_histograms(tables: list[EmbeddingTable]) -> tuple[list[EmbeddingTable], PoolStatistics]:
    """Draw the ids of every table for its own reuse histogram and for the statistics of the pool."""
    done = []
    total = ReuseCounts()
    for table in tqdm(tables, desc="draw ids", unit="table"):
        counts = ReuseCounts.of(draw_bags(table, GOAL.batch_size, seed=0).indices)
        total.add(counts)
        done.append(dataclasses.replace(table, reuse_histogram=rounded(counts.row_shares())))
    ids = int(total.accesses.sum())
    rows = int(total.rows.sum())
    return done, PoolStatistics(len(tables), GOAL.batch_size, ids, rows, total.row_shares(), total.access_shares())


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
    parser.add_argument("--out", type=Path, default=DATA_FILE, help="file to write (default: %(default)s)")
    arguments = parser.parse_args()
    tables, statistics = with_histograms(chosen_tables(np.random.default_rng(SEED)))
    checks = compare(statistics, GOAL)
    print(format_checks(checks))
    if not all(check.ok for check in checks):
        return 1
    arguments.out.write_text(csv_text(tables), encoding="utf-8")
    print(f"wrote {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
