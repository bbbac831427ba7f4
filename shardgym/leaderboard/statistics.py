"""Statistics of boards: paired, a task is the unit, and one aggregate, the geometric mean.

The tasks of a suite are a sample of the tasks that there are. Two solvers are compared by the differences of their
logarithms of costs, one per task. Two tests have to agree that the mean of these is not zero, and an interval is the
wider of theirs at each end:

- Sign flips (Fisher, The Design of Experiments, 1935, section 21): exact, however long the tails, where either of two
  equal solvers is as likely to be the better one by any amount. Their intervals are ends of the means of all subsets
  of tasks (Hartigan, Using subsample values as typical values, 1969).
- Student's t with the skewness of the differences transformed away (Hall, On the removal of skewness by
  transformation, 1992): sign flips alone tell equal means apart too often where a solver is mostly a little better and
  rarely much worse.

A bootstrap of percentiles does not do for one suite: over six tasks it tells equal solvers apart in every seventh case.
For means over several suites it does, see `mean_interval_over_suites`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats

#: Of intervals, and of all comparisons of a board together.
LEVEL = 0.05
#: Fewer tasks say next to nothing about their spread: no intervals, no ranks.
MIN_TASKS = 6
#: Up to so many tasks all subsets of them are looked at; of more, as many at random.
_ALL_SUBSETS = 15
SEED = 0
#: Bootstrap samples.
_RESAMPLES = 10_000
#: Flips that are looked at together, to bound memory.
_CHUNK = 4096
#: Logarithms that differ by less are those of equal costs, added in another order.
_EQUAL = 1e-12


class Interval(NamedTuple):
    """An interval, of 95 % unless something else is said."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Say whether a value lies in the interval, ends included."""
        return self.low <= value <= self.high


def mean_interval(values: Floats) -> Interval | None:
    """Return the interval of a mean over tasks: of the values that the two tests do not tell from it.

    Args:
        values: one per task, shape (T,).

    Returns:
        None for fewer than `MIN_TASKS` tasks.
    """
    from scipy import stats

    num_tasks = len(values)
    if num_tasks < MIN_TASKS:
        return None
    subsets = _subsets(num_tasks)
    left_out = int(LEVEL / 2 * (len(subsets) + 1) + 1e-9)
    means = np.sort(subsets @ values / subsets.sum(axis=1))
    flips = Interval(float(means[left_out - 1]), float(means[-left_out]))
    centre, error, bend = (float(part) for part in _moments(values))
    limit = float(stats.t.isf(LEVEL / 2, num_tasks - 1))
    ends = [centre - error * _untransformed(end, bend) for end in (limit, -limit)]
    return Interval(min(flips.low, ends[0]), max(flips.high, ends[1]))


