"""`shardgym pretrain --report`: the comparison with the published models, and plots."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import load_weights, networks_of
from shardgym.files import write_whole
from shardgym.pretraining.comparison import compare
from shardgym.pretraining.data import Data
from shardgym.pretraining.fit import FitSettings, Progress
from shardgym.pretraining.plots import write_plots

#: Passes of the published training (NeuroShard's scripts).
PUBLISHED_EPOCHS = 1000


def report(
    card: ModelCard, data: Data, folder: Path, published_epochs: int | None = None, progress: Progress | None = None
) -> tuple[ModelCard, list[Path]]:
    """Compare an oracle with the published models, write that into its card, and draw plots of any role.

    Args:
        card: of weights in `folder`.
        data: that they were trained on.
        folder: with the weights; plots go into `report/` in it.
        published_epochs: passes over the samples for the published models; as many as were published when None.
        progress: called as the learning curve grows.

    Returns:
        The card with its comparison, and the plots.
    """  # fmt: skip
    predictor = networks_of(load_weights(folder / f"{card.role}.safetensors", card.role, card.hardware))
    if card.role == "oracle":
        compared = compare(
            predictor, *data.of("oracle"), data.of("test"), FitSettings(**card.settings),
            PUBLISHED_EPOCHS if published_epochs is None else published_epochs, card.seed, progress,
        )  # fmt: skip
        card = dataclasses.replace(card, comparison=compared)
        write_whole(folder / "oracle.json", card.to_json(indent=1) + "\n")
    return card, write_plots(folder / "report", card, predictor, data.of("test")[0])
