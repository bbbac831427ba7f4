"""The data set for pre-training: read whole, checked for leaks between those who learn and what is tested."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.collection.space_sampling import TRANSFER_POOL
from shardgym.costs.simulator.features import Exchanges, Groups
from shardgym.costs.simulator.sample_files import data_files, no_exchanges, read_comm, read_compute, read_info
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, joined, with_role
from shardgym.costs.simulator.weights import ROLES, Role
from shardgym.errors import InputError
from shardgym.pools import load_pool

#: Roles of rows that nothing learns from.
TEST_ROLES = ("test", "plans", "transfer")

#: Fewer distinct samples cannot be split into training and validation.
LEAST_SAMPLES = 20

#: Columns of the times of exchanges, and names of the networks that predict them.
FORWARD = 0
BACKWARD = 1
DIRECTIONS = ("forward", "backward")


class DataSet(NamedTuple):
    """All samples of a folder.

    Attributes:
        compute: compute samples of all roles.
        comm: communication samples of all roles; none where the machine could not measure exchanges.
        hardware: tag of all files.
        digests: SHA-256 of each file by name.
        settings: of the collection, by file.
        left_out: exchanges that were learned from but for being tested as well.
    """

    compute: ComputeSamples
    comm: CommSamples
    hardware: str
    digests: dict[str, str]
    settings: dict[str, Any]
    left_out: int = 0

    def of(self, role: str) -> tuple[ComputeSamples, CommSamples]:
        """Return the samples of one role."""
        return with_role(self.compute, role), with_role(self.comm, role)

    def trainable_roles(self) -> list[Role]:
        """Return the roles that have enough samples of every kind that there is."""
        kinds = 2 if len(self.comm) else 1
        return [
            role for role in ROLES
            if all(len(np.unique(samples.labels.content)) >= LEAST_SAMPLES for samples in self.of(role)[:kinds])
        ]  # fmt: skip


def load_data(*folders: Path) -> DataSet:
    """Read a data set and check that nothing leaks between roles. It may lack exchanges, but not shard sets.

    Args:
        folders: one, or the oracle's and the judge's.

    Raises:
        InputError: a file is damaged, roles lack samples, or a table or content of the test rows is in others'.
        MissingDependencyError: pyarrow is not installed.
    """
    folder = folders[0]
    with_exchanges = [found for found in folders if any(found.glob("comm*.parquet"))]
    files = [path for found in folders for path in data_files(found, "compute")]
    files += [path for found in with_exchanges for path in data_files(found, "comm")]
    names = {path: path.name if len(folders) == 1 else f"{path.parent.name}/{path.name}" for path in files}
    infos = {names[path]: read_info(path) for path in files}
    tags = sorted({info.hardware for info in infos.values()})
    if len(tags) > 1:
        raise InputError(f"{folder}: hardware: files of several machines ({', '.join(tags)}), expected one")
    all_comm = joined([read_comm(found) for found in with_exchanges]) if with_exchanges else no_exchanges()
    # Exchanges have no tables that could keep roles apart, and a few of the simplest ones are drawn twice. Those that
    # are tested are not learned from.
    labels = all_comm.labels
    tested = set(labels.content[labels.role == "test"].tolist())
    keep = [role == "test" or content not in tested for role, content in zip(labels.role, labels.content, strict=True)]
    comm = all_comm.take(np.flatnonzero(keep))
    data = DataSet(
        compute=joined([_named(read_compute(found), found, len(folders)) for found in folders]),
        comm=comm,
        hardware=tags[0],
        digests={names[path]: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        settings={name: info.settings for name, info in infos.items()},
        left_out=len(all_comm) - len(comm),
    )
    _check_roles(folder, "compute", data.compute)
    if len(comm):
        _check_roles(folder, "comm", comm)
    tested_tables = {table for role in TEST_ROLES for table in data.of(role)[0].table.tolist()}
    reserved = {table.name for table in load_pool(TRANSFER_POOL)}
    for role in ROLES:
        learned = reserved & set(data.of(role)[0].table.tolist())
        if learned:
            raise InputError(
                f"{folder}: table '{min(learned)}' of the pool {TRANSFER_POOL} is in rows of role '{role}': nothing is "
                "trained on that pool"
            )
        both = tested_tables & set(data.of(role)[0].table.tolist())
        if both:
            raise InputError(f"{folder}: table '{min(both)}' is in rows for testing and in rows of role '{role}'")
    return data


def _named(samples: ComputeSamples, folder: Path, folders: int) -> ComputeSamples:
    """Let collections be named as their files are: files of several folders have the same names."""
    if folders == 1:
        return samples
    names = np.char.add(f"{folder.name}/", samples.labels.collection)
    return dataclasses.replace(samples, labels=dataclasses.replace(samples.labels, collection=names))


def _check_roles(folder: Path, kind: str, samples: ComputeSamples | CommSamples) -> None:
    """Raise `InputError` when a role lacks samples, or when two roles that must be apart share one."""
    labels = samples.labels
    for role, least in (("oracle", LEAST_SAMPLES), ("test", 2)):
        found = len(np.unique(labels.content[labels.role == role]))
        if found < least:
            raise InputError(f"{folder}: {found} {kind} samples of role '{role}', expected at least {least}")
    seen: dict[str, str] = {}
    for role, content in zip(labels.role.tolist(), labels.content.tolist(), strict=True):
        learner = role if role in ROLES else "test"
        if seen.setdefault(content, learner) != learner:
            raise InputError(f"{folder}: a {kind} content is in role '{role}' and in role '{seen[content]}'")


def split(content: npt.NDArray[Any], seed: int, share: float = 0.1) -> tuple[Ints, Ints]:
    """Split samples into (training, validation) positions; repeats of one content stay together."""
    contents, owner = np.unique(content, return_inverse=True)
    held_out = max(1, round(share * len(contents)))
    chosen = np.random.default_rng([seed, 7]).permutation(len(contents))[:held_out]
    is_held_out = np.isin(owner, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


def exchanges_of(samples: CommSamples, direction: int) -> Exchanges:
    """Return the exchanges of one direction; backward ones start aligned."""
    groups = Groups(samples.counts)
    offsets = samples.offsets_ms if direction == FORWARD else np.zeros(len(samples.offsets_ms))
    return Exchanges(groups, samples.widths, offsets, samples.batch[groups.ids], samples.element_bytes[groups.ids])
