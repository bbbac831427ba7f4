"""Files of simulator weights: reading, writing, and finding those that ship with the package."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.link_model import LinkModel
from shardgym.costs.simulator.judge import FIXED_NAMES, PHASES, TREE_NAMES, JudgeTrees
from shardgym.costs.simulator.network import CONTEXTS, Params
from shardgym.costs.simulator.oracle import ComputeNet, OracleNetworks
from shardgym.costs.step_parts import AMOUNTS, LINES
from shardgym.errors import InputError, one_line
from shardgym.files import read_bytes, write_whole

SCHEMA = "shardgym.simulator/1"

#: One folder per hardware tag, each as `shardgym pretrain` writes it.
SHIPPED = Path(__file__).parent / "models"

_TRAIN = "run 'shardgym collect' and 'shardgym pretrain' and give weights=FOLDER"

Role = Literal["oracle", "judge"]
ROLES: tuple[Role, ...] = ("oracle", "judge")


class Density(NamedTuple):
    """Gaussian kernels at training data, see `familiarity.log_density`.

    Attributes:
        centres: in units of their width, shape (n, d).
        mean: of the training data, shape (d,).
        whiten: from differences to the mean to these units, shape (d, d).
        limit: logarithm of the density of the least likely sample that was held out.
    """

    centres: Floats
    mean: Floats
    whiten: Floats
    limit: float


@dataclass(frozen=True)
class Weights:
    """A trained simulator.

    Attributes:
        role: whether it is an oracle or a judge; they have different architectures.
        hardware: tag of the machine whose times it predicts.
        precisions: of the weights it was trained on.
        optimizers: likewise.
        context: what it predicts, a number in `CONTEXTS`: kernels alone, or parts of complete steps.
        params: of the networks, members of the ensemble along the first axis, the best one first; or of the trees.
        density: of what devices held in training.
        spread_limit: largest disagreement of the members on compute times of contents they had not seen.
        lines: ms of the other parts of a step by `LINES` and `AMOUNTS`, shape (5, 4); None for kernels alone.
        links: prices exchanges; None for latencies and bandwidths of the topology alone.
        digest: SHA-256 of the file; "" before it is saved.
    """

    role: Role
    hardware: str
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    context: int
    params: Params
    density: Density
    spread_limit: float
    lines: Floats | None = None
    links: LinkModel | None = None
    digest: str = field(default="", compare=False)

    @property
    def version(self) -> str:
        """Version of a cost model with these weights: their digest, shortened."""
        return self.digest[:12]


def networks_of(weights: Weights, context: int | None = None) -> OracleNetworks | JudgeTrees:
    """Return what has these weights, for the context that they predict or another one."""
    context = weights.context if context is None else context
    if weights.role == "judge":
        return JudgeTrees(weights.params, context)
    return OracleNetworks(weights.params, context)


def find_weights(weights: str | Path | None, role: Role, hardware: str | None) -> Path:
    """Return the file of weights for a role.

    Args:
        weights: a folder or a file; what ships with the package when None.
        role: names the file in a folder.
        hardware: which of the shipped ones; may be None when there is one only.

    Raises:
        InputError: there is no such file.
    """
    if weights is not None:
        path = Path(weights)
        path = path / f"{role}.safetensors" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no simulator weights at {path}: {_TRAIN}")
        return path
    tags = sorted(path.parent.name for path in SHIPPED.glob(f"*/{role}.safetensors"))
    if not tags:
        raise InputError(f"no weights of the simulator's {role} ship: {_TRAIN}")
    if hardware is None and len(tags) > 1:
        raise InputError(f"weights for several machines ship: give hardware=, one of {', '.join(tags)}")
    if hardware is not None and hardware not in tags:
        raise InputError(f"no weights for hardware '{hardware}' ship, only for {', '.join(tags)}: {_TRAIN}")
    return SHIPPED / (hardware or tags[0]) / f"{role}.safetensors"


def save_weights(path: Path, weights: Weights) -> str:
    """Write weights in single precision; the file appears whole or not at all. Return its SHA-256.

    Raises:
        InputError: the file cannot be written there.
    """
    from safetensors.numpy import save

    tensors = {f"compute.{name}": np.array(value, np.float32, order="C") for name, value in weights.params.items()}
    tensors |= {f"density.{name}": np.array(value, order="C") for name, value in weights.density._asdict().items()}
    if weights.lines is not None:
        tensors["step.lines"] = np.array(weights.lines, order="C")
    header = {
        "schema": SCHEMA, "role": weights.role, "hardware": weights.hardware,
        "precisions": list(weights.precisions), "optimizers": list(weights.optimizers),
        "context": CONTEXTS[weights.context], "spread_limit": weights.spread_limit,
    }  # fmt: skip
    if weights.links is not None:
        header["links"] = weights.links.to_dict()
    # One key only: safetensors keeps several in no particular order, and equal weights shall be equal files.
    data: bytes = save(tensors, metadata={"shardgym": json.dumps(header, sort_keys=True)})
    write_whole(path, data)
    return hashlib.sha256(data).hexdigest()


def load_weights(path: Path, role: Role, hardware: str | None = None) -> Weights:
    """Read weights and check that they are what is expected.

    Args:
        path: a file written by `save_weights`.
        role: that it must have.
        hardware: tag that it must have; any when None.

    Returns:
        Weights in double precision.

    Raises:
        InputError: not a whole safetensors file, of another schema, role, hardware or architecture; file and field are
            named.
    """
    data = read_bytes(path)
    try:
        return _parse_weights(data, path, role, hardware)
    except InputError:
        raise
    except Exception as error:  # damaged files make libraries raise all kinds of errors
        raise InputError(f"{path}: damaged ({one_line(error)})") from None


def _parse_weights(data: bytes, path: Path, role: Role, hardware: str | None) -> Weights:
    header = _read_header(data, path)
    for name, expected in (("schema", SCHEMA), ("role", role), ("hardware", hardware)):
        if expected is not None and header[name] != expected:
            given = str(header[name])
            raise InputError(f"{path}: {name}: these weights are of '{given:.60}', expected '{expected}'")
    if header["context"] not in CONTEXTS:
        raise InputError(f"{path}: context: expected one of {', '.join(CONTEXTS)}")
    tensors = _read_tensors(data, path)
    if role == "judge":
        _check_trees(tensors, path)
    else:
        _check_architecture(tensors, path)
    for name in Density._fields:
        _check_present(tensors, f"density.{name}", path)
    density = Density(*(tensors[f"density.{name}"] for name in Density._fields))
    context = CONTEXTS.index(header["context"])
    if context:
        _check_shape(tensors, "step.lines", (len(LINES), len(AMOUNTS)), path)
    return Weights(
        role=role,
        hardware=str(header["hardware"]),
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
        spread_limit=float(header["spread_limit"]),
        lines=tensors["step.lines"] if context else None,
        links=LinkModel.from_dict(header["links"], f"{path}, links") if "links" in header else None,
        digest=hashlib.sha256(data).hexdigest(),
    )


def _read_header(data: bytes, path: Path) -> dict[str, Any]:
    """Parse the header's own field; its layout is 8 bytes of length, then JSON (safetensors format)."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])["__metadata__"]["shardgym"]
        fields: dict[str, Any] = json.loads(header)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path}: not a whole file of simulator weights: expected one written by 'shardgym pretrain'"
        ) from None
    for name in ("schema", "role", "hardware", "precisions", "optimizers", "context", "spread_limit"):
        if name not in fields:
            raise InputError(f"{path}: field '{name}' is missing from the header")
    return fields


