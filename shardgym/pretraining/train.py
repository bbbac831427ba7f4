"""Training a simulator: a network, or boosted trees, for compute and for each direction of exchange."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from shardgym.arrays import Floats
from shardgym.costs.simulator.familiarity import fit_density
from shardgym.costs.simulator.features import (
    Groups,
    comm_range_features,
    device_parts,
    device_range_parts,
    device_vectors,
    exchange_vectors,
    shard_range_features,
)
from shardgym.costs.simulator.network import Network, Params
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples
from shardgym.costs.simulator.weights import NETWORKS, Density, Role, Weights, networks_of
from shardgym.pretraining.boosting import boost_compute, boost_exchange
from shardgym.pretraining.data import DIRECTIONS, FORWARD, exchanges_of, split
from shardgym.pretraining.problems import problem_of
from shardgym.pretraining.torch_ops import one_thread, tensor

#: Added to the seed of a network's first weights, so that those of one simulator start apart; by role and whether it
#: is of compute.
_SEEDS = {("oracle", True): 0, ("oracle", False): 1, ("judge", False): 2, ("judge", True): 3}

#: Takes what is trained, the epoch that is done, and how many there are.
Progress = Callable[[str, int, int], None]

#: Smallest and largest value of every weight of a layer, by name.
Bounds = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a network is trained.

    Attributes:
        epochs: passes over the training samples.
        least_steps: small data sets are passed over more often, until there are so many steps.
        batch: samples per step.
        learning_rate: at its highest; it rises over the first tenth of the steps and falls to 0 by a cosine.
        weight_decay: of AdamW, times the learning rate per step. On 2,700 measured contents 0.03, 0.3 and 2 made no
            difference on unseen tables beyond 0.001; with fewer contents, more is better.
        members: networks trained side by side, each from its own start.
        generation: version of the simulator, 1 or 2. The judge of version 2 is boosted, which the others do not touch.
    """

    epochs: int = 120
    least_steps: int = 600
    batch: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 0.3
    members: int = 3
    generation: int = 1


#: Of each version. Weights with signs need larger steps and less decay: with those of version 1, networks of version 2
#: err as much on what they learn from as on what they do not.
SETTINGS = {1: FitSettings(), 2: FitSettings(epochs=100, learning_rate=8e-3, weight_decay=0.03, generation=2)}


@dataclasses.dataclass
class TrainedNetwork:
    """What training gave.

    Attributes:
        params: fixed parameters, and trained ones of every member's best epoch on validation samples; the best member
            is first.
        train_loss: mean over members, per epoch.
        valid_loss: likewise.
    """

    params: Params
    train_loss: list[float]
    valid_loss: list[float]


def train_role(
    role: Role,
    hardware: str,
    compute: ComputeSamples,
    comm: CommSamples,
    settings: FitSettings,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Weights, dict[str, Any]]:
    """Train a simulator; the same samples, settings and seed give the same weights.

    Args:
        role: which architecture.
        hardware: tag of the samples.
        compute: samples that the role may learn from.
        comm: likewise; with none, the simulator predicts compute alone.
        settings: how.
        seed: of everything random.
        progress: called after every epoch.

    Returns:
        Weights, and training and validation losses of each network by epoch.
    """
    parts: dict[str, ComputeSamples | CommSamples] = {"compute": compute}
    if len(comm):
        parts |= dict.fromkeys(DIRECTIONS, comm)
    if settings.generation == 2 and role == "judge":
        return _boosted(hardware, compute, comm, seed, progress), {}
    with one_thread():
        fitted = {part: train_network(role, part, found, settings, seed, progress) for part, found in parts.items()}
    weights = Weights(
        role,
        hardware,
        tuple(np.unique(compute.precision).tolist()),
        tuple(np.unique(compute.optimizer).tolist()),
        {
            name: {key: value.detach().double().numpy() for key, value in part.params.items()}
            for name, part in fitted.items()
        },
        _feature_ranges(compute, comm) if settings.generation == 1 else {},
        spread_limit=0.0,
        generation=settings.generation,
        densities=_densities(compute, comm, seed) if settings.generation == 2 else {},
    )
    # What members disagree about on held-out samples is what they may disagree about at most before predictions are
    # noted as far from the training data.
    networks = networks_of(weights)
    held_out = compute.take(split(compute.labels.content, seed)[1])
    disagreement = networks.compute(networks.encode(held_out.shards), Groups(held_out.counts)).disagreement
    curves = {
        name: {
            "train": [float(f"{loss:.5g}") for loss in part.train_loss],
            "valid": [float(f"{loss:.5g}") for loss in part.valid_loss],
        }
        for name, part in fitted.items()
    }
    return dataclasses.replace(weights, spread_limit=float(disagreement.max())), curves


def _boosted(
    hardware: str, compute: ComputeSamples, comm: CommSamples, seed: int, progress: Progress | None
) -> Weights:
    """Return the judge of version 2. It is one sum of trees, so nobody disagrees."""
    networks = {"compute": boost_compute(compute, seed)}
    for direction, name in enumerate(DIRECTIONS if len(comm) else ()):
        networks[name] = boost_exchange(comm, direction, seed)
    if progress is not None:
        progress("trees", 1, 1)
    return Weights(
        "judge", hardware, tuple(np.unique(compute.precision).tolist()), tuple(np.unique(compute.optimizer).tolist()),
        networks, {}, spread_limit=0.0, generation=2, densities=_densities(compute, comm, seed),
    )  # fmt: skip


