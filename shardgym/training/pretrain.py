"""Pre-training: from a folder of samples to a folder of weights, model cards and plots."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardgym.arrays import Floats
from shardgym.costs.link_model import shipped_model
from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.oracle import ALONE
from shardgym.costs.simulator.weights import Role, load_weights, networks_of, save_weights
from shardgym.errors import import_extra
from shardgym.files import make_folder, write_whole
from shardgym.machine import utc_now, versions
from shardgym.training.assess import (
    assess,
    assess_lines,
    errors_by_dim,
    errors_by_shards,
    predict_compute,
    rank_plans,
    repeat_pairs,
    score,
)
from shardgym.training.data import DataSet
from shardgym.training.pace import Paces, at_one_pace, paces_of
from shardgym.training.train import FitSettings, Progress, train_role


def pretrain(
    data: DataSet, folder: Path, settings: FitSettings | None = None, seed: int = 0, progress: Progress | None = None
) -> list[ModelCard]:
    """Train every role that has samples and write `ROLE.safetensors` and `ROLE.json` into a folder.

    The same data, settings and seed give the same bytes of weights on the same machine and versions. Collections of
    several days are taken to the pace of the largest one (`pace.py`): those of kernels alone, and those of steps.

    Args:
        data: from `load_data`.
        folder: made when it does not exist.
        settings: how to train.
        seed: of everything random.
        progress: called after every epoch with what is trained, the epoch, and how many there are.

    Returns:
        The cards, in the order of `ROLES`.
    """
    make_folder(folder)
    settings = settings or FitSettings()
    paces = paces_of(data)
    data = at_one_pace(data, paces)
    return [_pretrain_role(role, data, paces, folder, settings, seed, progress) for role in data.trainable_roles()]


def _pretrain_role(
    role: Role, data: DataSet, paces: Paces, folder: Path, settings: FitSettings, seed: int, progress: Progress | None
) -> ModelCard:
    def of_role(name: str, epoch: int, epochs: int) -> None:
        if progress is not None:
            progress(f"{role}, {name}", epoch, epochs)

    alone, steps = data.of(role)
    test_alone, test_steps = data.of("test")
    elsewhere, _ = data.of("transfer")
    weights, curves = train_role(role, data.hardware, alone, steps, settings, seed, of_role)
    # As the measured cost prices exchanges that it cannot measure.
    weights = dataclasses.replace(weights, links=shipped_model() if len(steps) else None)
    path = folder / f"{role}.safetensors"
    digest = save_weights(path, weights)
    # Errors are those of the file that was written, through the code that serves predictions.
    weights = load_weights(path, role, data.hardware)
    kernels = networks_of(weights, ALONE)
    errors: dict[str, Any] = {}
    if len(test_steps):
        errors |= {f"step_{name}": of for name, of in assess(networks_of(weights), test_steps.compute).items()}
        errors |= assess_lines(weights, test_steps)
    if len(test_alone):
        errors |= assess(kernels, test_alone) | rank_plans(kernels, data.of("plans")[0])
    if len(elsewhere):
        pairs = repeat_pairs(elsewhere.labels)
        transferred = predict_compute(kernels, elsewhere).sum(axis=1)
        errors["transfer_compute"] = score(transferred, elsewhere.ms.sum(axis=1), pairs)
    tested = test_steps.compute if len(test_steps) else test_alone
    card = ModelCard(
        role=role,
        hardware=data.hardware,
        weights_sha256=digest,
        created=utc_now(),
        seed=seed,
        settings=dataclasses.asdict(settings),
        versions=versions(),
        data_sha256=data.digests,
        collection=data.settings,
        samples={
            "compute": len(alone),
            "steps": len(steps),
            "test compute": len(test_alone),
            "test steps": len(test_steps),
        },
        errors=errors,
        error_by_shards=errors_by_shards(networks_of(weights), tested),
        error_by_dim=errors_by_dim(networks_of(weights), tested),
        curves=curves,
        paces=paces,
    )
    write_whole(folder / f"{role}.json", card.to_json(indent=1) + "\n")
    return card


def draw_report(card: ModelCard, data: DataSet, folder: Path) -> list[Path]:
    """Draw predictions against measurements, errors by shards and by width, and losses, as PNG files.

    Args:
        card: of weights in `folder`.
        data: that they were trained on.
        folder: with the weights; plots go into `report/` in it.

    Returns:
        The files written.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    make_folder(folder / "report")
    networks = networks_of(load_weights(folder / f"{card.role}.safetensors", card.role, card.hardware))
    alone, steps = at_one_pace(data, card.paces).of("test")
    test = steps.compute if len(steps) else alone
    predicted = predict_compute(networks, test)
    sizes = [
        str(row["from"]) if row["from"] == row["to"] else f"{row['from']}-{row['to']}" for row in card.error_by_shards
    ]
    dims = [str(row["embedding_dim"]) for row in card.error_by_dim]

    def losses(axes: Any) -> None:
        for name, curves in card.curves.items():
            line = axes.semilogy(curves["train"], linewidth=0.8, label=f"{name}, training")
            axes.semilogy(curves["valid"], linewidth=0.8, linestyle="--", color=line[0].get_color(), label="validation")
        axes.set(xlabel="epoch", ylabel="loss")
        axes.legend()

    plots: dict[str, Callable[[Any], None]] = {
        "predicted": lambda axes: _draw_scatter(axes, test.ms, predicted),
        "by-shards": lambda axes: _draw_errors(axes, card, sizes, card.error_by_shards, "shards on the device"),
        "by-dim": lambda axes: _draw_errors(axes, card, dims, card.error_by_dim, "widest shard on the device"),
    }
    if card.curves:
        plots["losses"] = losses
    return [draw(folder / "report" / f"{card.role}-{name}.png", fill) for name, fill in plots.items()]


def draw(path: Path, fill: Callable[[Any], None]) -> Path:
    """Let `fill` draw into the axes of a figure of its own, without touching matplotlib's global state."""
    figure: Any = import_extra("matplotlib.figure", "plots").Figure(figsize=(6, 4.5), layout="constrained")
    fill(figure.subplots())
    figure.savefig(path, dpi=130)
    return path


def draw_noise(axes: Any, card: ModelCard) -> None:
    """Draw the error of total compute of one measurement against its repeat, where it is known."""
    noise = card.errors["compute"]["noise_mape"]
    if noise is not None:
        axes.axhline(100 * noise, color="black", linewidth=0.8, label="one measurement against its repeat")
        axes.legend()


def _draw_scatter(axes: Any, measured: Floats, predicted: Floats) -> None:
    for phase, name in enumerate(("forward", "backward")):
        axes.loglog(measured[:, phase], predicted[:, phase], ".", markersize=3, alpha=0.6, label=name)
    ends = [float(measured.min()), float(measured.max())]
    axes.loglog(ends, ends, color="black", linewidth=0.8)
    axes.set(xlabel="measured (ms)", ylabel="predicted (ms)", title="compute of shards of unseen tables")
    axes.legend()


def _draw_errors(axes: Any, card: ModelCard, labels: Sequence[str], rows: list[dict[str, Any]], xlabel: str) -> None:
    axes.bar(labels, [100 * row["mape"] for row in rows])
    draw_noise(axes, card)
    axes.set(xlabel=xlabel, ylabel="mean absolute error (%)")