def _read_tensors(data: bytes, path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors: dict[str, Any] = load(data)
    except SafetensorError as error:
        raise InputError(f"{path}: damaged or truncated ({' '.join(str(error).split())[:120]})") from None
    for name, value in tensors.items():
        if not np.isfinite(value).all():
            raise InputError(f"{path}: tensor '{name}' holds numbers that are not finite")
    return tensors


def _check_architecture(tensors: dict[str, Any], path: Path) -> None:
    """Compare names and shapes of parameters with the network that shall have them."""
    for name in ComputeNet.FIXED:
        _check_present(tensors, f"compute.fixed.{name}", path)
    for chain, widths in ComputeNet.SIZES.items():
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            _check_shape(tensors, f"compute.{chain}.{layer}.weight", (inputs, outputs), path)
            _check_shape(tensors, f"compute.{chain}.{layer}.bias", (1, outputs), path)


def _check_trees(tensors: dict[str, Any], path: Path) -> None:
    """Check that the judge is complete, and that its trees lead to nodes that there are."""
    for name in FIXED_NAMES:
        _check_present(tensors, f"compute.fixed.{name}", path)
    for prefix in PHASES:
        for name in TREE_NAMES:
            _check_present(tensors, f"compute.{prefix}.{name}", path)
        nodes = tensors[f"compute.{prefix}.value"].shape[-1]
        for name in ("left", "right"):
            children = tensors[f"compute.{prefix}.{name}"]
            if children.min() < 0 or children.max() >= nodes:
                raise InputError(f"{path}: tensor 'compute.{prefix}.{name}' names a node that a tree does not have")


def _check_shape(tensors: dict[str, Any], name: str, shape: tuple[int, ...], path: Path) -> None:
    _check_present(tensors, name, path)
    if tensors[name].shape[-2:] != shape:
        raise InputError(f"{path}: tensor '{name}' has shape {tensors[name].shape}, expected (..., {str(shape)[1:]}")


def _check_present(tensors: dict[str, Any], name: str, path: Path) -> None:
    if name not in tensors:
        raise InputError(f"{path}: tensor '{name}' is missing: weights of another architecture")
