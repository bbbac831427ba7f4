"""How well predicted compute ranks complete plans, on the devices that `shardgym collect` measures of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.collection.settings import PLAN_DEVICES, PLANS_PER_TASK
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.pretraining.assess import predict_compute
from shardgym.pretraining.metrics import kendall_tau, mape

#: Fewer plans of a task have no ranking worth the name.
_LEAST = 3


def rank_plans(predictor: Networks, samples: ComputeSamples) -> dict[str, Any]:
    """Score predictions of whole plans: compute of the slowest device, plans of the same tables against each other.

    Args:
        predictor: the networks.
        samples: of role "plans"; plans that lack a device are left out.

    Returns:
        {"plans": scores} with means over tasks, keys as in `score`; nothing when no task has three whole plans.
    """
    if not len(samples):
        return {}
    measured, again = _slowest(samples, samples.ms.sum(axis=1), 0), _slowest(samples, samples.ms.sum(axis=1), 1)
    predicted = _slowest(samples, predict_compute(predictor, samples).sum(axis=1), 0)
    ours, noise = _over_tasks(predicted, measured), _over_tasks(again, measured)
    if not ours:
        return {}
    scores = {
        "samples": len(measured), "mape": _mean(ours, 0), "noise_mape": _mean(noise, 0), "noise_pairs": len(again),
        "mape_over_noise": _mean(ours, 0) / _mean(noise, 0) if noise else None,
        "kendall_tau": _mean(ours, 1), "noise_kendall_tau": _mean(noise, 1),
    }  # fmt: skip
    return {"plans": scores}


def _slowest(samples: ComputeSamples, ms: Floats, repeat: int) -> dict[int, float]:
    """Return ms of the slowest device by plan, of plans all of whose devices have this measurement."""
    devices: dict[int, dict[int, float]] = {}
    for name, value in zip(samples.labels.sample_id.tolist(), ms.tolist(), strict=True):
        number, which = map(int, name.split("/")[-2:])
        if which == repeat:
            devices.setdefault(number // PLAN_DEVICES, {})[number % PLAN_DEVICES] = value
    return {plan: max(held.values()) for plan, held in devices.items() if len(held) == PLAN_DEVICES}


def _over_tasks(first: dict[int, float], second: dict[int, float]) -> list[tuple[float, float]]:
    """Return (relative error, Kendall's tau) of each task that has enough plans in both."""
    tasks: dict[int, list[int]] = {}
    for plan in sorted(first.keys() & second.keys()):
        tasks.setdefault(plan // PLANS_PER_TASK, []).append(plan)
    pairs = [
        (np.array([first[p] for p in plans]), np.array([second[p] for p in plans]))
        for plans in tasks.values() if len(plans) >= _LEAST
    ]  # fmt: skip
    return [(mape(one, other), kendall_tau(one, other)) for one, other in pairs]


def _mean(found: list[tuple[float, float]], which: int) -> Any:
    return float(np.mean([row[which] for row in found])) if found else None
