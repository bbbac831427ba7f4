"""Training of the judge's compute model."""

from __future__ import annotations

import numpy as np
import torch

from shardgym.costs.simulator.features import Groups, judge_features
from shardgym.costs.simulator.judge_networks import JudgeComputeNet
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.samples import ComputeSamples, ragged
from shardgym.pretraining.fit import FitSettings, Fitted, Index, Progress, fit, log_loss, split
from shardgym.pretraining.torch_ops import TORCH, initial_layers


def train_judge_compute(
    samples: ComputeSamples, settings: FitSettings, seed: int, progress: Progress | None = None
) -> Fitted:
    """Train the judge's compute model; the result has its fixed parameters too.

    Args:
        samples: of the judge's role.
        settings: how.
        seed: of weights, split and order.
        progress: called after every epoch.
    """
    train, valid = split(samples.labels.content, seed)
    features = judge_features(samples.shards)
    learned = samples.take(train)
    constants = JudgeComputeNet.fixed_params(judge_features(learned.shards), learned.counts, learned.ms)
    tensors = {name: torch.from_numpy(value).float() for name, value in constants.items()}
    seen, targets = torch.from_numpy(features).float(), torch.from_numpy(np.log(samples.ms)).float()
    layers = initial_layers(
        JudgeComputeNet.sizes(), settings.members, torch.Generator().manual_seed(seed + 3), ("head",)
    )

    def loss_of(params: Params, index: Index) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        log_ms = JudgeComputeNet({**params, **tensors}, TORCH).log_ms(seen[rows], Groups(samples.counts[index]))
        return log_loss(log_ms - targets[torch.from_numpy(index)])

    fitted = fit(layers, loss_of, train, valid, settings, seed, "compute", progress)
    fitted.params = {**fitted.params, **tensors}
    return fitted
