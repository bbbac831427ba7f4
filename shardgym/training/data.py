"""The data set for pre-training: read whole, checked for leaks between those who learn and what is tested."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.costs.simulator.sample_files import (
    Kind,
    collection_name,
    data_files,
    no_compute,
    no_files,
    no_steps,
    read_compute,
    read_info,
    read_steps,
)
from shardgym.costs.simulator.samples import ComputeSamples, StepSamples, with_role
from shardgym.costs.simulator.weights import ROLES, Role
from shardgym.errors import InputError
from shardgym.tables.pools import load_pool
from shardgym.training.space_sampling import TRANSFER_POOL

_KINDS: tuple[Kind, ...] = get_args(Kind)

#: Roles of rows that nothing learns from.
TEST_ROLES = ("test", "plans", "transfer")

#: Fewer distinct samples cannot be split into training and validation.
LEAST_SAMPLES = 20


class DataSet(NamedTuple):
    """All samples of one or several folders.

    Attributes:
        compute: shard sets measured alone, of all roles; none where only steps were collected.
        steps: devices in complete steps, of all roles; none where only shard sets were.
        hardware: tag of the machine that steps were measured on, or compute where there are no steps.
        compute_hardware: tags of the other machines that compute was measured on, by collection.
        digests: SHA-256 of each file by name.
        settings: of the collection, by file.
        left_out: devices in steps of a learning role whose shard set the other role learns from.
    """

    compute: ComputeSamples
    steps: StepSamples
    hardware: str
    compute_hardware: dict[str, str]
    digests: dict[str, str]
    settings: dict[str, Any]
    left_out: int = 0

    def of(self, role: str) -> tuple[ComputeSamples, StepSamples]:
        """Return the samples of one role."""
        return with_role(self.compute, role), with_role(self.steps, role)

    def trainable_roles(self) -> list[Role]:
        """Return the roles that have enough samples of every kind that there is."""
        kinds = [samples for samples in (self.compute, self.steps) if len(samples)]
        return [role for role in ROLES if all(_num_contents(samples, role) >= LEAST_SAMPLES for samples in kinds)]


def load_data(*folders: Path) -> DataSet:
    """Read a data set and check that nothing leaks between roles. It may lack shard sets or steps, but not both.

    A shard set of few tables may be drawn for a device of the oracle's and of the judge's steps by chance. It is then
    the oracle's, unless the judge learns from it alone; such devices of the other role's steps are left out.

    Args:
        folders: any number; their shard sets may be of other machines than the steps.

    Raises:
        InputError: a file is damaged, roles lack samples, or a table or content of the test rows is in others'.
        MissingDependencyError: pyarrow is not installed.
    """
    files = [(kind, path) for kind in _KINDS for folder in folders for path in data_files(folder, kind)]
    if not files:
        raise no_files(folders, *_KINDS)
    names = {path: collection_name(path, folders) for _, path in files}
    infos = {names[path]: read_info(path) for _, path in files}
    tags = {kind: {names[p]: infos[names[p]].hardware for of, p in files if of == kind} for kind in _KINDS}
    main = sorted(set((tags["steps"] or tags["compute"]).values()))
    if len(main) > 1:
        raise InputError(f"{folders[0]}: hardware: files of several machines ({', '.join(main)}), expected one")
    compute = read_compute(*folders) if tags["compute"] else no_compute()
    all_steps = read_steps(*folders) if tags["steps"] else no_steps()
    steps = _apart(compute, all_steps)
    data = DataSet(
        compute=compute,
        steps=steps,
        hardware=main[0],
        compute_hardware={name: tag for name, tag in tags["compute"].items() if tag != main[0]},
        digests={names[path]: hashlib.sha256(path.read_bytes()).hexdigest() for _, path in files},
        settings={name: info.settings for name, info in infos.items()},
        left_out=len(all_steps) - len(steps),
    )
    if len(compute):
        _check_roles(folders[0], "compute", compute)
    if len(steps):
        _check_roles(folders[0], "steps", steps)
    _check_tables(folders[0], data)
    return data


def _apart(compute: ComputeSamples, steps: StepSamples) -> StepSamples:
    """Leave out the devices in steps of a learning role whose content the other role learns from."""
    owner: dict[str, str] = {}
    for labels in (compute.labels, *(with_role(steps, role).labels for role in ROLES)):
        for role, content in zip(labels.role.tolist(), labels.content.tolist(), strict=True):
            if role in ROLES:
                owner.setdefault(content, role)
    named = zip(steps.labels.role.tolist(), steps.labels.content.tolist(), strict=True)
    return steps.take(np.flatnonzero([role not in ROLES or owner[content] == role for role, content in named]))


def _num_contents(samples: ComputeSamples | StepSamples, role: str) -> int:
    return len(np.unique(samples.labels.content[samples.labels.role == role]))


def _check_roles(folder: Path, kind: str, samples: ComputeSamples | StepSamples) -> None:
    """Raise `InputError` when a role lacks samples, or when two roles that must be apart share one."""
    for role, least in (("oracle", LEAST_SAMPLES), ("test", 2)):
        found = _num_contents(samples, role)
        if found < least:
            raise InputError(f"{folder}: {found} {kind} samples of role '{role}', expected at least {least}")
    seen: dict[str, str] = {}
    labels = samples.labels
    for role, content in zip(labels.role.tolist(), labels.content.tolist(), strict=True):
        learner = role if role in ROLES else "test"
        if seen.setdefault(content, learner) != learner:
            raise InputError(f"{folder}: a {kind} content is in role '{role}' and in role '{seen[content]}'")


def _check_tables(folder: Path, data: DataSet) -> None:
    """Raise `InputError` when a role learns from a table that is tested, or of the pool that nobody learns from."""

    def tables_of(role: str) -> set[str]:
        compute, steps = data.of(role)
        return {*compute.table.tolist(), *steps.compute.table.tolist()}

    tested = {table for role in TEST_ROLES for table in tables_of(role)}
    reserved = {table.name for table in load_pool(TRANSFER_POOL)}
    for role in ROLES:
        learned = tables_of(role)
        if learned & reserved:
            raise InputError(
                f"{folder}: table '{min(learned & reserved)}' of the pool {TRANSFER_POOL} is in rows of role '{role}': "
                "nothing is trained on that pool"
            )
        if learned & tested:
            table = min(learned & tested)
            raise InputError(f"{folder}: table '{table}' is in rows for testing and in rows of role '{role}'")


def split(content: npt.NDArray[Any], seed: int, share: float = 0.1) -> tuple[Ints, Ints]:
    """Split samples into (training, validation) positions; repeats of one content stay together."""
    contents, owner = np.unique(content, return_inverse=True)
    held_out = max(1, round(share * len(contents)))
    chosen = np.random.default_rng([seed, 7]).permutation(len(contents))[:held_out]
    is_held_out = np.isin(owner, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
