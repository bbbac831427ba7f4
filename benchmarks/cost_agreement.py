"""How well a cost agrees with real training steps, over the plans of a task. Both were taken in two passes.

The two halves of the real steps agree with each other only so well. That is the limit of what any cost can reach with
one half of them.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.stats import kendalltau

from shardgym.arrays import Floats

PASSES = 2
#: Pairs of plans are close where real steps differ by no more.
CLOSE = 0.05


def agreement(own: Floats, real: Floats) -> dict[str, float]:
    """Compare a cost with real steps; both in ms by pass and plan, shape (2, plans).

    Returns:
        tau: Kendall's tau of the means over passes; for the real step itself, of its two halves.
        tau_repeat: of the cost's own two passes.
        tau_half: mean tau of the cost's passes and the real step's halves, the fair comparison with the limit.
        close: of the pairs of plans that one half of the real step has within 5 %, the share that a pass of the cost
            orders in the same way; NaN where there are none.
        regret: what the favourite takes above the best, by real steps.
        slope: relative differences of the cost per relative difference of real steps (least squares), 1 if right.
        level: mean of the cost over mean of the real step.
        spread: the costliest over the cheapest plan.
    """
    is_real = own is real or np.array_equal(own, real)
    mean = own.mean(axis=0)
    truth = real.mean(axis=0)
    repeat = tau(own[0], own[1])
    if is_real:  # each half against the other one
        halves = [(0, 1), (1, 0)]
        favourites = [real[b][real[a].argmin()] / real[b].min() - 1 for a, b in halves]
        regret = float(np.mean(favourites))
        steepness = float(np.mean([slope(real[b], real[a]) for a, b in halves]))
    else:
        halves = list(itertools.product(range(PASSES), repeat=2))
        regret = float(truth[mean.argmin()] / truth.min() - 1)
        steepness = slope(mean, truth)
    return {
        "tau": repeat if is_real else tau(mean, truth),
        "tau_repeat": repeat,
        "tau_half": float(np.mean([tau(own[a], real[b]) for a, b in halves])),
        "close": float(np.mean([close_pairs(own[a], real[b]) for a, b in halves])),
        "regret": regret,
        "slope": steepness,
        "level": float(mean.mean() / truth.mean()),
        "spread": float(mean.max() / mean.min()),
    }


def tau(a: Floats, b: Floats) -> float:
    """Return Kendall's tau-b; 0 where one side has no order."""
    found = float(kendalltau(a, b).statistic)
    return found if np.isfinite(found) else 0.0


def close_pairs(own: Floats, real: Floats) -> float:
    """Return the share of close pairs that a cost orders as real steps do; NaN where no pair is close."""
    first, second = np.triu_indices(len(real), 1)
    low = np.minimum(real[first], real[second])
    high = np.maximum(real[first], real[second])
    is_close = high <= low * (1 + CLOSE)
    same = np.sign(own[first] - own[second]) == np.sign(real[first] - real[second])
    return float(same[is_close].mean()) if is_close.any() else float("nan")


def slope(own: Floats, real: Floats) -> float:
    """Return the least-squares slope of relative costs over relative real times."""
    relative = real / real.mean() - 1
    return float((own / own.mean() - 1) @ relative / (relative @ relative)) if relative.any() else 0.0
