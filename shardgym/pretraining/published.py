"""The published architecture (NeuroShard, `compute_cost_model.py` and `comm_cost_model.py`), for comparison only.

One network for forward and backward compute together: 20 features, standardised and otherwise raw; 20-128-32 with ReLU
after both layers, summed over shards, 32-64-1. For communication, networks of their own per number of devices and
direction: D-128-64-32-16-D backward, 2D inputs forward. Mean squared error in ms, Adam with rate 1e-3, batches of
512, the state of the best validation epoch. Written anew from the description of layers and settings.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from shardgym.arrays import Floats
from shardgym.costs.simulator.features import Shards
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, ragged
from shardgym.pretraining.fit import Index, one_thread, split

LEARNING_RATE = 1e-3
BATCH = 512


class PublishedCompute(nn.Module):
    """Deep set without analytic part; predicts forward plus backward ms.

    Args:
        mean: of the 20 features over shards.
        scale: standard deviation of the features.
    """

    def __init__(self, mean: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self._mean, self._scale = mean, scale
        self.table = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features: torch.Tensor, owner: torch.Tensor, count: int) -> torch.Tensor:
        """Return ms of `count` contents; `owner` says whose shard each row of `features` is."""
        codes = self.table((features - self._mean) / self._scale)
        return self.head(codes.new_zeros(count, 32).index_add(0, owner, codes))[:, 0]  # type: ignore[no-any-return]


def published_features(shards: Shards) -> torch.Tensor:
    """Return columns, pooling factor, rows and 17 reuse bins of each shard, shape (S, 20)."""
    columns = [shards.columns, shards.pooling, shards.rows, shards.reuse]
    return torch.from_numpy(np.column_stack(columns)).float()


def train_published_compute(samples: ComputeSamples, epochs: int, seed: int) -> Callable[[ComputeSamples], Floats]:
    """Train the published compute model; return what predicts total ms of samples, shape (N,)."""
    train, valid = split(samples.labels.content, seed)
    features, targets = published_features(samples.shards), torch.from_numpy(samples.ms.sum(axis=1)).float()
    learned = features[torch.from_numpy(ragged(samples.counts, train))]
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    model = PublishedCompute(learned.mean(dim=0), learned.std(dim=0) + 1e-6)
    torch.random.set_rng_state(torch_state)

    def predict(index: Index) -> torch.Tensor:
        owner = torch.from_numpy(np.repeat(np.arange(len(index)), samples.counts[index]))
        result: torch.Tensor = model(features[torch.from_numpy(ragged(samples.counts, index))], owner, len(index))
        return result

    _fit(model, predict, targets, train, valid, epochs, seed)

    def predict_samples(others: ComputeSamples) -> Floats:
        owner = torch.from_numpy(np.repeat(np.arange(len(others)), others.counts))
        with torch.no_grad():
            ms: torch.Tensor = model(published_features(others.shards), owner, len(others))
        return ms.double().numpy()

    return predict_samples


def train_published_comm(
    samples: CommSamples, direction: int, epochs: int, seed: int
) -> Callable[[CommSamples], Floats]:
    """Train the published communication model of one direction and one number of devices.

    Args:
        samples: all of the same number of devices.
        direction: 0 forward, 1 backward.
        epochs: passes over the training samples.
        seed: of weights, split and order.

    Returns:
        What predicts ms of every device of samples with as many devices, flat, shape (S,).
    """
    devices = int(samples.counts[0])
    train, valid = split(samples.labels.content, seed)
    inputs, targets = _comm_inputs(samples, direction), torch.from_numpy(samples.ms[:, direction]).float()
    mean, scale = inputs[train].mean(dim=0), inputs[train].std(dim=0) + 1e-6
    torch_state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    widths = [inputs.shape[1], 128, 64, 32, 16]
    layers: list[nn.Module] = []
    for first, second in itertools.pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(16, devices))
    torch.random.set_rng_state(torch_state)

    def predict(index: Index) -> torch.Tensor:
        result: torch.Tensor = model((inputs[index] - mean) / scale)
        return result

    _fit(model, predict, targets.reshape(-1, devices), train, valid, epochs, seed)

    def predict_samples(others: CommSamples) -> Floats:
        with torch.no_grad():
            ms: torch.Tensor = model((_comm_inputs(others, direction) - mean) / scale)
        return ms.double().numpy().ravel()

    return predict_samples


def _comm_inputs(samples: CommSamples, direction: int) -> torch.Tensor:
    """Widths, and for the forward direction start offsets; shape (N, D) or (N, 2 D)."""
    shape = len(samples), -1
    parts = [samples.widths.reshape(shape)]
    if direction == 0:
        parts.append(samples.offsets_ms.reshape(shape))
    return torch.from_numpy(np.hstack(parts)).float()


def _fit(
    model: nn.Module, predict: Callable[[Index], torch.Tensor], targets: torch.Tensor, train: Index, valid: Index,
    epochs: int, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng([seed, 13])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    best, least = {k: v.clone() for k, v in model.state_dict().items()}, float("inf")
    with one_thread():
        for _ in range(epochs):
            shuffled = rng.permutation(train)
            for start in range(0, len(shuffled), BATCH):
                part = shuffled[start : start + BATCH]
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(predict(part), targets[torch.from_numpy(part)])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            with torch.no_grad():
                now = float(nn.functional.mse_loss(predict(valid), targets[torch.from_numpy(valid)]))
            if now < least:
                best, least = {k: v.clone() for k, v in model.state_dict().items()}, now
    model.load_state_dict(best)
