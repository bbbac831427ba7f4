"""Training the judge of version 2: boosted trees of scikit-learn, written out as plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from shardgym.arrays import Floats
from shardgym.costs.simulator.boosted_judge import (
    COMM_FEATURES,
    COMM_RISING,
    PHASES,
    analytic_ms,
    flattened_ms,
    seen,
)
from shardgym.costs.simulator.features import (
    DEVICE_CONTEXT,
    DEVICE_PARTS,
    WORK_NAMES,
    Groups,
    device_parts,
    device_vectors,
)
from shardgym.costs.simulator.monotone_networks import LEAST_MS
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.oracle_networks import CommNet
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples
from shardgym.errors import import_extra
from shardgym.pretraining.data import exchanges_of
from shardgym.pretraining.priors import fit_priors_with_constant, without_wait_ms

#: Trees of a sum, and how fast they learn. With more of either, unseen samples of a made-up machine did not gain.
_TREES = 300
_RATE = 0.06
_DEPTH = 6


def boost_compute(samples: ComputeSamples, seed: int) -> Params:
    """Return the parameters of the part "compute" of a `BoostedJudge`."""
    groups = Groups(samples.counts)
    parts = device_parts(samples.shards)
    totals = np.add.reduceat(parts[:, : len(WORK_NAMES)], groups.starts, axis=0)
    params = _analytic_params(totals, samples.ms)
    base = analytic_ms(params, totals)
    vectors = device_vectors(parts, groups)
    rising = [1] * (1 + DEVICE_PARTS - DEVICE_CONTEXT) + [0] * DEVICE_CONTEXT
    for phase, name in enumerate(PHASES):
        residual = np.log(samples.ms[:, phase] / flattened_ms(params, base, phase))
        params |= _boost(seen(base, phase, vectors), residual, rising, name, seed + phase)
    return params


def boost_exchange(samples: CommSamples, direction: int, seed: int) -> Params:
    """Return the parameters of the part "forward" or "backward" of a `BoostedJudge`."""
    inputs = CommNet.inputs(exchanges_of(samples, direction))
    ms = samples.ms[:, direction]
    wait_ms = inputs.wait_ms[:, 0]
    # The analytic sum is fitted to the devices that come last: their times contain no wait.
    last = wait_ms == 0
    params = _analytic_params(inputs.amounts[last], ms[last, None])
    base = analytic_ms(params, inputs.amounts)
    residual = np.log(without_wait_ms(ms, wait_ms) / flattened_ms(params, base, 0))
    rising = [1] * (1 + COMM_RISING) + [0] * (len(COMM_FEATURES) - COMM_RISING)
    x = seen(base, 0, inputs.features[:, COMM_FEATURES])
    return params | _boost(x, residual, rising, "transfer", seed + 2 + direction)


def _analytic_params(amounts: Floats, ms: Floats) -> Params:
    """Fit the analytic sum, with a constant."""
    unit = np.maximum(amounts.mean(axis=0), 1e-9)
    scaled = np.column_stack([amounts / unit, np.ones(len(amounts))])
    prior = fit_priors_with_constant(scaled, ms)
    logs = np.log(scaled @ prior + LEAST_MS)
    return {
        "fixed.work_unit": unit, "fixed.prior": prior,
        "fixed.log_low": logs.min(axis=0), "fixed.log_high": logs.max(axis=0),
    }  # fmt: skip


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
