"""Training the judge: boosted trees of scikit-learn, written out as plain arrays, over the analytic sum under them."""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import (
    DEVICE_CONTEXT,
    DEVICE_PARTS,
    WORK_NAMES,
    Groups,
    device_parts,
    device_vectors,
)
from shardgym.costs.simulator.judge import PHASES, analytic_ms, flattened_ms, seen
from shardgym.costs.simulator.oracle import CONTEXTS, Params
from shardgym.errors import import_extra
from shardgym.training.samples import ComputeSamples

#: Trees of a sum, and how fast they learn. With more of either, unseen samples of a made-up machine did not gain.
_TREES = 300
_RATE = 0.06
_DEPTH = 6


def fit_prior(amounts: Floats, ms: Floats) -> Floats:
    """Fit an analytic sum: ms = amounts @ weights, relative errors, no negative weight.

    Args:
        amounts: work of each sample, shape (N, W).
        ms: what it took, shape (N,).

    Returns:
        Weights, shape (W,).
    """
    from scipy import optimize

    weights, _ = optimize.nnls(amounts / ms[:, None], np.ones(len(ms)))
    if not weights.any():
        weights[0] = float(np.median(ms / np.maximum(amounts[:, 0], 1e-9)))
    return np.asarray(weights, dtype=np.float64)


def fit_priors(totals: Floats, ms: Floats, context: Ints) -> Floats:
    """Fit an analytic sum with a constant to each column of times in each context.

    Args:
        totals: work of each sample, shape (N, W).
        ms: what it took, shape (N, T).
        context: of each sample, a number in `CONTEXTS`, shape (N,). A context without samples takes those of the other.

    Returns:
        Weights, shape (2, W + 1, T); the last of a column is the constant, which is never quite 0: a device whose
        tables are not looked up needs a logarithm, too.
    """
    amounts = np.column_stack([totals, np.ones(len(totals))])
    found = []
    for number in range(len(CONTEXTS)):
        here = context == number if (context == number).any() else np.ones(len(context), dtype=np.bool_)
        weights = np.column_stack([fit_prior(amounts[here], ms[here, column]) for column in range(ms.shape[1])])
        weights[-1] = np.maximum(weights[-1], 0.05 * np.quantile(ms[here], 0.01, axis=0))
        found.append(weights)
    return np.array(found)


def boost(samples: ComputeSamples, context: Ints, seed: int) -> Params:
    """Return the parameters of `JudgeTrees`; contexts of samples are numbers in `CONTEXTS`, shape (N,)."""
    groups = Groups(samples.counts)
    parts = device_parts(samples.shards)
    totals = np.add.reduceat(parts[:, : len(WORK_NAMES)], groups.starts, axis=0)
    unit = np.maximum(totals.mean(axis=0), 1e-9)
    params: Params = {"fixed.work_unit": unit, "fixed.prior": fit_priors(totals / unit, samples.ms, context)}
    base = analytic_ms(params, totals, context)
    logs = [np.log(base[context == c] if (context == c).any() else base) for c in range(len(CONTEXTS))]
    params["fixed.log_low"] = np.array([of.min(axis=0) for of in logs])
    params["fixed.log_high"] = np.array([of.max(axis=0) for of in logs])
    vectors = device_vectors(parts, groups)
    rising = [1] * (1 + DEVICE_PARTS - DEVICE_CONTEXT) + [0] * (DEVICE_CONTEXT + 1)
    for phase, name in enumerate(PHASES):
        residual = np.log(samples.ms[:, phase] / flattened_ms(params, base, context, phase))
        params |= _boost(seen(base, phase, vectors, context), residual, rising, name, seed + phase)
    return params


def _boost(x: Floats, y: Floats, rising: list[int], prefix: str, seed: int) -> Params:
    """Fit trees, and return them as arrays that are as long as the largest tree."""
    ensemble: Any = import_extra("sklearn.ensemble", "training the judge")
    model = ensemble.HistGradientBoostingRegressor(
        learning_rate=_RATE, max_iter=_TREES, max_depth=_DEPTH, min_samples_leaf=max(2, min(20, len(y) // 20)),
        l2_regularization=1.0, monotonic_cst=rising, early_stopping=False, random_state=seed,
    )  # fmt: skip
    # One thread: the same samples give the same trees, and threads that wait for each other take longer than the fit.
    with threadpool_limits(limits=1):
        model.fit(x, y)
    trees = [stage[0].nodes for stage in model._predictors]
    shape = len(trees), max(map(len, trees))
    arrays = {name: np.zeros(shape) for name in ("feature", "threshold", "left", "right", "value")}
    for number, nodes in enumerate(trees):
        here = number, slice(len(nodes))
        leaf = nodes["is_leaf"].astype(bool)
        itself = np.arange(len(nodes))
        arrays["feature"][here] = np.where(leaf, 0, nodes["feature_idx"])
        arrays["threshold"][here] = np.where(leaf, 0.0, nodes["num_threshold"])
        arrays["left"][here] = np.where(leaf, itself, nodes["left"])
        arrays["right"][here] = np.where(leaf, itself, nodes["right"])
        arrays["value"][here] = np.where(leaf, nodes["value"], 0.0)
    found = {f"{prefix}.{name}": array for name, array in arrays.items()}
    return {**found, f"{prefix}.base": np.array([float(np.ravel(model._baseline_prediction)[0])])}
