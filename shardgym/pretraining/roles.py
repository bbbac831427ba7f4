"""Training all networks of one role and putting them together."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups, comm_range_features, device_range_parts, shard_range_features
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples
from shardgym.costs.simulator.weights import Role, Weights, networks_of
from shardgym.pretraining.compute import train_compute
from shardgym.pretraining.exchange import (
    BACKWARD,
    FORWARD,
    exchanges_of_samples,
    train_exchange,
    train_judge_exchange,
)
from shardgym.pretraining.fit import FitSettings, Fitted, Progress, one_thread, split
from shardgym.pretraining.judge_compute import train_judge_compute

_TRAINERS = {"oracle": (train_compute, train_exchange), "judge": (train_judge_compute, train_judge_exchange)}


@dataclass(frozen=True)
class Trained:
    """Weights of a role, and training and validation losses of each network by epoch."""

    weights: Weights
    curves: dict[str, dict[str, list[float]]]


def train_role(
    role: Role,
    hardware: str,
    compute: ComputeSamples,
    comm: CommSamples,
    settings: FitSettings,
    seed: int,
    progress: Progress | None = None,
) -> Trained:
    """Train a simulator; the same samples, settings and seed give the same weights.

    Args:
        role: which architecture.
        hardware: tag of the samples.
        compute: samples that the role may learn from.
        comm: likewise; with none, the simulator predicts compute alone.
        settings: how.
        seed: of everything random.
        progress: called after every epoch.
    """  # fmt: skip
    train_shards, train_comm = _TRAINERS[role]
    with one_thread():
        fitted = {"compute": train_shards(compute, settings, seed, progress)}
        if len(comm):
            fitted["forward"] = train_comm(comm, FORWARD, settings, seed, progress)
            fitted["backward"] = train_comm(comm, BACKWARD, settings, seed, progress)
    weights = Weights(
        role, hardware, _distinct(compute.precision), _distinct(compute.optimizer),
        {name: _arrays(part) for name, part in fitted.items()}, _ranges(compute, comm), spread_limit=0.0,
    )  # fmt: skip
    weights = dataclasses.replace(weights, spread_limit=_spread_limit(weights, compute, seed))
    curves = {
        name: {"train": _rounded(part.train_loss), "valid": _rounded(part.valid_loss)} for name, part in fitted.items()
    }
    return Trained(weights, curves)


def _arrays(fitted: Fitted) -> Params:
    return {name: value.detach().double().numpy() for name, value in fitted.params.items()}


def _rounded(losses: list[float]) -> list[float]:
    return [float(f"{loss:.5g}") for loss in losses]


def _distinct(names: Any) -> tuple[str, ...]:
    return tuple(np.unique(names).tolist())


def _ranges(compute: ComputeSamples, comm: CommSamples) -> dict[str, Floats]:
    starts = np.cumsum(compute.counts) - compute.counts
    values = {
        "shard": shard_range_features(compute.shards),
        "device": np.add.reduceat(device_range_parts(compute.shards), starts, axis=0),
    }
    if len(comm):
        values["comm"] = comm_range_features(exchanges_of_samples(comm, FORWARD))
    return {name: np.stack([value.min(axis=0), value.max(axis=0)]) for name, value in values.items()}


def _spread_limit(weights: Weights, compute: ComputeSamples, seed: int) -> float:
    """Largest disagreement on the contents that were held out of training."""
    held_out = compute.take(split(compute.labels.content, seed)[1])
    predictor = networks_of(weights)
    return float(predictor.compute(predictor.encode(held_out.shards), Groups(held_out.counts)).disagreement.max())
