"""Training of the oracle's and the judge's communication models, one direction at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Exchanges, Groups
from shardgym.costs.simulator.judge_networks import DevicePairs, JudgeCommNet
from shardgym.costs.simulator.network import Params
from shardgym.costs.simulator.oracle_networks import CommInputs, CommNet
from shardgym.costs.simulator.samples import CommSamples, ragged
from shardgym.pretraining.fit import FitSettings, Fitted, Index, LossOf, Progress, fit, log_loss, split
from shardgym.pretraining.prior import fit_prior
from shardgym.pretraining.torch_ops import TORCH, initial_layers

FORWARD, BACKWARD = 0, 1
DIRECTIONS = ("forward", "backward")


def exchanges_of_samples(samples: CommSamples, direction: int) -> Exchanges:
    """Return the exchanges of one direction; backward ones start aligned."""
    groups = Groups(samples.counts)
    offsets = samples.offsets_ms if direction == FORWARD else np.zeros(len(samples.offsets_ms))
    return Exchanges(groups, samples.widths, offsets, samples.batch[groups.ids], samples.element_bytes[groups.ids])


def train_exchange(
    samples: CommSamples, direction: int, settings: FitSettings, seed: int, progress: Progress | None = None
) -> Fitted:
    """Train the oracle's model of one direction (0 forward, 1 backward)."""
    train, valid = split(samples.labels.content, seed)
    exchanges = exchanges_of_samples(samples, direction)
    seen = CommNet.inputs(exchanges)
    learned = CommNet.inputs(exchanges_of_samples(samples.take(train), direction))
    constants = _tensors(CommNet.fixed_params(learned, _prior(learned, samples.take(train).ms[:, direction])))
    inputs = CommInputs(*(torch.from_numpy(part).float() for part in seen))
    targets = torch.from_numpy(np.log(samples.ms[:, direction])).float()
    layers = initial_layers(CommNet.sizes(), settings.members, torch.Generator().manual_seed(seed + 1), ("head",))

    def loss_of(params: Params, index: Index) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        part = CommInputs(*(value[rows] for value in inputs))
        log_ms = CommNet({**params, **constants}, TORCH).log_ms(part, Groups(samples.counts[index]))
        return log_loss(log_ms[..., 0] - targets[rows])

    return _fit(layers, constants, loss_of, train, valid, settings, seed, DIRECTIONS[direction], progress)


def train_judge_exchange(
    samples: CommSamples, direction: int, settings: FitSettings, seed: int, progress: Progress | None = None
) -> Fitted:
    """Train the judge's model of one direction (0 forward, 1 backward)."""
    train, valid = split(samples.labels.content, seed)
    seen = DevicePairs(exchanges_of_samples(samples, direction))
    learned = DevicePairs(exchanges_of_samples(samples.take(train), direction))
    ms = samples.take(train).ms[:, direction]
    constants = _tensors(JudgeCommNet.fixed_params(learned.features, np.maximum(ms - learned.wait_ms[:, 0], 0.05 * ms)))
    pairs, wait = torch.from_numpy(seen.features).float(), torch.from_numpy(seen.wait_ms).float()
    targets = torch.from_numpy(np.log(samples.ms[:, direction])).float()
    generator = torch.Generator().manual_seed(seed + 2)
    layers = initial_layers(JudgeCommNet.sizes(), settings.members, generator, ("head",))

    def loss_of(params: Params, index: Index) -> torch.Tensor:
        rows = ragged(samples.counts, index)
        messages = torch.from_numpy(ragged(seen.receivers.counts, rows))
        devices = torch.from_numpy(rows)
        peers = Groups(seen.receivers.counts[rows])
        log_ms = JudgeCommNet({**params, **constants}, TORCH).log_ms(pairs[messages], wait[devices], peers)
        return log_loss(log_ms[..., 0] - targets[devices])

    return _fit(layers, constants, loss_of, train, valid, settings, seed, DIRECTIONS[direction], progress)


def _fit(
    layers: Params, constants: Params, loss_of: LossOf, train: Index, valid: Index, settings: FitSettings,
    seed: int, name: str, progress: Progress | None,
) -> Fitted:  # fmt: skip
    fitted = fit(layers, loss_of, train, valid, settings, seed, f"{name} communication", progress)
    fitted.params = {**fitted.params, **constants}
    return fitted


def _tensors(constants: dict[str, Any]) -> Params:
    return {name: torch.from_numpy(value).float() for name, value in constants.items()}


def _prior(seen: CommInputs, ms: Floats) -> Floats:
    """Fit the analytic sum to the devices that come last: their times contain no wait."""
    last = seen.wait_ms[:, 0] == 0
    scaled = seen.amounts / np.maximum(seen.amounts.mean(axis=0), 1e-9)
    return fit_prior(scaled[last], ms[last])[:, None]