def _densities(compute: ComputeSamples, comm: CommSamples, seed: int) -> dict[str, Density]:
    """Fit the densities of what devices hold and of exchanges; a tenth of the samples says how low is too low."""
    vectors = {"device": (device_vectors(device_parts(compute.shards), Groups(compute.counts)), compute.labels)}
    if len(comm):
        vectors["exchange"] = exchange_vectors(exchanges_of(comm, FORWARD)), comm.labels
    found = {}
    for name, (of_samples, labels) in vectors.items():
        train, held_out = split(labels.content, seed)
        found[name] = fit_density(of_samples[train], of_samples[held_out], seed)
    return found


def _feature_ranges(compute: ComputeSamples, comm: CommSamples) -> dict[str, Floats]:
    """Return the least and the largest value of every feature by group, each of shape (2, F)."""
    starts = np.cumsum(compute.counts) - compute.counts
    values = {
        "shard": shard_range_features(compute.shards),
        "device": np.add.reduceat(device_range_parts(compute.shards), starts, axis=0),
    }
    if len(comm):
        values["comm"] = comm_range_features(exchanges_of(comm, FORWARD))
    return {name: np.stack([value.min(axis=0), value.max(axis=0)]) for name, value in values.items()}


def train_network(
    role: Role,
    part: str,
    samples: ComputeSamples | CommSamples,
    settings: FitSettings,
    seed: int,
    progress: Progress | None = None,
) -> TrainedNetwork:
    """Train one network with AdamW and keep, for every member, the best state on the validation samples.

    Args:
        role: which architecture.
        part: "compute", "forward" or "backward".
        samples: of compute or of exchanges, accordingly.
        settings: how.
        seed: of everything random.
        progress: called after every epoch.
    """
    train, valid = split(samples.labels.content, seed)
    network = NETWORKS[settings.generation, role][part]
    fixed, loss_of = problem_of(network, part, samples, train)
    layers = initial_layers(network, settings.members, seed + _SEEDS[role, part == "compute"])
    bounds = weight_bounds(network)
    _clamp(layers, bounds)  # turned into their bounds, first weights would make all units nearly the same
    constants = {key: tensor(value) for key, value in fixed.items()}
    rng = np.random.default_rng([seed, 11])
    optimizer = torch.optim.AdamW(layers.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    batches = math.ceil(len(train) / settings.batch)
    epochs = max(settings.epochs, math.ceil(settings.least_steps / batches))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, epochs * batches))
    best = {key: value.detach().clone() for key, value in layers.items()}
    with torch.no_grad():
        least = loss_of({**layers, **constants}, valid)
    fitted = TrainedNetwork({}, [], [])
    for epoch in range(epochs):
        losses = []
        for batch in np.array_split(rng.permutation(train), batches):
            optimizer.zero_grad()
            loss = loss_of({**layers, **constants}, batch)
            loss.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            _clamp(layers, bounds)
            scheduler.step()
            losses.append(float(loss.detach().mean()))
        with torch.no_grad():
            now = loss_of({**layers, **constants}, valid)
        better = now < least
        least = torch.where(better, now, least)
        for key, value in layers.items():
            best[key][better] = value.detach()[better]
        fitted.train_loss.append(float(np.mean(losses)))
        fitted.valid_loss.append(float(now.mean()))
        if progress is not None:
            progress(part if part == "compute" else f"{part} communication", epoch + 1, epochs)
    order = torch.argsort(least, stable=True)
    fitted.params = {**{key: value[order] for key, value in best.items()}, **constants}
    return fitted


def weight_bounds(network: type[Network]) -> Bounds:
    """Return the bounds that follow from the signs of a network's weights; nothing for networks without signs."""
    found: Bounds = {}
    for chain, widths in network.SIZES.items():
        for layer in range(len(widths) - 1):
            signs = network.signs(chain, layer)
            if signs is not None:
                low = np.where((signs == 1) | np.isnan(signs), 0.0, -np.inf)
                high = np.where((signs == -1) | np.isnan(signs), 0.0, np.inf)
                found[f"{chain}.{layer}.weight"] = tensor(low), tensor(high)
    return found


def _clamp(layers: Params, bounds: Bounds) -> None:
    """Set weights of the wrong sign to 0."""
    for key, (low, high) in bounds.items():
        layers[key].detach().clamp_(low, high)


def _rate(step: int, steps: int) -> float:
    """Return the share of the highest learning rate: rising over a tenth of the steps, then falling by a cosine."""
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def initial_layers(network: type[Network], members: int, seed: int) -> Params:
    """Return weights of all chains of layers, drawn uniformly as torch's linear layers draw theirs.

    The last layer of the chain "head" starts at 0, so that corrections start at none.

    Args:
        network: says how wide the layers are.
        members: networks that are trained together.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, widths in network.SIZES.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            is_last_of_head = name == "head" and layer == len(widths) - 2
            bound = 0.0 if is_last_of_head else inputs**-0.5
            for part, shape in (("weight", (members, inputs, outputs)), ("bias", (members, 1, outputs))):
                drawn = torch.empty(shape).uniform_(-1, 1, generator=generator)
                params[f"{name}.{layer}.{part}"] = (drawn * bound).requires_grad_()
    return params
