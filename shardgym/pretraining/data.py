"""A data set for pre-training: read whole, checked for leaks between those who learn and what is tested."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shardgym.costs.simulator.sample_files import data_files, no_exchanges, read_comm, read_compute, read_info
from shardgym.costs.simulator.samples import CommSamples, ComputeSamples, with_role
from shardgym.costs.simulator.weights import ROLES, Role
from shardgym.errors import InputError

#: Roles of rows that nothing learns from.
TEST_ROLES = ("test", "plans")

#: Fewer contents cannot be split into training and validation.
LEAST_CONTENTS = 20


class Data(NamedTuple):
    """All samples of a data set.

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


def load_data(folder: Path) -> Data:
    """Read a data set and check that nothing leaks between roles. It may lack exchanges, but not shard sets.

    Raises:
        InputError: a file is damaged, roles lack samples, or a table or content of the test rows is in others'.
        MissingDependencyError: pyarrow is not installed.
    """
    exchanges = any(folder.glob("comm*.parquet"))
    files = [*data_files(folder, "compute"), *(data_files(folder, "comm") if exchanges else [])]
    infos = {path.name: read_info(path) for path in files}
    tags = sorted({info.hardware for info in infos.values()})
    if len(tags) > 1:
        raise InputError(f"{folder}: hardware: files of several machines ({', '.join(tags)}), expected one")
    all_comm = read_comm(folder) if exchanges else no_exchanges()
    comm = _without_tested(all_comm)
    data = Data(
        read_compute(folder), comm, tags[0],
        {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        {name: info.settings for name, info in infos.items()}, len(all_comm) - len(comm),
    )  # fmt: skip
    _check_roles(data, folder)
    return data


def _without_tested(samples: CommSamples) -> CommSamples:
    """Leave out exchanges that a role would learn from and that test rows have too.

    Exchanges have no tables that could keep them apart, and few of the simplest ones are drawn twice.
    """
    labels = samples.labels
    tested = set(labels.content[labels.role == "test"].tolist())
    keep = [role == "test" or content not in tested for role, content in zip(labels.role, labels.content, strict=True)]
    return samples.take(np.flatnonzero(keep))


def _check_roles(data: Data, folder: Path) -> None:
    kinds: list[tuple[str, ComputeSamples | CommSamples]] = [("compute", data.compute), ("comm", data.comm)]
    for kind, samples in kinds if len(data.comm) else kinds[:1]:
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
    """Return the roles that have enough samples of every kind that there is."""
    kinds = 2 if len(data.comm) else 1
    return [
        role for role in ROLES
        if all(len(np.unique(samples.labels.content)) >= LEAST_CONTENTS for samples in data.of(role)[:kinds])
    ]  # fmt: skip
