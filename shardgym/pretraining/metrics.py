"""How good predictions are, against what one measurement says about another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.samples import Labels
from shardgym.errors import import_extra


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted - measured) / measured))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation (tau-b)."""
    stats: Any = import_extra("scipy.stats", "reporting on the simulator")
    return float(stats.kendalltau(first, second).statistic)


def repeat_pairs(labels: Labels) -> tuple[Ints, Ints]:
    """Return positions of first and second measurements of the same content, of those that have both."""
    firsts = {content: n for n, content in enumerate(labels.content) if labels.repeat[n] == 0}
    pairs = [
        (firsts[content], n) for n, content in enumerate(labels.content) if labels.repeat[n] == 1 and content in firsts
    ]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def noise_floor(ms: Floats, pairs: tuple[Ints, Ints]) -> float | None:
    """Return the error of one measurement as a prediction of an independent repeat, both ways; None without repeats."""
    first, second = ms[pairs[0]], ms[pairs[1]]
    return (mape(first, second) + mape(second, first)) / 2 if len(first) else None


def score(predicted: Floats, measured: Floats, pairs: tuple[Ints, Ints]) -> dict[str, Any]:
    """Return errors of predictions and of repeats, one figure per sample.

    Args:
        predicted: shape (N,).
        measured: shape (N,).
        pairs: positions of repeats.

    Returns:
        "mape" and "kendall_tau" of the predictions, "noise_mape" and "noise_kendall_tau" of measurements against their
        repeats (None without repeats), how many "noise_pairs" these rest on, and "mape_over_noise".
    """
    noise = noise_floor(measured, pairs)
    error = mape(predicted, measured)
    return {
        "samples": len(measured),
        "mape": error,
        "noise_mape": noise,
        "noise_pairs": len(pairs[0]),
        "mape_over_noise": error / noise if noise else None,
        "kendall_tau": kendall_tau(predicted, measured),
        "noise_kendall_tau": kendall_tau(measured[pairs[0]], measured[pairs[1]]) if len(pairs[0]) > 1 else None,
    }


def per_group(values: Floats, counts: npt.NDArray[np.int64]) -> Floats:
    """Return the largest value of each group: the slowest device of an exchange, shape (G,)."""
    return np.asarray(np.maximum.reduceat(values, np.cumsum(counts) - counts), dtype=np.float64)
