"""Plots of a trained simulator, as PNG files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.network import Networks
from shardgym.costs.simulator.samples import ComputeSamples
from shardgym.errors import import_extra
from shardgym.files import make_folder
from shardgym.pretraining.assess import predict_compute


def write_plots(folder: Path, card: ModelCard, predictor: Networks, test: ComputeSamples) -> list[Path]:
    """Draw predictions against measurements, errors by size and width, losses, and the comparison if there is one.

    Args:
        folder: made when it does not exist.
        card: of the weights.
        predictor: made of the weights.
        test: compute samples of role `test`.

    Returns:
        The files written.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    make_folder(folder)
    files = [
        _draw(folder / f"{card.role}-predicted.png", lambda axes: _scatter(axes, predictor, test)),
        _draw(folder / f"{card.role}-by-shards.png", lambda axes: _by_shards(axes, card)),
        _draw(folder / f"{card.role}-by-dim.png", lambda axes: _by_dim(axes, card)),
        _draw(folder / f"{card.role}-losses.png", lambda axes: _losses(axes, card)),
    ]
    if card.comparison is not None:
        files.append(_draw(folder / f"{card.role}-learning-curve.png", lambda axes: _learning_curve(axes, card)))
        files.append(_draw(folder / f"{card.role}-published.png", lambda axes: _published(axes, card)))
    return files


def _draw(path: Path, fill: Callable[[Any], None]) -> Path:
    """Draw one figure without touching matplotlib's global state."""
    figure: Any = import_extra("matplotlib.figure", "plots").Figure(figsize=(6, 4.5), layout="constrained")
    fill(figure.subplots())
    figure.savefig(path, dpi=130)
    return path


def _noise(card: ModelCard) -> float | None:
    noise = card.errors["compute"]["noise_mape"]
    return None if noise is None else 100 * float(noise)


def _scatter(axes: Any, predictor: Networks, test: ComputeSamples) -> None:
    predicted = predict_compute(predictor, test)
    for phase, name in enumerate(("forward", "backward")):
        axes.loglog(test.ms[:, phase], predicted[:, phase], ".", markersize=3, alpha=0.6, label=name)
    ends = [float(test.ms.min()), float(test.ms.max())]
    axes.loglog(ends, ends, color="black", linewidth=0.8)
    axes.set(xlabel="measured (ms)", ylabel="predicted (ms)", title="compute of shards of unseen tables")
    axes.legend()


def _bars(axes: Any, card: ModelCard, labels: Sequence[str], errors: Sequence[float], xlabel: str) -> None:
    axes.bar(labels, [100 * error for error in errors])
    noise = _noise(card)
    if noise is not None:
        axes.axhline(noise, color="black", linewidth=0.8, label="one measurement against its repeat")
        axes.legend()
    axes.set(xlabel=xlabel, ylabel="mean absolute error (%)")


def _by_shards(axes: Any, card: ModelCard) -> None:
    rows = card.error_by_shards
    labels = [str(r["from"]) if r["from"] == r["to"] else f"{r['from']}-{r['to']}" for r in rows]
    _bars(axes, card, labels, [r["mape"] for r in rows], "shards on the device")


def _by_dim(axes: Any, card: ModelCard) -> None:
    rows = card.error_by_dim
    _bars(axes, card, [str(r["embedding_dim"]) for r in rows], [r["mape"] for r in rows], "widest shard on the device")


def _losses(axes: Any, card: ModelCard) -> None:
    for name, curves in card.curves.items():
        line = axes.semilogy(curves["train"], linewidth=0.8, label=f"{name}, training")
        axes.semilogy(curves["valid"], linewidth=0.8, linestyle="--", color=line[0].get_color(), label="validation")
    axes.set(xlabel="epoch", ylabel="loss")
    axes.legend()


def _learning_curve(axes: Any, card: ModelCard) -> None:
    assert card.comparison is not None
    rows = card.comparison["learning_curve"]
    for who, label in (("ours", "this simulator"), ("published", "published architecture")):
        axes.loglog([r["contents"] for r in rows], [100 * r[who] for r in rows], "o-", markersize=3, label=label)
    noise = _noise(card)
    if noise is not None:
        axes.axhline(noise, color="black", linewidth=0.8, label="one measurement against its repeat")
    axes.set(xlabel="contents trained on", ylabel="error of total compute (%)")
    axes.legend()


def _published(axes: Any, card: ModelCard) -> None:
    assert card.comparison is not None
    parts = [p for p in ("compute", "forward_comm", "backward_comm") if card.comparison.get(p)]
    where = np.arange(len(parts))
    for shift, who in ((-0.2, "ours"), (0.2, "published")):
        axes.bar(where + shift, [100 * card.comparison[p][who]["mape"] for p in parts], 0.4, label=who)
    axes.set_xticks(where, parts)
    axes.set(ylabel="mean absolute error (%)")
    axes.legend()
