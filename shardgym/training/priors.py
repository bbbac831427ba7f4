"""What is known of times before anything is trained: analytic sums under networks and trees, and lines of a step."""

from __future__ import annotations

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.oracle import CONTEXTS
from shardgym.costs.simulator.samples import StepSamples
from shardgym.costs.step_parts import AMOUNTS, LINES, OF_OWN_SAMPLES


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


def step_amounts(steps: StepSamples) -> Floats:
    """Return what devices handle in each of the other parts of a step, shape (N, 5, 4), by `LINES` and `AMOUNTS`."""
    shards = steps.compute.shards
    groups = Groups(steps.compute.counts)
    batch = shards.batch[groups.starts]
    item = shards.element_bytes[groups.starts]
    one = np.ones(len(steps))
    columns = np.add.reduceat(shards.columns, groups.starts)
    ids = np.add.reduceat(shards.batch * shards.pooling, groups.starts)
    of_shards = np.column_stack([one, ids, batch * columns * item, batch * steps.compute.counts])
    everything = np.column_stack([steps.plan_ids, batch * steps.plan_columns * item, batch * steps.plan_shards])
    of_samples = np.column_stack([one, (steps.samples / batch)[:, None] * everything])
    amounts = np.zeros((len(steps), len(LINES), len(AMOUNTS)))
    for part, names in enumerate(LINES.values()):
        known = [0, *(AMOUNTS.index(name) for name in names)]
        amounts[:, part, known] = (of_samples if part in OF_OWN_SAMPLES else of_shards)[:, known]
    return amounts


def fit_lines(steps: StepSamples) -> Floats:
    """Fit the other work of a step to what devices handle: ms by `LINES` and `AMOUNTS`, shape (5, 4), none negative.

    Errors count relative to the compute of the device, as small parts of long steps do not matter.
    """
    from scipy import optimize

    amounts = step_amounts(steps)
    weight = 1 / steps.compute.ms.sum(axis=1)
    lines = np.zeros(amounts.shape[1:])
    for part in range(len(lines)):
        scale = np.maximum(amounts[:, part].mean(axis=0), 1e-9)
        weighted = amounts[:, part] / scale * weight[:, None]
        lines[part] = optimize.nnls(weighted, steps.parts_ms[:, part] * weight)[0] / scale
    return lines