def mean_interval_over_suites(suites: Sequence[Floats]) -> Interval | None:
    """Return the interval of the mean over suites of the means over their tasks, by a bootstrap over tasks.

    From every suite of T tasks, T - 1 are drawn with replacement: so the mean of what is drawn varies as that of a
    sample does (Rao & Wu, Resampling inference with complex survey data, 1988). Ends are percentiles. The draws are the
    same in every call. Over nine tasks each of several suites, the interval misses the mean in 5 to 10 % of cases, the
    latter where values are skewed. The interval of one suite is that of `mean_interval`.

    Args:
        suites: one array per suite, of a value per task, shape (T,).

    Returns:
        None where a suite has fewer than `MIN_TASKS` tasks.
    """
    if min(map(len, suites)) < MIN_TASKS:
        return None
    if len(suites) == 1:
        return mean_interval(suites[0])
    rng = np.random.default_rng(SEED)
    means = np.zeros(_RESAMPLES)
    for values in suites:
        drawn = rng.integers(len(values), size=(_RESAMPLES, len(values) - 1))
        means += values[drawn].mean(axis=1) / len(suites)
    low, high = np.quantile(means, [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(float(low), float(high))


def _student(values: Floats) -> Floats:
    """Return the p-values of the t test, two-sided, shape (n,)."""
    from scipy import stats

    centre, error, bend = _moments(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = centre / error
        transformed = t + bend * t**2 + bend**2 * t**3 / 3 + bend / 2
    found = np.asarray(2 * stats.t.sf(np.abs(transformed), values.shape[1] - 1), dtype=np.float64)
    found[error < _EQUAL] = 0.0
    return found


def _flipped_apart(values: Floats) -> Bools:
    """Say which means are not zero by flips of tasks' signs, all rows together, so that with 95 % none is so wrongly.

    A row is apart where at most 5 % of the flips bring any row that is no further from zero as far as it is (step-down
    maxima: Westfall & Young, Resampling-Based Multiple Testing, 1993, section 2.6). Holm's levels would not do: the
    least p-value of T tasks is 2 / 2**T, which for nine tasks tells no two of six solvers apart.

    Args:
        values: one per row and task, shape (n, T).
    """
    size = np.sqrt((values**2).sum(axis=1))
    scaled = values / np.where(size < _EQUAL, 1.0, size)[:, None]
    found = np.abs(scaled.sum(axis=1))
    order = np.argsort(found, kind="stable")
    # Those that flip a subset of tasks, and the one that flips none.
    subsets = _subsets(values.shape[1])
    as_far = np.ones(len(values))
    for start in range(0, len(subsets), _CHUNK):
        flipped = np.abs((1 - 2 * subsets[start : start + _CHUNK]) @ scaled[order].T)
        as_far += (np.maximum.accumulate(flipped, axis=1) >= found[order] - _EQUAL).sum(axis=0)
    holds = as_far <= LEVEL * (1 + len(subsets))
    apart = np.zeros(len(values), dtype=bool)
    apart[order] = np.logical_and.accumulate(holds[::-1])[::-1]
    return apart


@functools.lru_cache(maxsize=4)
def _subsets(num_tasks: int) -> Floats:
    """Return which tasks are in each subset, 1 or 0, none of them empty, shape (subsets, T)."""
    if num_tasks <= _ALL_SUBSETS:
        chosen = np.array(list(itertools.product((0.0, 1.0), repeat=num_tasks)))[1:]
    else:
        chosen = np.random.default_rng(SEED).integers(2, size=(2**_ALL_SUBSETS - 1, num_tasks)).astype(float)
        chosen = chosen[chosen.any(axis=1)]
    chosen.flags.writeable = False
    return chosen


def _moments(values: Floats) -> tuple[Floats, Floats, Floats]:
    """Return mean, standard error of the mean, and a third of the skewness of the mean, over the last axis."""
    num_tasks = values.shape[-1]
    centre = values.mean(axis=-1)
    spread = values.std(axis=-1, ddof=1)
    third = ((values - centre[..., None]) ** 3).mean(axis=-1)
    skewness = np.where(spread < _EQUAL, 0.0, third / np.maximum(spread, _EQUAL) ** 3)
    return centre, spread / np.sqrt(num_tasks), skewness / (3 * np.sqrt(num_tasks))


def _untransformed(value: float, bend: float) -> float:
    """Return the t whose transform is `value`; the transform is ((1 + bend t)^3 - 1) / (3 bend) + bend / 2."""
    if abs(bend) < 1e-9:
        return value
    return float((np.cbrt(1 + 3 * bend * (value - bend / 2)) - 1) / bend)


def holm(p: Floats) -> Bools:
    """Say which of several comparisons hold, so that with 95 % none does wrongly.

    Holm, A simple sequentially rejective multiple test procedure, 1979.

    Args:
        p: one per comparison, shape (m,).
    """
    order = np.argsort(p, kind="stable")
    passed = np.minimum.accumulate(p[order] <= LEVEL / np.arange(len(p), 0, -1))
    holds = np.zeros(len(p), dtype=bool)
    holds[order] = passed
    return holds


def clearly_ahead(logs: Floats) -> Bools:
    """Say which solver is ahead of which, such that with 95 % probability no two equal solvers are told apart.

    Args:
        logs: logarithms of costs, shape (n, T), T at least `MIN_TASKS`.

    Returns:
        Whether solver i is cheaper than solver j, shape (n, n).
    """
    count = len(logs)
    ahead = np.zeros((count, count), dtype=bool)
    first, second = np.triu_indices(count, 1)
    differences = logs[first] - logs[second]
    apart = _flipped_apart(differences) & holm(_student(differences))
    lower = differences.mean(axis=1) < 0
    ahead[first, second] = apart & lower
    ahead[second, first] = apart & ~lower
    return ahead


def rank_ranges(ahead: Bools) -> list[tuple[int, int]]:
    """Return the best and the worst rank that a solver can have by what is clear.

    All of them hold together with 95 % (Mogstad, Romano, Shaikh & Wilhelm, Inference for Ranks, 2024).

    Args:
        ahead: what `clearly_ahead` returned.
    """
    count = len(ahead)
    return [(1 + int(ahead[:, n].sum()), count - int(ahead[n].sum())) for n in range(count)]


def pareto_front(times: Floats, costs: Floats) -> Bools:
    """Say which solvers no other one dominates: none is at least as fast and as cheap, and better in one of the two.

    Args:
        times: seconds per plan by solver, shape (n,).
        costs: costs of plans, shape (n,); NaN for a solver that solved nothing, which is not among them.
    """
    no_worse = (times[:, None] <= times) & (costs[:, None] <= costs)
    better = (times[:, None] < times) | (costs[:, None] < costs)
    dominated: Bools = np.any(no_worse & better, axis=0)
    return ~dominated & ~np.isnan(costs)
