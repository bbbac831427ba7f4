"""Pre-training: from a folder of samples to a folder of weights and model cards."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardgym.costs.simulator.model_card import ModelCard
from shardgym.costs.simulator.weights import Role, load_weights, networks_of, save_weights
from shardgym.errors import InputError
from shardgym.files import make_folder, write_whole
from shardgym.pretraining.assess import assess, by_count, by_dim
from shardgym.pretraining.data import Data, trainable_roles
from shardgym.pretraining.fit import FitSettings, Progress
from shardgym.pretraining.plan_ranking import rank_plans
from shardgym.pretraining.roles import train_role
from shardgym.provenance import utc_now, versions


def pretrain(
    data: Data, folder: Path, settings: FitSettings | None = None, seed: int = 0, progress: Progress | None = None
) -> list[ModelCard]:
    """Train every role that has samples and write `ROLE.safetensors` and `ROLE.json` into a folder.

    The same data, settings and seed give the same bytes of weights on the same machine and versions.

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
    chosen = settings or FitSettings()
    return [_pretrain_role(role, data, folder, chosen, seed, progress) for role in trainable_roles(data)]


def _pretrain_role(
    role: Role, data: Data, folder: Path, settings: FitSettings, seed: int, progress: Progress | None
) -> ModelCard:
    def of_role(name: str, epoch: int, epochs: int) -> None:
        if progress is not None:
            progress(f"{role}, {name}", epoch, epochs)

    compute, comm = data.of(role)
    trained = train_role(role, data.hardware, compute, comm, settings, seed, of_role)
    path = folder / f"{role}.safetensors"
    with _writing(path):
        digest = save_weights(path, trained.weights)
    predictor, test = networks_of(load_weights(path, role, data.hardware)), data.of("test")
    card = ModelCard(
        role=role, hardware=data.hardware, weights_sha256=digest, created=utc_now(), seed=seed,
        settings=dataclasses.asdict(settings), versions=versions(), data_sha256=data.digests,
        collection=data.settings,
        samples={
            "compute": len(compute), "comm": len(comm), "test compute": len(test[0]), "test comm": len(test[1]),
            "comm left out": data.left_out,
        },
        errors=assess(predictor, *test) | rank_plans(predictor, data.of("plans")[0]),
        error_by_shards=by_count(predictor, test[0]), error_by_dim=by_dim(predictor, test[0]),
        curves=trained.curves,
    )  # fmt: skip
    write_whole(folder / f"{role}.json", card.to_json(indent=1) + "\n")
    return card


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
