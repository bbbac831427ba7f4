"""Compare trained simulators with the architecture that NeuroShard published, trained on the same samples.

    python studies/published_architecture/run.py DATA MODEL [--epochs 1000] [--json]

DATA is a folder of 'shardgym collect', MODEL what 'shardgym pretrain DATA -o MODEL' wrote. Both architectures are
tested on the same rows, and both learn compute from growing parts of the data. The result goes into the oracle's card,
`MODEL/oracle.json`, as `comparison`, and into two plots in `MODEL/report/`.

The published models (`compute_cost_model.py`, `comm_cost_model.py`), written anew from the description of layers and
settings: one network for forward and backward compute together, 20 features, standardised and otherwise raw, 20-128-32
with ReLU after both layers, summed over shards, 32-64-1. For communication, networks of their own per number of devices
and direction, D-128-64-32-16-D backward, 2D inputs forward. Mean squared error in ms, Adam with rate 1e-3, batches of
512, the state of the best validation epoch.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import Groups, Shards
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.network import Networks, member
from shardgym.costs.simulator.oracle_networks import ComputeNet
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, ragged
from shardgym.costs.simulator.weights import load_weights, networks_of
from shardgym.errors import InputError, ShardGymError
from shardgym.files import make_folder, write_whole
from shardgym.pretraining.assess import largest_per_group, mape, noise_floor, predict_compute, repeat_pairs, score
from shardgym.pretraining.data import BACKWARD, DIRECTIONS, FORWARD, DataSet, exchanges_of, load_data, split
from shardgym.pretraining.pretrain import draw, draw_noise
from shardgym.pretraining.torch_ops import one_thread
from shardgym.pretraining.train import FitSettings, TrainedNetwork, train_network

#: Passes of the published training (NeuroShard's scripts).
EPOCHS = 1000
LEARNING_RATE = 1e-3
BATCH = 512

#: Smallest part of the data that a learning curve starts from, in distinct samples; it doubles from there.
_FIRST_SIZE = 64
#: Fewer distinct samples of one number of devices are not enough for a net of their own.
_LEAST_COMM = 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of samples")
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of weights and cards")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the published models (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        parser.error(f"--epochs {options.epochs}: expected a whole number from 1 on")
    try:
        card, plots = report(load_data(options.data), options.model, options.epochs)
    except ShardGymError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(card.comparison, indent=1))
        return 0
    for part in _parts(card):
        ours, published = (100 * card.comparison[part][who]["mape"] for who in ("ours", "published"))
        print(f"{part.replace('_', ' ')}: error {ours:.1f} %, published architecture {published:.1f} %")
    for path in plots:
        print(path)
    return 0


def report(data: DataSet, model: Path, epochs: int = EPOCHS) -> tuple[ModelCard, list[Path]]:
    """Compare the oracle of a folder, write that into its card and draw it; returns the card and the plots.

    Raises:
        InputError: the card is of other data.
        MissingDependencyError: matplotlib is not installed.
    """
    card = ModelCard.load(model / "oracle.json")
    if card.data_sha256 != data.digests:
        raise InputError(f"{model / 'oracle.json'} is of other data: give the folder that it was trained on")
    networks = networks_of(load_weights(model / "oracle.safetensors", "oracle", card.hardware))
    card = dataclasses.replace(
        card, comparison=compare(networks, data, FitSettings(**card.settings), epochs, card.seed)
    )
    write_whole(model / "oracle.json", card.to_json(indent=1) + "\n")
    make_folder(model / "report")
    plots = [
        draw(model / "report" / "oracle-learning-curve.png", lambda axes: _draw_learning_curve(axes, card)),
        draw(model / "report" / "oracle-published.png", lambda axes: _draw_errors(axes, card)),
    ]
    return card, plots


def compare(networks: Networks, data: DataSet, settings: FitSettings, epochs: int, seed: int) -> dict[str, Any]:
    """Train the published models on the oracle's samples, and both kinds of compute model on parts of them.

    Returns:
        "compute" and "forward_comm", "backward_comm" with "ours" and "published" scores; "learning_curve"; and
        "samples_to_twice_noise" of both: distinct samples needed to reach twice the noise floor, None when never.
    """
    compute, comm = data.of("oracle")
    test, test_comm = data.of("test")
    total = test.ms.sum(axis=1)
    pairs = repeat_pairs(test.labels)
    result: dict[str, Any] = {
        "compute": {
            "ours": score(predict_compute(networks, test).sum(axis=1), total, pairs),
            "published": score(train_published_compute(compute, epochs, seed)(test), total, pairs),
        }
    }
    for direction, name in enumerate(DIRECTIONS if len(test_comm) else ()):
        result[f"{name}_comm"] = _compare_comm(networks, comm, test_comm, direction, epochs, seed)
    curve = learning_curve(compute, test, settings, epochs, seed)
    noise = noise_floor(total, pairs)
    result["learning_curve"] = curve
    result["samples_to_twice_noise"] = {
        who: next((row["contents"] for row in curve if noise is not None and row[who] <= 2 * noise), None)
        for who in ("ours", "published")
    }
    return result


def learning_curve(
    samples: ComputeSamples, test: ComputeSamples, settings: FitSettings, epochs: int, seed: int
) -> list[dict[str, Any]]:
    """Return the error of total compute on test rows by distinct samples trained on, ours and the published."""
    contents = np.random.default_rng([seed, 17]).permutation(np.unique(samples.labels.content))
    sizes = [size for n in range(30) if (size := _FIRST_SIZE * 2**n) < len(contents)] + [len(contents)]
    single = dataclasses.replace(settings, members=1)
    total = test.ms.sum(axis=1)
    rows = []
    for size in tqdm(sizes, desc="learning curve", disable=None):
        part = samples.take(np.flatnonzero(np.isin(samples.labels.content, contents[:size])))
        with one_thread():
            ours = _best_member_ms(train_network("oracle", "compute", part, single, seed), test).sum(axis=1)
        theirs = train_published_compute(part, epochs, seed)(test)
        rows.append({"contents": size, "ours": mape(ours, total), "published": mape(theirs, total)})
    return rows


def _best_member_ms(fitted: TrainedNetwork, samples: ComputeSamples) -> Floats:
    """Predict forward and backward ms of samples with the best member, shape (N, 2)."""
    params = member({name: value.double().numpy() for name, value in fitted.params.items()}, 0)
    log_ms = ComputeNet(params).log_ms(*ComputeNet.inputs(samples.shards), Groups(samples.counts))
    return np.asarray(np.exp(log_ms), dtype=np.float64)


def _compare_comm(
    networks: Networks, comm: CommSamples, test: CommSamples, direction: int, epochs: int, seed: int
) -> dict[str, Any]:
    """Score numbers of devices that both the training and the test rows have enough of."""
    ours: list[Floats] = []
    theirs: list[Floats] = []
    kept: list[Ints] = []
    for devices in np.unique(test.counts):
        learned = comm.take(np.flatnonzero(comm.counts == devices))
        if len(np.unique(learned.labels.content)) < _LEAST_COMM:
            continue
        positions = np.flatnonzero(test.counts == devices)
        part = test.take(positions)
        ms = networks.exchange_ms(exchanges_of(part, direction), backward=direction == BACKWARD)
        ours.append(largest_per_group(ms, part.counts))
        theirs.append(largest_per_group(train_published_comm(learned, direction, epochs, seed)(part), part.counts))
        kept.append(positions)
    if not kept:
        return {}
    part = test.take(np.concatenate(kept))
    measured = largest_per_group(part.ms[:, direction], part.counts)
    pairs = repeat_pairs(part.labels)
    return {
        "ours": score(np.concatenate(ours), measured, pairs),
        "published": score(np.concatenate(theirs), measured, pairs),
    }


class PublishedCompute(nn.Module):
    """Deep set without analytic part; predicts forward plus backward ms.

    Args:
        mean: of the 20 features over shards.
        scale: standard deviation of the features.
    """

    def __init__(self, mean: torch.Tensor, scale: torch.Tensor) -> None:
        super().__init__()
        self._mean = mean
        self._scale = scale
        self.table = nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, 32), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features: torch.Tensor, owner: torch.Tensor, count: int) -> torch.Tensor:
        """Return ms of `count` devices; `owner` says whose shard each row of `features` is."""
        codes = self.table((features - self._mean) / self._scale)
        return self.head(codes.new_zeros(count, 32).index_add(0, owner, codes))[:, 0]


def published_features(shards: Shards) -> torch.Tensor:
    """Return columns, pooling factor, rows and 17 reuse bins of each shard, shape (S, 20)."""
    columns = [shards.columns, shards.pooling, shards.rows, shards.reuse]
    return torch.from_numpy(np.column_stack(columns)).float()


def train_published_compute(samples: ComputeSamples, epochs: int, seed: int) -> Callable[[ComputeSamples], Floats]:
    """Train the published compute model; return what predicts total ms of samples, shape (N,)."""
    train, valid = split(samples.labels.content, seed)
    features = published_features(samples.shards)
    targets = torch.from_numpy(samples.ms.sum(axis=1)).float()
    learned = features[torch.from_numpy(ragged(samples.counts, train))]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = PublishedCompute(learned.mean(dim=0), learned.std(dim=0) + 1e-6)

    def predict(index: Ints) -> torch.Tensor:
        owner = torch.from_numpy(np.repeat(np.arange(len(index)), samples.counts[index]))
        return model(features[torch.from_numpy(ragged(samples.counts, index))], owner, len(index))

    _fit(model, predict, targets, train, valid, epochs, seed)

    def predict_samples(others: ComputeSamples) -> Floats:
        owner = torch.from_numpy(np.repeat(np.arange(len(others)), others.counts))
        with torch.no_grad():
            return model(published_features(others.shards), owner, len(others)).double().numpy()

    return predict_samples


def train_published_comm(
    samples: CommSamples, direction: int, epochs: int, seed: int
) -> Callable[[CommSamples], Floats]:
    """Train the published communication model of one direction and one number of devices.

    Args:
        samples: all of the same number of devices.
        direction: `FORWARD` or `BACKWARD`.
        epochs: passes over the training samples.
        seed: of weights, split and order.

    Returns:
        What predicts ms of every device of samples with as many devices, flat, shape (S,).
    """
    devices = int(samples.counts[0])
    train, valid = split(samples.labels.content, seed)
    inputs = _comm_inputs(samples, direction)
    targets = torch.from_numpy(samples.ms[:, direction]).float().reshape(-1, devices)
    mean = inputs[train].mean(dim=0)
    scale = inputs[train].std(dim=0) + 1e-6
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for first, second in itertools.pairwise([inputs.shape[1], 128, 64, 32, 16]):
            layers += [nn.Linear(first, second), nn.ReLU()]
        model = nn.Sequential(*layers, nn.Linear(16, devices))

    def predict(index: Ints) -> torch.Tensor:
        return model((inputs[index] - mean) / scale)

    _fit(model, predict, targets, train, valid, epochs, seed)

    def predict_samples(others: CommSamples) -> Floats:
        with torch.no_grad():
            return model((_comm_inputs(others, direction) - mean) / scale).double().numpy().ravel()

    return predict_samples


def _comm_inputs(samples: CommSamples, direction: int) -> torch.Tensor:
    """Widths, and for the forward direction start offsets; shape (N, D) or (N, 2 D)."""
    shape = len(samples), -1
    parts = [samples.widths.reshape(shape)]
    if direction == FORWARD:
        parts.append(samples.offsets_ms.reshape(shape))
    return torch.from_numpy(np.hstack(parts)).float()


def _fit(
    model: nn.Module,
    predict: Callable[[Ints], torch.Tensor],
    targets: torch.Tensor,
    train: Ints,
    valid: Ints,
    epochs: int,
    seed: int,
) -> None:
    rng = np.random.default_rng([seed, 13])
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    best = {key: value.clone() for key, value in model.state_dict().items()}
    least = float("inf")
    with one_thread():
        for _ in range(epochs):
            shuffled = rng.permutation(train)
            for start in range(0, len(shuffled), BATCH):
                part = shuffled[start : start + BATCH]
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(predict(part), targets[torch.from_numpy(part)])
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                now = float(nn.functional.mse_loss(predict(valid), targets[torch.from_numpy(valid)]))
            if now < least:
                best = {key: value.clone() for key, value in model.state_dict().items()}
                least = now
    model.load_state_dict(best)


def _parts(card: ModelCard) -> list[str]:
    return [part for part in ("compute", "forward_comm", "backward_comm") if card.comparison.get(part)]


def _draw_learning_curve(axes: Any, card: ModelCard) -> None:
    rows = card.comparison["learning_curve"]
    for who, label in (("ours", "this simulator"), ("published", "published architecture")):
        axes.loglog([r["contents"] for r in rows], [100 * r[who] for r in rows], "o-", markersize=3, label=label)
    draw_noise(axes, card)
    axes.set(xlabel="distinct shard sets trained on", ylabel="error of total compute (%)")
    axes.legend()


def _draw_errors(axes: Any, card: ModelCard) -> None:
    parts = _parts(card)
    where = np.arange(len(parts))
    for shift, who in ((-0.2, "ours"), (0.2, "published")):
        axes.bar(where + shift, [100 * card.comparison[part][who]["mape"] for part in parts], 0.4, label=who)
    axes.set_xticks(where, parts)
    axes.set(ylabel="mean absolute error (%)")
    axes.legend()


if __name__ == "__main__":
    sys.exit(main())
