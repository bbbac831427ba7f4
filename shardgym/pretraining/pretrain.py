"""Pre-training: from a folder of samples to a folder of weights and model cards."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardgym.costs.simulator.card import ModelCard
from shardgym.costs.simulator.dataset import data_files, read_comm, read_compute, read_info
from shardgym.costs.simulator.predictors import predictor_of
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, with_role
from shardgym.costs.simulator.weights import ROLES, Role, load_weights, save_weights
from shardgym.errors import InputError
from shardgym.evaluation.files import make_folder, write_whole
from shardgym.evaluation.provenance import utc_now, versions
from shardgym.pretraining.assess import assess, by_count, by_dim
from shardgym.pretraining.fit import FitSettings, Progress
from shardgym.pretraining.plan_ranking import rank_plans
from shardgym.pretraining.roles import train_role

#: Roles of rows that nothing learns from.
TEST_ROLES = ("test", "plans")

#: Fewer contents cannot be split into training and validation.
LEAST_CONTENTS = 20


class Data(NamedTuple):
    """All samples of a data set.

    Attributes:
        compute: compute samples of all roles.
        comm: communication samples of all roles.
        hardware: tag of all files.
        digests: SHA-256 of each file by name.
        settings: of the collection, by file.
    """

    compute: ComputeSamples
    comm: CommSamples
    hardware: str
    digests: dict[str, str]
    settings: dict[str, Any]

    def of(self, role: str) -> tuple[ComputeSamples, CommSamples]:
        """Return the samples of one role."""
        return with_role(self.compute, role), with_role(self.comm, role)


def load_data(folder: Path) -> Data:
    """Read a data set and check that nothing leaks between roles.

    Raises:
        InputError: a file is damaged, roles lack samples, or a table or content of the test rows is in others'.
        MissingDependencyError: pyarrow is not installed.
    """
    files = [*data_files(folder, "compute"), *data_files(folder, "comm")]
    infos = {path.name: read_info(path) for path in files}
    tags = sorted({info.hardware for info in infos.values()})
    if len(tags) > 1:
        raise InputError(f"{folder}: hardware: files of several machines ({', '.join(tags)}), expected one")
    data = Data(
        read_compute(folder), read_comm(folder), tags[0],
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        {name: info.settings for name, info in infos.items()},
    )  # fmt: skip
    _check_roles(data, folder)
    return data


def _check_roles(data: Data, folder: Path) -> None:
    for kind, samples in (("compute", data.compute), ("comm", data.comm)):
        for role, least in (("oracle", LEAST_CONTENTS), ("test", 2)):
            found = len(np.unique(samples.labels.content[samples.labels.role == role]))
            if found < least:
                raise InputError(f"{folder}: {found} {kind} samples of role '{role}', expected at least {least}")
        seen: dict[str, str] = {}
        for role, content in zip(samples.labels.role.tolist(), samples.labels.content.tolist(), strict=True):
            learns = role if role in ROLES else "test"
            if seen.setdefault(content, learns) != learns:
                raise InputError(f"{folder}: a {kind} content is in role '{role}' and in role '{seen[content]}'")
    tested = {table for role in TEST_ROLES for table in data.of(role)[0].table.tolist()}
    for role in ROLES:
        both = tested & set(data.of(role)[0].table.tolist())
        if both:
            raise InputError(f"{folder}: table '{min(both)}' is in rows for testing and in rows of role '{role}'")


def trainable_roles(data: Data) -> list[Role]:
    """Return the roles that have enough samples of both kinds."""
    return [
        role for role in ROLES
        if all(len(np.unique(samples.labels.content)) >= LEAST_CONTENTS for samples in data.of(role))
    ]  # fmt: skip


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
    predictor, test = predictor_of(load_weights(path, role, data.hardware)), data.of("test")
    card = ModelCard(
        role=role, hardware=data.hardware, weights_sha256=digest, created=utc_now(), seed=seed,
        settings=dataclasses.asdict(settings), versions=versions(), data_sha256=data.digests,
        collection=data.settings,
        samples={"compute": len(compute), "comm": len(comm), "test compute": len(test[0]), "test comm": len(test[1])},
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
