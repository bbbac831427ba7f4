"""The data set of pre-training: what is read together, from whom it is kept, and at which pace it was measured."""

import dataclasses
import hashlib
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.simulator.features import Groups, device_parts, device_vectors
from shardgym.costs.simulator.network import scale_of
from shardgym.costs.simulator.weights import ROLES, Role
from shardgym.errors import InputError
from shardgym.training.samples import (
    ComputeSamples,
    Kind,
    StepSamples,
    collection_name,
    data_files,
    read_compute,
    read_file,
    read_steps,
)

#: Fewer distinct samples cannot be split into training and validation; fewer of tests have no order.
LEAST_SAMPLES = 20
LEAST_TESTS = 2

#: Forward and backward, by collection.
Paces = dict[str, tuple[float, float]]

#: Rounds of weighting, in which samples that a moment of the machine spoilt come to count less.
_ROUNDS = 5
_RIDGE = 1e-6


class DataSet(NamedTuple):
    """All samples of one or several folders; of shard sets or of steps there may be none."""

    compute: ComputeSamples
    steps: StepSamples
    hardware: str  #: tag of the machine that steps were measured on, or compute where there are no steps
    digests: dict[str, str]  #: SHA-256 of each file by name
    settings: dict[str, Any]  #: of the collection, by file

    def of(self, role: str) -> tuple[ComputeSamples, StepSamples]:
        """Return the samples of one role."""
        return self.compute.of(role), self.steps.of(role)

    def fewest(self, role: str) -> int:
        """Return how many distinct samples a role has, of the kind with fewest of those that there are."""
        kinds = [samples for samples in (self.compute, self.steps.compute) if len(samples)]
        return min((len(np.unique(samples.content[samples.role == role])) for samples in kinds), default=0)

    def trainable_roles(self) -> list[Role]:
        """Return the roles that have enough samples."""
        return [role for role in ROLES if self.fewest(role) >= LEAST_SAMPLES]


def load_data(*folders: Path) -> DataSet:
    """Read a data set.

    Args:
        folders: any number; their shard sets may be of other machines than the steps.

    Raises:
        InputError: there are no files, one is damaged, steps are of several machines, or the oracle or tests lack
            samples.
        MissingDependencyError: pyarrow is not installed.
    """
    files = [(kind, path) for kind in get_args(Kind) for folder in folders for path in data_files(folder, kind)]
    if not files:
        where = ", ".join(map(str, folders))
        raise InputError(f"{where}: no compute*.parquet or steps*.parquet, as 'shardgym collect' writes them")
    infos = {path: read_file(path, kind)[0] for kind, path in files}
    main = {infos[path].hardware for kind, path in files if kind == files[-1][0]}
    if len(main) > 1:
        raise InputError(f"{folders[0]}: files come from several machines ({', '.join(sorted(main))}), expected one")
    compute = read_compute(*folders)
    steps = read_steps(*folders)
    names = {path: collection_name(path, folders) for path in infos}
    # By chance a shard set of few tables is drawn for both. It is the oracle's, unless the judge alone learns from it.
    owner: dict[str, str] = {}
    for samples in (compute, *(steps.of(role).compute for role in ROLES)):
        for role, content in zip(samples.role.tolist(), samples.content.tolist(), strict=True):
            if role in ROLES:
                owner.setdefault(content, role)
    named = zip(steps.compute.role.tolist(), steps.compute.content.tolist(), strict=True)
    data = DataSet(
        compute=compute,
        steps=steps.take(np.flatnonzero([role not in ROLES or owner[content] == role for role, content in named])),
        hardware=main.pop(),
        digests={names[path]: hashlib.sha256(path.read_bytes()).hexdigest() for path in infos},
        settings={names[path]: info.settings for path, info in infos.items()},
    )
    for role, least in (("oracle", LEAST_SAMPLES), ("test", LEAST_TESTS)):
        if (found := data.fewest(role)) < least:
            raise InputError(f"{folders[0]}: role '{role}' needs {least} samples of each kind, got {found}")
    return data


def split(content: npt.NDArray[Any], seed: int, share: float = 0.1) -> tuple[Ints, Ints]:
    """Split samples into (training, validation) positions; repeats of one content stay together."""
    contents, owner = np.unique(content, return_inverse=True)
    held_out = max(1, round(share * len(contents)))
    chosen = np.random.default_rng([seed, 7]).permutation(len(contents))[:held_out]
    is_held_out = np.isin(owner, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


# --- the pace of the machine: samples of other days, as if all had been measured at one pace --------------------------


def paces_of(data: DataSet) -> Paces:
    """Return the paces of collections of kernels alone, by the samples that roles learn from; none of a lone one."""
    learned = data.compute.take(np.flatnonzero(np.isin(data.compute.role, ROLES)))
    return _paces(learned) if len(np.unique(learned.collection)) > 1 else {}


def at_one_pace(data: DataSet, found: Paces) -> DataSet:
    """Divide times of kernels alone by the paces of their collections, and of steps by those measured beside them.

    One pace is as noisy as what it is to correct, and a collection takes an hour: so it has the median of its paces.
    """
    factors = np.array([found.get(name, (1.0, 1.0)) for name in data.compute.collection.tolist()]).reshape(-1, 2)
    pace = data.steps.pace[:, None].copy()
    for name in np.unique(data.steps.compute.collection):
        rows = data.steps.compute.collection == name
        pace[rows] = np.median(pace[rows])
    of_steps = dataclasses.replace(data.steps.compute, ms=data.steps.compute.ms / pace)
    steps = dataclasses.replace(
        data.steps, compute=of_steps, parts_ms=data.steps.parts_ms / pace, pace=np.ones(len(pace))
    )
    return data._replace(compute=dataclasses.replace(data.compute, ms=data.compute.ms / factors), steps=steps)


def _paces(samples: ComputeSamples) -> Paces:
    """Return how many times as long forward and backward took in each collection as in the largest one."""
    # Logarithms of times on those of what devices hold, their products, and a constant for each collection: nothing in
    # it can be peculiar to one batch size, as the tables of a collection may be.
    names, owner, sizes = np.unique(samples.collection, return_inverse=True, return_counts=True)
    others = np.delete(np.arange(len(names)), sizes.argmax())
    held = device_vectors(device_parts(samples.shards), Groups(samples.counts))
    held = (held - held.mean(axis=0)) / scale_of(held)
    first, second = np.triu_indices(held.shape[1])
    of_collection: Bools = owner[:, None] == others
    x = np.hstack([of_collection, np.ones((len(held), 1)), held, held[:, first] * held[:, second]])
    logs = np.zeros((len(names), 2))
    for phase in (0, 1):
        logs[others, phase] = _robust_fit(x, np.log(samples.ms[:, phase]), _RIDGE * len(x))[: len(others)]
    factors = np.exp(logs).tolist()
    return {name: (forward, backward) for name, (forward, backward) in zip(names.tolist(), factors, strict=True)}


def _robust_fit(x: Floats, y: Floats, ridge: float) -> Floats:
    """Return the weights, (W,), of a linear regression in which large residuals count as absolute values."""
    weight = np.ones(len(y))
    for _ in range(_ROUNDS):
        gram = (x * weight[:, None]).T @ x
        fit = np.linalg.solve(gram + ridge * np.eye(len(gram)), x.T @ (weight * y))
        residual = np.abs(y - x @ fit)
        weight = 1 / np.maximum(1.0, residual / (1.5 * np.median(residual) + 1e-9))
    return np.asarray(fit, dtype=np.float64)
