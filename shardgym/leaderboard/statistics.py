"""Statistics of boards: paired, over tasks and seeds together, with one aggregate, the geometric mean.

As rliable does (Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice, NeurIPS 2021),
but with tasks drawn anew, too: the tasks of a suite are a sample of the tasks that there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats, Ints

#: Of the bootstrap.
RESAMPLES = 10_000
SEED = 0
#: Fewer tasks say next to nothing about their spread: no intervals, no ranks.
MIN_TASKS = 6
#: Of pairs of solvers, which are many.
PAIR_RESAMPLES = 2000
#: Resamples drawn at once, to bound memory.
_CHUNK = 1000
_PAIR_CHUNK = 200
#: Logarithms that differ by less are those of equal costs, added in another order.
_EQUAL = 1e-12


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high


def resampled_means(logs: Sequence[Floats]) -> Floats:
    """Draw tasks anew with replacement, and for every drawn task the seeds of each solver; return the means.

    All solvers get the same tasks, so that differences between columns are paired.

    Args:
        logs: logarithms of costs by solver, each of shape (seeds, T); seeds may differ in number.

    Returns:
        Mean logarithm per resample and solver, shape (RESAMPLES, n).
    """
    rng = np.random.default_rng(SEED)
    num_tasks = logs[0].shape[1]
    means = np.empty((RESAMPLES, len(logs)))
    for start in range(0, RESAMPLES, _CHUNK):
        tasks = rng.integers(num_tasks, size=(min(_CHUNK, RESAMPLES - start), num_tasks))
        chunk = means[start : start + _CHUNK]
        for column, own in enumerate(logs):
            num_seeds = len(own)
            if num_seeds == 1:
                chunk[:, column] = own[0][tasks].mean(axis=1)
            else:
                drawn = rng.integers(num_seeds, size=(num_seeds, *tasks.shape))
                chunk[:, column] = own[drawn, tasks].mean(axis=(0, 2))
    return means


def percentile_interval(values: Floats) -> Interval:
    """Return the middle 95 % of resampled values, shape (RESAMPLES,)."""
    low, high = np.quantile(values, [0.025, 0.975])
    return Interval(float(low), float(high))


def bootstrap_mean(values: Floats) -> Interval | None:
    """Return the percentile interval of the mean of `values` when tasks, and seeds, are drawn anew with replacement.

    Efron & Tibshirani, An Introduction to the Bootstrap, chapter 13.

    Args:
        values: one per task, shape (T,), or one per seed and task, shape (S, T).

    Returns:
        None for fewer than `MIN_TASKS` tasks.
    """
    by_seed = np.atleast_2d(values)
    return None if by_seed.shape[1] < MIN_TASKS else percentile_interval(resampled_means([by_seed])[:, 0])


def mean_ratio(costs: Floats, reference: Floats) -> float:
    """Return the geometric mean of costs / reference over tasks, both of shape (n,); NaN when n is 0."""
    return float(np.exp(np.log(costs / reference).mean())) if costs.size else float("nan")


def clearly_better(means: Floats) -> Bools:
    """Say which solver is ahead of which beyond the 95 % interval of their difference.

    Args:
        means: of `resampled_means`, shape (B, n).

    Returns:
        Whether solver i is cheaper than solver j, shape (n, n).
    """
    count = means.shape[1]
    better = np.zeros((count, count), dtype=bool)
    for i in range(count):
        low, high = np.quantile(means[:, i, None] - means[:, i + 1 :], [0.025, 0.975], axis=0)
        better[i, i + 1 :] = high < -_EQUAL
        better[i + 1 :, i] = low > _EQUAL
    return better


def shared_ranks(better: Bools) -> list[int]:
    """Return ranks from 1 on. Solvers that cannot be told from the first one of a rank share it.

    Args:
        better: whether solver i is clearly better than solver j, best solvers first, shape (n, n).
    """
    ranks = []
    first = 0
    for number in range(len(better)):
        if better[first, number]:
            first = number
        ranks.append(first + 1)
    return ranks


def rank_intervals(means: Floats) -> list[Interval]:
    """Return the middle 95 % of the ranks that every solver has in the resamples; equal means share the better rank."""
    ranks: Ints = 1 + np.stack([(means + _EQUAL < own[:, None]).sum(axis=1) for own in means.T], axis=1)
    ends = np.quantile(ranks, [0.025, 0.975], axis=0, method="inverted_cdf")
    return [Interval(float(low), float(high)) for low, high in ends.T]


def probability_of_improvement(costs: Sequence[Floats]) -> Floats:
    """Return how likely a plan of one solver is cheaper than one of another for a task drawn at random.

    The mean over tasks of the share of pairs of seeds, equal costs counted by half (Mann and Whitney's U; Agarwal et
    al., section 4.3).

    Args:
        costs: by solver, each of shape (seeds, T); infinite where it failed.

    Returns:
        Of solver i over solver j, shape (n, n); one half on the diagonal.
    """
    count = len(costs)
    found = np.full((count, count), 0.5)
    for i in range(count):
        for j in range(i + 1, count):
            mine = costs[i][:, None]
            theirs = costs[j][None]
            found[i, j] = ((mine < theirs) + 0.5 * (mine == theirs)).mean()
            found[j, i] = 1 - found[i, j]
    return found


def improvement_ends(costs: Sequence[Floats]) -> Floats | None:
    """Return the 95 % intervals of `probability_of_improvement` when tasks, and seeds, are drawn anew as for means.

    All pairs get the same tasks, and every drawn task the same seeds of a solver.

    Args:
        costs: as there.

    Returns:
        Lower and upper ends, shape (2, n, n); None for fewer than `MIN_TASKS` tasks.
    """
    count = len(costs)
    num_tasks = costs[0].shape[1] if costs else 0
    if num_tasks < MIN_TASKS:
        return None
    rng = np.random.default_rng(SEED)
    shares = np.full((PAIR_RESAMPLES, count, count), 0.5)
    for start in range(0, PAIR_RESAMPLES, _PAIR_CHUNK):
        tasks = rng.integers(num_tasks, size=(_PAIR_CHUNK, num_tasks))
        drawn = [own[rng.integers(len(own), size=(len(own), *tasks.shape)), tasks] for own in costs]
        for i in range(count):
            for j in range(i + 1, count):
                wins = sum((a < b).mean(axis=1) + 0.5 * (a == b).mean(axis=1) for a in drawn[i] for b in drawn[j])
                share = wins / (len(drawn[i]) * len(drawn[j]))
                shares[start : start + _PAIR_CHUNK, i, j] = share
                shares[start : start + _PAIR_CHUNK, j, i] = 1 - share
    ends: Floats = np.quantile(shares, [0.025, 0.975], axis=0)
    return ends


def performance_profile(costs: Sequence[Floats], factors: Floats) -> Floats:
    """Return the share of a solver's plans that cost at most a factor times the best plan known for their task.

    Dolan & Moré, Benchmarking optimization software with performance profiles, 2002.

    Args:
        costs: by solver, each of shape (seeds, T); infinite where it failed.
        factors: from 1 on, shape (F,).

    Returns:
        Shares, shape (n, F).
    """
    best = np.min([own.min(axis=0) for own in costs], axis=0)
    # Where nobody has a plan, nobody is near the best.
    ratios = [np.where(np.isfinite(own), own, np.inf) / np.where(np.isfinite(best), best, 1.0) for own in costs]
    limits = factors * (1 + _EQUAL)
    return np.array([(own[..., None] <= limits).mean(axis=(0, 1)) for own in ratios])
