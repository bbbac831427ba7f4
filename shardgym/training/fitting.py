"""Fitting a simulator: an analytic sum, a network that corrects it, and lines for other parts of a step."""

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from shardgym.arrays import Floats, Ints
from shardgym.costs.simulator.features import (
    AMOUNTS,
    LINES,
    OF_OWN_SAMPLES,
    Groups,
    device_parts,
    device_vectors,
    shard_features,
    work,
)
from shardgym.costs.simulator.network import CONTEXTS, ComputeNet, Ops, Params
from shardgym.costs.simulator.weights import ROLES, Role, Weights, fit_density
from shardgym.training.data import split
from shardgym.training.samples import ComputeSamples, StepSamples, joined, ragged

#: Takes what is trained, the epoch that is done, and how many there are.
Progress = Callable[[str, int, int], None]

#: Where Huber's loss of logarithmic errors turns from squares to absolute values: about the noise of one measurement.
_NOISE = 0.1
#: Smallest and largest value of every weight of a layer, by name.
Bounds = dict[str, tuple[torch.Tensor, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a network is trained."""

    epochs: int = 100  #: passes over the training samples
    least_steps: int = 600  #: small data sets are passed over more often, until there are so many steps
    batch: int = 256  #: samples per step
    #: At its highest; it rises over the first tenth of the steps and falls to 0 by a cosine. Weights with signs need
    #: larger steps and less decay than others.
    learning_rate: float = 8e-3
    weight_decay: float = 0.03  #: of AdamW, times the learning rate per step
    members: int = 3  #: networks trained side by side, each from its own start; the best one is kept


def train_role(
    role: Role,
    hardware: str,
    alone: ComputeSamples,
    steps: StepSamples,
    settings: FitSettings,
    seed: int,
    progress: Progress | None = None,
) -> tuple[Weights, dict[str, Any]]:
    """Train a simulator; the same samples, settings and seed give the same weights.

    Args:
        role: role of the network; a judge starts from other weights than an oracle.
        hardware: tag of the samples that are predicted: steps, or kernels alone where there are no steps.
        alone: samples of kernels timed alone that the role may learn from.
        steps: samples of parts of complete steps; with none, the simulator predicts kernels alone.
        settings: settings of the training.
        seed: seed of weights, order of samples and draws.
        progress: called after every epoch.

    Returns:
        Weights, and training and validation losses by epoch.
    """
    samples = joined([alone, steps.compute])
    context = np.repeat(np.arange(len(CONTEXTS)), [len(alone), len(steps)])
    served = int(len(steps) > 0)
    seed += ROLES.index(role)
    with one_thread():
        trained, curves = _train_network(samples, context, settings, seed, progress)
    params = {key: value.detach().double().numpy() for key, value in trained.items()}
    learned, held_out = split(samples.content, seed)
    vectors = device_vectors(device_parts(samples.shards), Groups(samples.counts))
    weights = Weights(
        role=role,
        hardware=hardware,
        precisions=tuple(np.unique(samples.precision).tolist()),
        optimizers=tuple(np.unique(samples.optimizer).tolist()),
        context=served,
        params=params,
        density=fit_density(vectors[learned], vectors[held_out], seed),
        lines=fit_lines(steps) if served else None,
    )
    return weights, curves


def _train_network(
    samples: ComputeSamples, context: Ints, settings: FitSettings, seed: int, progress: Progress | None
) -> tuple[Params, dict[str, Any]]:
    """Return fixed parameters, the best trained ones of the best member by validation, and mean losses by epoch."""
    train, valid = split(samples.content, seed)
    fixed, loss_of = _problem(samples, context, train)
    layers = initial_layers(settings.members, seed)
    bounds: Bounds = {}  # they follow from the signs of the network's weights
    for chain, widths in ComputeNet.SIZES.items():
        for layer in range(len(widths) - 1):
            signs = ComputeNet.signs(chain, layer)
            low = np.where(signs == 1, 0.0, -np.inf)
            high = np.where(signs == -1, 0.0, np.inf)
            bounds[f"{chain}.{layer}.weight"] = tensor(low), tensor(high)
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
    curves: dict[str, list[float]] = {"train": [], "valid": []}
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
        curves["train"].append(float(f"{np.mean(losses):.5g}"))
        curves["valid"].append(float(f"{float(now.mean()):.5g}"))
        if progress is not None:
            progress("compute", epoch + 1, epochs)
    chosen = int(torch.argsort(least, stable=True)[0])
    return {**{key: value[chosen] for key, value in best.items()}, **constants}, {"compute": curves}


def _problem(
    samples: ComputeSamples, context: Ints, train: Ints
) -> tuple[dict[str, Floats], Callable[[Params, Ints], torch.Tensor]]:
    """Return what is not trained, and what takes parameters and positions of samples to the members' losses, (K,)."""
    features = tensor(shard_features(samples.shards))
    amounts = tensor(work(samples.shards))
    contexts = tensor(context[:, None].astype(np.float64))
    targets = tensor(np.log(np.column_stack([samples.ms, samples.ms.sum(axis=1)])))

    def loss_of(params: Params, index: Ints) -> torch.Tensor:
        rows = torch.from_numpy(ragged(samples.counts, index))
        places = torch.from_numpy(index)
        groups = Groups(samples.counts[index])
        log_ms = log_ms_of(params, features[rows], amounts[rows], groups, contexts[places])
        total = torch.logsumexp(log_ms, dim=-1, keepdim=True)
        size = (torch.cat([log_ms, total], dim=-1) - targets[places]).abs()
        huber = torch.where(size < _NOISE, size**2 / (2 * _NOISE), size - _NOISE / 2)
        return huber.flatten(1).mean(dim=1)

    learned = samples.take(train)
    known = work(learned.shards)
    unit = np.maximum(known.mean(axis=0), 1e-9)
    totals = np.add.reduceat(known / unit, Groups(learned.counts).starts, axis=0)
    priors = fit_priors(totals, learned.ms, context[train])
    fixed = ComputeNet.fixed_params(shard_features(learned.shards), known, learned.counts, context[train], priors)
    return fixed, loss_of


def fit_prior(amounts: Floats, ms: Floats) -> Floats:
    """Fit an analytic sum: ms = amounts @ weights, (N,) = (N, W) @ (W,), relative errors, no negative weight."""
    from scipy import optimize

    weights, _ = optimize.nnls(amounts / ms[:, None], np.ones(len(ms)))
    if not weights.any():
        weights[0] = float(np.median(ms / np.maximum(amounts[:, 0], 1e-9)))
    return np.asarray(weights, dtype=np.float64)


def fit_priors(totals: Floats, ms: Floats, context: Ints) -> Floats:
    """Fit an analytic sum with a constant to each column of times in each context; return weights, (2, W + 1, T).

    The last weight of a column is the constant, which is never quite 0: a device whose tables are not looked up needs a
    logarithm, too. Totals are the work of each sample, (N, W), which took so many ms, (N, T). A context, a number in
    `CONTEXTS`, that no sample has takes those of the other.
    """
    amounts = np.column_stack([totals, np.ones(len(totals))])
    found = []
    for number in range(len(CONTEXTS)):
        here = context == number if (context == number).any() else np.ones(len(context), dtype=np.bool_)
        weights = np.column_stack([fit_prior(amounts[here], ms[here, column]) for column in range(ms.shape[1])])
        weights[-1] = np.maximum(weights[-1], 0.05 * np.quantile(ms[here], 0.01, axis=0))
        found.append(weights)
    return np.array(found)


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


def initial_layers(members: int, seed: int) -> Params:
    """Return weights of all chains of layers, drawn uniformly as torch's linear layers draw theirs.

    The last layer of the chain "head" starts at 0, so that corrections start at none.

    Args:
        members: networks that are trained together.
        seed: seed of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    params: Params = {}
    for name, widths in ComputeNet.SIZES.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            is_last_of_head = name == "head" and layer == len(widths) - 2
            bound = 0.0 if is_last_of_head else inputs**-0.5
            for part, shape in (("weight", (members, inputs, outputs)), ("bias", (members, 1, outputs))):
                drawn = torch.empty(shape).uniform_(-1, 1, generator=generator)
                params[f"{name}.{layer}.{part}"] = (drawn * bound).requires_grad_()
    return params


def step_amounts(steps: StepSamples) -> Floats:
    """Return what devices handle in each of the other parts of a step, shape (N, 5, 4), by `LINES` and `AMOUNTS`."""
    shards = steps.compute.shards
    groups = Groups(steps.compute.counts)
    batch = shards.batch[groups.starts]
    item = shards.element_bytes[groups.starts]
    one = np.ones(len(steps))
    columns = np.add.reduceat(shards.columns, groups.starts)
    ids = np.add.reduceat(shards.batch * shards.pooling, groups.starts)
    of_shards = np.column_stack([one, ids, batch * columns * item, batch * steps.compute.counts])
    everything = np.column_stack([steps.plan_ids, batch * steps.plan_columns * item, batch * steps.plan_shards])
    of_samples = np.column_stack([one, (steps.samples / batch)[:, None] * everything])
    amounts = np.zeros((len(steps), len(LINES), len(AMOUNTS)))
    for part, names in enumerate(LINES.values()):
        known = [0, *(AMOUNTS.index(name) for name in names)]
        amounts[:, part, known] = (of_samples if part in OF_OWN_SAMPLES else of_shards)[:, known]
    return amounts


def fit_lines(steps: StepSamples) -> Floats:
    """Fit the other work of a step to what devices handle: ms by `LINES` and `AMOUNTS`, shape (5, 4), none negative.

    Errors count relative to the compute of the device, as small parts of long steps do not matter.
    """
    from scipy import optimize

    amounts = step_amounts(steps)
    weight = 1 / steps.compute.ms.sum(axis=1)
    lines = np.zeros(amounts.shape[1:])
    for part in range(len(lines)):
        scale = np.maximum(amounts[:, part].mean(axis=0), 1e-9)
        weighted = amounts[:, part] / scale * weight[:, None]
        lines[part] = optimize.nnls(weighted, steps.parts_ms[:, part] * weight)[0] / scale
    return lines


# --- torch, as networks are trained with it ------------------------------------------------------------------------


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, so that sums are always added up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tensor(array: Floats) -> torch.Tensor:
    """Return an array in the single precision that networks are trained in."""
    return torch.from_numpy(array).float()


def _clip(x: torch.Tensor, low: float, high: float) -> torch.Tensor:
    return x.clamp(low, high)


def _concat(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    lead = np.broadcast_shapes(*(tuple(part.shape[:-1]) for part in parts))
    return torch.cat([part.expand(*lead, part.shape[-1]) for part in parts], dim=-1)


#: Like `shardgym.costs.simulator.network.NUMPY`, over tensors.
TORCH = Ops(torch.exp, torch.log, torch.tanh, torch.relu, torch.maximum, torch.minimum, _clip, _concat)


def log_ms_of(
    params: Params, features: torch.Tensor, amounts: torch.Tensor, groups: Groups, context: torch.Tensor
) -> torch.Tensor:
    """Return the logarithms of forward and backward ms of whole devices of contexts (G, 1), shape (K, G, 2)."""
    network = ComputeNet(params, TORCH)
    ids = torch.from_numpy(groups.ids)
    latents = network.encode(features, amounts, context.index_select(-2, ids))
    empty = latents.new_zeros((*latents.shape[:-2], len(groups), latents.shape[-1]))
    sums: torch.Tensor = empty.index_add(-2, ids, latents)
    log_ms: torch.Tensor = network.head(sums, context)
    return log_ms
