"""Files of simulator weights: reading, writing, and finding those that ship with the package."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats
from shardgym.costs.link_model import LinkModel
from shardgym.costs.simulator.features import Groups, Shards
from shardgym.costs.simulator.network import CONTEXTS, NumpyNet, Params
from shardgym.errors import InputError, one_line
from shardgym.files import read_bytes, write_whole
from shardgym.tables.table import REUSE_BINS

SCHEMA = "shardgym.simulator/1"

#: One folder per hardware tag, each as `shardgym pretrain` writes it.
SHIPPED = Path(__file__).parent / "models"

_TRAIN = "run 'shardgym collect' and 'shardgym pretrain', and pass weights=FOLDER"

Role = Literal["oracle", "judge"]
ROLES: tuple[Role, ...] = ("oracle", "judge")

#: By how much of the way from the median to the least likely known sample the limit lies beyond that sample.
_MARGIN = 0.1


class Density(NamedTuple):
    """How likely it is, by the training data, what a device holds: Gaussian kernels over `device_vectors`."""

    centres: Floats  #: in units of their width, shape (n, d)
    mean: Floats  #: of the training data, shape (d,)
    whiten: Floats  #: from differences to the mean to these units, shape (d, d)
    limit: float  #: logarithm of the density of the least likely sample that was held out

    def is_unlikely(self, vectors: Floats) -> Bools:
        """Say which devices are less likely than the limit, (n, d) to (n,); see `device_vectors`."""
        return np.asarray(self._log(vectors) < self.limit, dtype=np.bool_)

    def _log(self, vectors: Floats) -> Floats:
        """Return the logarithm of the density, without its constant, (n, d) to (n,)."""
        return _log_sum(_exponents((vectors - self.mean) @ self.whiten, self.centres))


def _exponents(x: Floats, centres: Floats) -> Floats:
    """Return logarithms of the kernels at all centres, (n, d) to (n, kernels)."""
    distance = (x**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * x @ centres.T
    return np.asarray(-0.5 * np.maximum(distance, 0.0), dtype=np.float64)


def _log_sum(exponent: Floats) -> Floats:
    largest = exponent.max(axis=1)
    return np.asarray(largest + np.log(np.exp(exponent - largest[:, None]).sum(axis=1)), dtype=np.float64)


@dataclass(frozen=True)
class Weights:
    """A trained simulator."""

    role: Role  #: oracle and judge learned from measurements of different plans
    hardware: str  #: tag of the machine whose times it predicts
    precisions: tuple[str, ...]  #: of the tables that it was trained on, and their optimisers
    optimizers: tuple[str, ...]
    context: int  #: what it predicts, a number in `CONTEXTS`: kernels alone, or parts of complete steps
    params: Params  #: of the network
    density: Density  #: of what devices held in training
    #: ms of the other parts of a step by `LINES` and `AMOUNTS`, shape (5, 4); None for kernels alone.
    lines: Floats | None = None
    links: LinkModel | None = None  #: prices exchanges; None for latencies and bandwidths of the topology alone
    digest: str = field(default="", compare=False)  #: SHA-256 of the file; "" before it is saved

    @property
    def version(self) -> str:
        """Version of a cost model with these weights: their digest, shortened."""
        return self.digest[:12]


def network_of(weights: Weights, context: int | None = None) -> NumpyNet:
    """Return the network with these weights, for the context that they predict or another one."""
    return NumpyNet(weights.params, weights.context if context is None else context)


def find_weights(weights: str | Path | None, role: Role, hardware: str | None) -> Path:
    """Return the file of weights for a role.

    Args:
        weights: a folder or a file; what ships with the package when None.
        role: names the file in a folder.
        hardware: hardware tag of the shipped weights; may be None when there is only one.
    """
    if weights is not None:
        path = Path(weights)
        path = path / f"{role}.safetensors" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no simulator weights at {path}: {_TRAIN}")
        return path
    tags = sorted(path.parent.name for path in SHIPPED.glob(f"*/{role}.safetensors"))
    if not tags:
        raise InputError(f"no simulator weights for role '{role}' ship: {_TRAIN}")
    if hardware is None and len(tags) > 1:
        raise InputError(f"weights for several machines ship: set hardware= to one of {', '.join(tags)}")
    if hardware is not None and hardware not in tags:
        raise InputError(f"no weights for hardware '{hardware}' ship, only for {', '.join(tags)}: {_TRAIN}")
    return SHIPPED / (hardware or tags[0]) / f"{role}.safetensors"


def save_weights(path: Path, weights: Weights) -> str:
    """Write weights in single precision; the file appears whole or not at all. Return its SHA-256."""
    from safetensors.numpy import save

    tensors = {f"compute.{name}": np.array(value, np.float32, order="C") for name, value in weights.params.items()}
    tensors |= {f"density.{name}": np.array(value, order="C") for name, value in weights.density._asdict().items()}
    if weights.lines is not None:
        tensors["step.lines"] = np.array(weights.lines, order="C")
    header: dict[str, Any] = {
        "schema": SCHEMA, "role": weights.role, "hardware": weights.hardware,
        "precisions": list(weights.precisions), "optimizers": list(weights.optimizers),
        "context": CONTEXTS[weights.context],
    }  # fmt: skip
    if weights.links is not None:
        header["links"] = weights.links.to_dict()
    # One key only: safetensors keeps several in no particular order, and equal weights shall be equal files.
    data: bytes = save(tensors, metadata={"shardgym": json.dumps(header, sort_keys=True)})
    write_whole(path, data)
    return hashlib.sha256(data).hexdigest()


def load_weights(path: Path, role: Role, hardware: str | None = None) -> Weights:
    """Read weights, in double precision, from a file that `save_weights` wrote; without hardware, of any."""
    from safetensors import SafetensorError, safe_open

    digest = hashlib.sha256(read_bytes(path)).hexdigest()
    try:
        with safe_open(path, "numpy") as file:
            header = json.loads(file.metadata()["shardgym"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: damaged, or not written by 'shardgym pretrain' ({one_line(error)})") from None
    for name, expected in (("schema", SCHEMA), ("role", role), ("hardware", hardware)):
        if expected is not None and header.get(name) != expected:
            raise InputError(f"{path}: {name} is '{header.get(name)!s:.60}', expected '{expected}'")
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise InputError(f"{path}: tensor '{name}' holds non-finite numbers")
    try:
        density = Density(*(tensors[f"density.{name}"] for name in Density._fields))
        context = CONTEXTS.index(header["context"])
        weights = Weights(
            role=header["role"],
            hardware=header["hardware"],
            precisions=tuple(header["precisions"]),
            optimizers=tuple(header["optimizers"]),
            context=context,
            # Predictions are made in double precision: rounding must not decide which of two plans is better.
            params={
                name.removeprefix("compute."): value.astype(np.float64)
                for name, value in tensors.items()
                if name.startswith("compute.")
            },
            density=density._replace(limit=float(density.limit)),
            lines=tensors["step.lines"] if context else None,
            links=LinkModel.from_dict(header["links"], f"{path}, links") if "links" in header else None,
            digest=digest,
        )
        # A device is predicted, for which every tensor must be there and of its shape.
        network = network_of(weights)
        one = np.ones(1)
        shards = Shards(one, 4 * one, one, np.ones((1, REUSE_BINS)) / REUSE_BINS, one, 4 * one, one, one)
        network.compute(network.encode(shards), Groups(np.ones(1, dtype=np.int64)))
    except (KeyError, ValueError, IndexError, TypeError) as error:
        raise InputError(f"{path}: weights of another version ({one_line(error)}): {_TRAIN}") from None
    return weights


def fit_density(vectors: Floats, held_out: Floats, seed: int, most: int = 512) -> Density:
    """Return Gaussian kernels at some vectors, as wide as Scott's rule says in units of the vectors' covariance.

    Vectors have shape (n, d), and others of the same kind that are held out (m, d): the least likely of these, or of
    the kernels by the others, says where the limit is. Centres are chosen by the seed.
    """
    count, size = vectors.shape
    mean = vectors.mean(axis=0)
    # Amounts nearly follow from each other; a few percent beside that shall not count as far away. A direction without
    # spread, such as one data type alone, still tells what is elsewhere.
    covariance = np.cov(vectors, rowvar=False) + np.diag(0.03 * np.maximum(vectors.var(axis=0), 1e-2))
    kernels = min(count, most)
    bandwidth = kernels ** (-1 / (size + 4))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance)).T / bandwidth
    chosen = np.random.default_rng([seed, 13]).permutation(count)[:kernels]
    density = Density((vectors[chosen] - mean) @ whiten, mean, whiten, 0.0)
    by_others = _exponents(density.centres, density.centres)
    np.fill_diagonal(by_others, -np.inf)
    known = np.concatenate([density._log(held_out), _log_sum(by_others)])
    return density._replace(limit=float(known.min() - _MARGIN * (np.median(known) - known.min())))
