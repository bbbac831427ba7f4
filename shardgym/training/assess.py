"""How good a trained simulator is on measurements it never saw, against what one measurement says about another."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.oracle import Networks
from shardgym.costs.simulator.samples import ComputeSamples, Labels, StepSamples
from shardgym.costs.simulator.weights import Weights, networks_of
from shardgym.training.priors import step_amounts
from shardgym.training.settings import PLAN_DEVICES, PLANS_PER_TASK

#: Fewer plans of a task have no ranking worth the name.
_LEAST_PLANS = 3
#: A collection, and the number of a plan in it: every collection counts its own plans from 0.
_Plan = tuple[str, int]


def assess(networks: Networks, samples: ComputeSamples) -> dict[str, Any]:
    """Return the scores of forward, backward and total compute."""
    predicted = predict_compute(networks, samples)
    pairs = repeat_pairs(samples.labels)
    return {
        "forward_compute": score(predicted[:, 0], samples.ms[:, 0], pairs),
        "backward_compute": score(predicted[:, 1], samples.ms[:, 1], pairs),
        "compute": score(predicted.sum(axis=1), samples.ms.sum(axis=1), pairs),
    }


def assess_lines(weights: Weights, steps: StepSamples) -> dict[str, Any]:
    """Return the scores of the other work of devices in a step, and of all their work."""
    assert weights.lines is not None, "it was trained on steps"
    pairs = repeat_pairs(steps.labels)
    other = np.einsum("nla,la->n", step_amounts(steps), weights.lines)
    measured = steps.parts_ms.sum(axis=1)
    work = other + predict_compute(networks_of(weights), steps.compute).sum(axis=1)
    return {
        "step_other_work": score(other, measured, pairs),
        "step_work": score(work, measured + steps.compute.ms.sum(axis=1), pairs),
    }


def predict_compute(networks: Networks, samples: ComputeSamples) -> Floats:
    """Return forward and backward ms, shape (N, 2)."""
    return networks.compute(networks.encode(samples.shards), Groups(samples.counts))


def errors_by_shards(networks: Networks, samples: ComputeSamples) -> list[dict[str, Any]]:
    """Return the error of total compute by number of shards on the device."""
    error = _relative_error(networks, samples)
    rows = []
    for low, high in itertools.pairwise([1, 2, 3, 5, 9, 17, 33, int(samples.counts.max()) + 1]):
        here = (samples.counts >= low) & (samples.counts < high)
        if here.any():
            rows.append({"from": low, "to": high - 1, "samples": int(here.sum()), "mape": float(error[here].mean())})
    return rows


def errors_by_dim(networks: Networks, samples: ComputeSamples) -> list[dict[str, Any]]:
    """Return the error of total compute by the widest shard on the device."""
    error = _relative_error(networks, samples)
    widest = largest_per_group(samples.shards.columns, samples.counts)
    return [
        {"embedding_dim": int(dim), "samples": int((widest == dim).sum()), "mape": float(error[widest == dim].mean())}
        for dim in np.unique(widest)
    ]


def _relative_error(networks: Networks, samples: ComputeSamples) -> Floats:
    total = samples.ms.sum(axis=1)
    return np.asarray(np.abs(predict_compute(networks, samples).sum(axis=1) - total) / total, dtype=np.float64)


def rank_plans(networks: Networks, samples: ComputeSamples) -> dict[str, Any]:
    """Score predictions of whole plans: compute of the slowest device, plans of the same tables against each other.

    Args:
        networks: that predict.
        samples: of role "plans"; plans that lack a device are left out.

    Returns:
        {"plans": scores} with means over tasks, keys as in `score`; nothing when no task has three whole plans.
    """
    if not len(samples):
        return {}
    total = samples.ms.sum(axis=1)
    measured = _slowest_by_plan(samples, total, repeat=0)
    again = _slowest_by_plan(samples, total, repeat=1)
    predicted = _slowest_by_plan(samples, predict_compute(networks, samples).sum(axis=1), repeat=0)
    error, tau = _means_over_tasks(predicted, measured)
    noise, noise_tau = _means_over_tasks(again, measured)
    if error is None:
        return {}
    scores = {
        "samples": len(measured),
        "mape": error,
        "noise_mape": noise,
        "noise_pairs": len(again),
        "mape_over_noise": None if noise is None else error / noise,
        "kendall_tau": tau,
        "noise_kendall_tau": noise_tau,
    }
    return {"plans": scores}


def _slowest_by_plan(samples: ComputeSamples, ms: Floats, repeat: int) -> dict[_Plan, float]:
    """Return ms of the slowest device by plan, of plans all of whose devices have this measurement."""
    devices: dict[_Plan, dict[int, float]] = {}
    labels = samples.labels
    for collection, name, value in zip(labels.collection.tolist(), labels.sample_id.tolist(), ms.tolist(), strict=True):
        number, which = map(int, name.split("/")[-2:])
        if which == repeat:
            devices.setdefault((collection, number // PLAN_DEVICES), {})[number % PLAN_DEVICES] = value
    return {plan: max(by_device.values()) for plan, by_device in devices.items() if len(by_device) == PLAN_DEVICES}


def _means_over_tasks(first: dict[_Plan, float], second: dict[_Plan, float]) -> tuple[float | None, float | None]:
    """Return relative error and Kendall's tau, means over the tasks that have enough plans in both."""
    tasks: dict[_Plan, list[_Plan]] = {}
    for collection, number in sorted(first.keys() & second.keys()):
        tasks.setdefault((collection, number // PLANS_PER_TASK), []).append((collection, number))
    pairs = [
        (np.array([first[p] for p in plans]), np.array([second[p] for p in plans]))
        for plans in tasks.values()
        if len(plans) >= _LEAST_PLANS
    ]
    if not pairs:
        return None, None
    errors = [mape(one, other) for one, other in pairs]
    taus = [kendall_tau(one, other) for one, other in pairs]
    return float(np.mean(errors)), float(np.mean(taus))


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
    first, second = pairs
    noise = noise_floor(measured, pairs)
    error = mape(predicted, measured)
    return {
        "samples": len(measured),
        "mape": error,
        "noise_mape": noise,
        "noise_pairs": len(first),
        "mape_over_noise": error / noise if noise else None,
        "kendall_tau": kendall_tau(predicted, measured),
        "noise_kendall_tau": kendall_tau(measured[first], measured[second]) if len(first) > 1 else None,
    }


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
    first, second = (ms[positions] for positions in pairs)
    return (mape(first, second) + mape(second, first)) / 2 if len(first) else None


def mape(predicted: Floats, measured: Floats) -> float:
    """Return the mean absolute percentage error as a fraction."""
    return float(np.mean(np.abs(predicted - measured) / measured))


def kendall_tau(first: Floats, second: Floats) -> float:
    """Return Kendall's rank correlation (tau-b)."""
    from scipy import stats

    return float(stats.kendalltau(first, second).statistic)


def largest_per_group(values: Floats, counts: Ints) -> Floats:
    """Return the largest value of each group, shape (G,): of an exchange, its slowest device."""
    return np.asarray(np.maximum.reduceat(values, np.cumsum(counts) - counts), dtype=np.float64)
