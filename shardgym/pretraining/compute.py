"""Training of the oracle's compute model."""

from __future__ import annotations

import numpy as np
import torch

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Groups
from shardgym.costs.simulator.network import Params, member
from shardgym.costs.simulator.oracle_networks import ComputeNet
from shardgym.costs.simulator.samples import ComputeSamples, ragged
from shardgym.pretraining.fit import FitSettings, Fitted, Index, Progress, fit, log_loss, split
from shardgym.pretraining.prior import fit_prior
from shardgym.pretraining.torch_ops import TORCH, initial_layers


def train_compute(
    samples: ComputeSamples, settings: FitSettings, seed: int, progress: Progress | None = None
) -> Fitted:
    """Train the oracle's compute model; the result has its fixed parameters too.

    Args:
        samples: of the role that it may learn from.
        settings: how.
        seed: of weights, split and order.
        progress: called after every epoch.
    """
    train, valid = split(samples.labels.content, seed)
    features, amounts = ComputeNet.inputs(samples.shards)
    constants = _constants(samples.take(train))
    tensors = {name: torch.from_numpy(value).float() for name, value in constants.items()}
    inputs = tuple(torch.from_numpy(part).float() for part in (features, amounts))
    targets = _targets(samples.ms)
    generator = torch.Generator().manual_seed(seed)
    layers = initial_layers(ComputeNet.sizes(), settings.members, generator, zero_last=("head",))

    def loss_of(params: Params, index: Index) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        groups = Groups(samples.counts[index])
        log_ms = ComputeNet({**params, **tensors}, TORCH).log_ms(inputs[0][rows], inputs[1][rows], groups)
        total = torch.logsumexp(log_ms, dim=-1, keepdim=True)
        return log_loss(torch.cat([log_ms, total], dim=-1) - targets[torch.from_numpy(index)])

    fitted = fit(layers, loss_of, train, valid, settings, seed, "compute", progress)
    fitted.params = {**fitted.params, **tensors}
    return fitted


def best_member_ms(fitted: Fitted, samples: ComputeSamples) -> Floats:
    """Predict forward and backward ms of samples with the best member, shape (N, 2)."""
    params = member({name: value.double().numpy() for name, value in fitted.params.items()}, 0)
    log_ms = ComputeNet(params).log_ms(*ComputeNet.inputs(samples.shards), Groups(samples.counts))
    return np.asarray(np.exp(log_ms), dtype=np.float64)


def _targets(ms: Floats) -> torch.Tensor:
    """Logarithms of forward, backward and both, shape (N, 3)."""
    return torch.from_numpy(np.log(np.column_stack([ms, ms.sum(axis=1)]))).float()


def _constants(samples: ComputeSamples) -> dict[str, Floats]:
    """Scales, and the analytic sum fitted to the training samples."""
    features, amounts = ComputeNet.inputs(samples.shards)
    unit = np.maximum(amounts.mean(axis=0), 1e-9)
    totals = np.add.reduceat(amounts / unit, np.cumsum(samples.counts) - samples.counts, axis=0)
    with_device = np.column_stack([totals, np.ones(len(samples))])
    weights = np.column_stack([fit_prior(with_device, samples.ms[:, phase]) for phase in range(2)])
    # Never quite 0: the head needs a logarithm for a device whose tables are not looked up.
    device_ms = np.maximum(weights[-1], 0.05 * np.quantile(samples.ms, 0.01, axis=0))
    return ComputeNet.fixed_params(features, amounts, samples.counts, weights[:-1], device_ms)
