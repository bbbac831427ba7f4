"""What each network of a simulator learns: its inputs and targets as tensors, what is not trained, and its loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Groups, judge_features
from shardgym.costs.simulator.judge_networks import DevicePairs, JudgeCommNet, JudgeComputeNet
from shardgym.costs.simulator.network import Network, Params
from shardgym.costs.simulator.oracle_networks import CommInputs, CommNet, ComputeNet
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, ragged
from shardgym.pretraining.data import DIRECTIONS, exchanges_of
from shardgym.pretraining.priors import fit_prior, fit_priors_with_constant, without_wait_ms
from shardgym.pretraining.torch_ops import TORCH, tensor


class Problem(NamedTuple):
    """What differs between networks that are trained alike.

    Attributes:
        fixed: parameters that are not trained, by name.
        loss_of: takes parameters and positions of samples, and returns the loss of every member, shape (K,).
    """

    fixed: dict[str, Floats]
    loss_of: Callable[[Params, Ints], torch.Tensor]


def problem_of(network: type[Network], part: str, samples: ComputeSamples | CommSamples, train: Ints) -> Problem:
    """Return the problem of a network.

    Args:
        network: an oracle's or a judge's, of compute or of exchanges.
        part: "compute", "forward" or "backward".
        samples: of compute or of exchanges, accordingly.
        train: positions of those that are learned from; scales and analytic sums are of these alone.
    """
    learned = samples.take(train)
    if isinstance(samples, ComputeSamples):
        assert isinstance(learned, ComputeSamples)
        if issubclass(network, ComputeNet):
            return _oracle_compute(network, samples, learned)
        return _judge_compute(samples, learned)
    assert isinstance(learned, CommSamples)
    direction = DIRECTIONS.index(part)
    if issubclass(network, CommNet):
        return _oracle_comm(network, samples, learned, direction)
    return _judge_comm(samples, learned, direction)


def _oracle_compute(net: type[ComputeNet], samples: ComputeSamples, learned: ComputeSamples) -> Problem:
    """Learn forward, backward and total times."""
    features, amounts = map(tensor, net.inputs(samples.shards))
    targets = tensor(np.log(np.column_stack([samples.ms, samples.ms.sum(axis=1)])))

    def loss_of(params: Params, index: Ints) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        groups = Groups(samples.counts[index])
        log_ms = net(params, TORCH).log_ms(features[rows], amounts[rows], groups)
        total = torch.logsumexp(log_ms, dim=-1, keepdim=True)
        return log_loss(torch.cat([log_ms, total], dim=-1) - targets[torch.from_numpy(index)])

    known_features, known_amounts = net.inputs(learned.shards)
    unit = np.maximum(known_amounts.mean(axis=0), 1e-9)
    totals = np.add.reduceat(known_amounts / unit, Groups(learned.counts).starts, axis=0)
    weights = fit_priors_with_constant(np.column_stack([totals, np.ones(len(learned))]), learned.ms)
    fixed = net.fixed_params(known_features, known_amounts, learned.counts, prior=weights[:-1], device_ms=weights[-1])
    return Problem(fixed, loss_of)


def _judge_compute(samples: ComputeSamples, learned: ComputeSamples) -> Problem:
    """Learn forward and backward times."""
    features = tensor(judge_features(samples.shards))
    targets = tensor(np.log(samples.ms))

    def loss_of(params: Params, index: Ints) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        log_ms = JudgeComputeNet(params, TORCH).log_ms(features[rows], Groups(samples.counts[index]))
        return log_loss(log_ms - targets[torch.from_numpy(index)])

    fixed = JudgeComputeNet.fixed_params(judge_features(learned.shards), learned.counts, learned.ms)
    return Problem(fixed, loss_of)


def _oracle_comm(net: type[CommNet], samples: CommSamples, learned: CommSamples, direction: int) -> Problem:
    """Learn times of one direction, `FORWARD` or `BACKWARD`."""
    inputs = CommInputs(*map(tensor, net.inputs(exchanges_of(samples, direction))))
    targets = tensor(np.log(samples.ms[:, direction]))

    def loss_of(params: Params, index: Ints) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        part = CommInputs(*(value[rows] for value in inputs))
        log_ms = net(params, TORCH).log_ms(part, Groups(samples.counts[index]))
        return log_loss(log_ms[..., 0] - targets[rows])

    known = net.inputs(exchanges_of(learned, direction))
    # The analytic sum is fitted to the devices that come last: their times contain no wait.
    last = known.wait_ms[:, 0] == 0
    scaled = known.amounts / np.maximum(known.amounts.mean(axis=0), 1e-9)
    prior = fit_prior(scaled[last], learned.ms[last, direction])
    return Problem(net.fixed_params(known, prior[:, None]), loss_of)


def _judge_comm(samples: CommSamples, learned: CommSamples, direction: int) -> Problem:
    """Learn times of one direction, `FORWARD` or `BACKWARD`."""
    inputs = DevicePairs(exchanges_of(samples, direction))
    pairs = tensor(inputs.features)
    wait_ms = tensor(inputs.wait_ms)
    targets = tensor(np.log(samples.ms[:, direction]))

    def loss_of(params: Params, index: Ints) -> torch.Tensor:
        rows = ragged(samples.counts, index)
        messages = torch.from_numpy(ragged(inputs.receivers.counts, rows))
        devices = torch.from_numpy(rows)
        receivers = Groups(inputs.receivers.counts[rows])
        log_ms = JudgeCommNet(params, TORCH).log_ms(pairs[messages], wait_ms[devices], receivers)
        return log_loss(log_ms[..., 0] - targets[devices])

    known = DevicePairs(exchanges_of(learned, direction))
    transfers = without_wait_ms(learned.ms[:, direction], known.wait_ms[:, 0])
    return Problem(JudgeCommNet.fixed_params(known.features, transfers), loss_of)


def log_loss(log_errors: torch.Tensor, width: float = 0.1) -> torch.Tensor:
    """Return Huber's loss of logarithmic errors per member: (K, ...) becomes (K,).

    Args:
        log_errors: predicted minus measured logarithms.
        width: where it turns from squares to absolute values, about the noise of one measurement.
    """
    size = log_errors.abs()
    huber = torch.where(size < width, size**2 / (2 * width), size - width / 2)
    return huber.flatten(1).mean(dim=1)
