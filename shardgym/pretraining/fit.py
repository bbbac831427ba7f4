"""The training loop that all networks share."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from shardgym.costs.simulator.network import Params

Index = npt.NDArray[np.int64]

#: Takes positions of samples and returns the loss of every member, shape (K,).
LossOf = Callable[[Params, Index], torch.Tensor]

#: Takes what is trained, the epoch that is done, and how many there are.
Progress = Callable[[str, int, int], None]


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
    """

    epochs: int = 120
    least_steps: int = 600
    batch: int = 256
    learning_rate: float = 2e-3
    weight_decay: float = 0.3
    members: int = 3


@dataclasses.dataclass
class Fitted:
    """What training gave.

    Attributes:
        params: of the epoch with the best validation loss, of every member on its own; the best member first.
        train_loss: mean over members, per epoch.
        valid_loss: likewise.
    """

    params: Params
    train_loss: list[float]
    valid_loss: list[float]


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread, so that sums are always added up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def split(content: npt.NDArray[Any], seed: int, share: float = 0.1) -> tuple[Index, Index]:
    """Split samples into (training, validation) positions; repeats of one content stay together."""
    contents, owner = np.unique(content, return_inverse=True)
    held_out = max(1, round(share * len(contents)))
    chosen = np.random.default_rng([seed, 7]).permutation(len(contents))[:held_out]
    is_held_out = np.isin(owner, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def fit(
    params: Params,
    loss_of: LossOf,
    train: Index,
    valid: Index,
    settings: FitSettings,
    seed: int,
    name: str = "",
    progress: Progress | None = None,
) -> Fitted:
    """Minimise the loss with AdamW and keep, for every member, the best state on the validation samples.

    Args:
        params: tensors to train; members are along the first axis.
        loss_of: the loss.
        train: positions of the training samples.
        valid: positions of the validation samples.
        settings: how.
        seed: of the order of samples.
        name: what is trained, for `progress`.
        progress: called after every epoch.
    """  # fmt: skip
    rng = np.random.default_rng([seed, 11])
    optimizer = torch.optim.AdamW(params.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    batches = math.ceil(len(train) / settings.batch)
    epochs = max(settings.epochs, math.ceil(settings.least_steps / batches))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, epochs * batches))
    best = {key: value.detach().clone() for key, value in params.items()}
    least = _validate(params, loss_of, valid)
    curves: tuple[list[float], list[float]] = ([], [])
    for epoch in range(epochs):
        losses = []
        for part in np.array_split(rng.permutation(train), batches):
            optimizer.zero_grad()
            loss = loss_of(params, part)
            loss.sum().backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach().mean()))
        now = _validate(params, loss_of, valid)
        better = now < least
        least = torch.where(better, now, least)
        for key, value in params.items():
            best[key][better] = value.detach()[better]
        curves[0].append(float(np.mean(losses)))
        curves[1].append(float(now.mean()))
        if progress is not None:
            progress(name, epoch + 1, epochs)
    order = torch.argsort(least, stable=True)
    return Fitted({key: value[order] for key, value in best.items()}, *curves)


def _rate(step: int, steps: int) -> float:
    warm = max(1, steps // 10)
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm)))


@torch.no_grad()
def _validate(params: Params, loss_of: LossOf, valid: Index) -> torch.Tensor:
    return loss_of(params, valid)


def log_loss(log_errors: torch.Tensor, width: float = 0.1) -> torch.Tensor:
    """Return Huber's loss of logarithmic errors per member: (K, ...) becomes (K,).

    Args:
        log_errors: predicted minus measured logarithms.
        width: where it turns from squares to absolute values, about the noise of one measurement.
    """
    size = log_errors.abs()
    huber = torch.where(size < width, size**2 / (2 * width), size - width / 2)
    return huber.flatten(1).mean(dim=1)
