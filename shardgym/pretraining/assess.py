"""Errors of a trained simulator on measurements it never saw, through the code that serves predictions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples
from shardgym.pretraining.exchange import BACKWARD, DIRECTIONS, exchanges_of_samples
from shardgym.pretraining.metrics import per_group, repeat_pairs, score


def predict_compute(predictor: Networks, samples: ComputeSamples) -> Floats:
    """Return forward and backward ms, shape (N, 2)."""
    return predictor.compute(predictor.encode(samples.shards), Groups(samples.counts)).ms


def assess(predictor: Networks, compute: ComputeSamples, comm: CommSamples) -> dict[str, Any]:
    """Return the scores of each part: forward, backward and total compute, and both directions of communication.

    Communication is scored by the slowest device of each exchange, if there are any.
    """
    predicted, measured, pairs = predict_compute(predictor, compute), compute.ms, repeat_pairs(compute.labels)
    scores = {
        "forward_compute": score(predicted[:, 0], measured[:, 0], pairs),
        "backward_compute": score(predicted[:, 1], measured[:, 1], pairs),
        "compute": score(predicted.sum(axis=1), measured.sum(axis=1), pairs),
    }
    for direction, name in enumerate(DIRECTIONS if len(comm) else ()):
        ms = predictor.exchange_ms(exchanges_of_samples(comm, direction), backward=direction == BACKWARD)
        slowest = per_group(ms, comm.counts), per_group(comm.ms[:, direction], comm.counts)
        scores[f"{name}_comm"] = score(*slowest, repeat_pairs(comm.labels))
    return scores


def by_count(predictor: Networks, samples: ComputeSamples) -> list[dict[str, Any]]:
    """Return the error of total compute by number of shards on the device."""
    error, most = _relative_error(predictor, samples), int(samples.counts.max())
    rows = []
    for low, high in itertools.pairwise([1, 2, 3, 5, 9, 17, 33, most + 1]):
        here = (samples.counts >= low) & (samples.counts < high)
        if here.any():
            rows.append({"from": low, "to": high - 1, "samples": int(here.sum()), "mape": float(error[here].mean())})
    return rows


def by_dim(predictor: Networks, samples: ComputeSamples) -> list[dict[str, Any]]:
    """Return the error of total compute by the widest shard on the device."""
    error = _relative_error(predictor, samples)
    widest = per_group(samples.shards.columns, samples.counts)
    return [
        {"embedding_dim": int(dim), "samples": int((widest == dim).sum()), "mape": float(error[widest == dim].mean())}
        for dim in np.unique(widest)
    ]


def _relative_error(predictor: Networks, samples: ComputeSamples) -> Floats:
    total = samples.ms.sum(axis=1)
    return np.asarray(np.abs(predict_compute(predictor, samples).sum(axis=1) - total) / total, dtype=np.float64)
