"""Files of trained weights: safetensors, with what must be known to use them in the header, and where they are."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.link_model import LinkModel
from shardgym.costs.simulator.boosted_judge import FIXED_NAMES, PHASES, TREE_NAMES, BoostedJudge
from shardgym.costs.simulator.features import COMM_RANGE_NAMES, DEVICE_RANGE_NAMES, SHARD_RANGE_NAMES
from shardgym.costs.simulator.judge_networks import JudgeCommNet, JudgeComputeNet, JudgeNetworks
from shardgym.costs.simulator.monotone_networks import MonotoneCommNet, MonotoneComputeNet
from shardgym.costs.simulator.network import Network, Params
from shardgym.costs.simulator.oracle_networks import CommNet, ComputeNet, OracleNetworks
from shardgym.errors import InputError, one_line
from shardgym.files import read_regular, write_whole

#: Schemas of files by version of the simulator.
SCHEMAS: dict[int, str] = {1: "shardgym.simulator/1", 2: "shardgym.simulator/2"}

#: One folder per hardware tag and version, each as `shardgym pretrain` writes it; see `shipped_name`.
SHIPPED = Path(__file__).parent / "models"
#: Ends the name of a folder with weights of version 2.
_GENERATION_2 = "-v2"

_TRAIN = "run 'shardgym collect' and 'shardgym pretrain' and give weights=FOLDER"

Role = Literal["oracle", "judge"]
ROLES: tuple[Role, ...] = ("oracle", "judge")

#: Parts of a simulator. One that was trained without exchanges has "compute" alone.
PARTS = ("compute", "forward", "backward")

#: Classes of the networks by version and role. The judge of version 2 has trees instead.
NETWORKS: dict[tuple[int, Role], dict[str, type[Network]]] = {
    (1, "oracle"): {"compute": ComputeNet, "forward": CommNet, "backward": CommNet},
    (1, "judge"): {"compute": JudgeComputeNet, "forward": JudgeCommNet, "backward": JudgeCommNet},
    (2, "oracle"): {"compute": MonotoneComputeNet, "forward": MonotoneCommNet, "backward": MonotoneCommNet},
}

#: Names of the features whose ranges are kept, by group; "comm" goes with the networks of exchanges.
RANGES: dict[str, tuple[str, ...]] = {
    "shard": SHARD_RANGE_NAMES, "device": DEVICE_RANGE_NAMES, "comm": COMM_RANGE_NAMES,
}  # fmt: skip


#: Densities of version 2, and what is unfamiliar where they are low.
DENSITY_NAMES = {"device": "what a device holds", "exchange": "exchange"}


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
        networks: parameters of each of `PARTS`, or of "compute" alone where no exchanges could be measured; members
            of the ensemble along the first axis, the best one first.
        ranges: of version 1: smallest and largest value of each feature in the training data by group of `RANGES`,
            shape (2, n).
        spread_limit: largest disagreement of the members on compute times of contents they had not seen.
        digest: SHA-256 of the file; "" before it is saved.
        generation: version of the simulator, which says what networks see and how they are built.
        densities: of version 2, by name of `DENSITY_NAMES`.
        links: prices exchanges where no networks do; None for latencies and bandwidths of the topology alone.
    """

    role: Role
    hardware: str
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    networks: dict[str, Params]
    ranges: dict[str, Floats]
    spread_limit: float
    digest: str = field(default="", compare=False)
    generation: int = 1
    densities: dict[str, Density] = field(default_factory=dict)
    links: LinkModel | None = None

    @property
    def predicts_exchanges(self) -> bool:
        """Whether there are networks of exchanges."""
        return "forward" in self.networks

    @property
    def version(self) -> str:
        """Version of a cost model with these weights: their digest, shortened."""
        return f"{self.generation}-{self.digest[:12]}"


def networks_of(weights: Weights) -> OracleNetworks | JudgeNetworks | BoostedJudge:
    """Return the networks that have these weights."""
    if weights.role == "judge":
        return JudgeNetworks(weights.networks) if weights.generation == 1 else BoostedJudge(weights.networks)
    if weights.generation == 1:
        return OracleNetworks(weights.networks)
    return OracleNetworks(weights.networks, MonotoneComputeNet, MonotoneCommNet)


def shipped_name(hardware: str, generation: int) -> str:
    """Return the name of the folder with the weights of a version for hardware of a tag."""
    return hardware + _GENERATION_2 if generation == 2 else hardware


def find_weights(weights: str | Path | None, role: Role, hardware: str | None, generation: int | None = None) -> Path:
    """Return the file of weights for a role.

    Args:
        weights: a folder or a file; what ships with the package when None.
        role: names the file in a folder.
        hardware: which of the shipped ones; may be None when there is one only.
        generation: version of the shipped ones; 1 when None.

    Raises:
        InputError: there is no such file.
    """
    if weights is not None:
        path = Path(weights)
        path = path / f"{role}.safetensors" if path.is_dir() else path
        if not path.is_file():
            raise InputError(f"no simulator weights at {path}: {_TRAIN}")
        return path
    wanted = generation or 1
    names = [path.parent.name for path in SHIPPED.glob(f"*/{role}.safetensors")]
    tags = sorted(n.removesuffix(_GENERATION_2) for n in names if n.endswith(_GENERATION_2) == (wanted == 2))
    if not tags:
        raise InputError(f"no weights of the simulator's {role} ship of version {wanted}: {_TRAIN}")
    if hardware is None and len(tags) > 1:
        raise InputError(f"weights for several machines ship: give hardware=, one of {', '.join(tags)}")
    if hardware is not None and hardware not in tags:
        raise InputError(f"no weights for hardware '{hardware}' ship, only for {', '.join(tags)}: {_TRAIN}")
    return SHIPPED / shipped_name(hardware or tags[0], wanted) / f"{role}.safetensors"


def save_weights(path: Path, weights: Weights) -> str:
    """Write weights in single precision; the file appears whole or not at all. Return its SHA-256.

    Raises:
        InputError: the file cannot be written there.
    """
    from safetensors.numpy import save

    tensors = {
        f"{network}.{name}": np.ascontiguousarray(value, dtype=np.float32)
        for network, params in weights.networks.items()
        for name, value in params.items()
    }
    tensors |= {f"range.{name}": np.ascontiguousarray(value, np.float64) for name, value in weights.ranges.items()}
    for name, density in weights.densities.items():
        tensors |= {
            f"density.{name}.{k}": np.array(value, np.float64, order="C") for k, value in density._asdict().items()
        }
    header = {
        "schema": SCHEMAS[weights.generation], "role": weights.role, "hardware": weights.hardware,
        "precisions": list(weights.precisions), "optimizers": list(weights.optimizers),
        "spread_limit": weights.spread_limit,
    }  # fmt: skip
    if weights.links is not None:
        header["links"] = weights.links.to_dict()
    # One key only: safetensors keeps several in no particular order, and equal weights shall be equal files.
    data: bytes = save(tensors, metadata={"shardgym": json.dumps(header, sort_keys=True)})
    write_whole(path, data)
    return hashlib.sha256(data).hexdigest()


def load_weights(path: Path, role: Role, hardware: str | None = None, generation: int | None = None) -> Weights:
    """Read weights and check that they are what is expected.

    Args:
        path: a file written by `save_weights`.
        role: that it must have.
        hardware: tag that it must have; any when None.
        generation: version that it must have; any when None.

    Returns:
        Weights in double precision.

    Raises:
        InputError: not a whole safetensors file, of another schema, role, hardware or architecture; file and field are
            named.
    """
    data = read_regular(path)
    try:
        return _parse_weights(data, path, role, hardware, generation)
    except InputError:
        raise
    except Exception as error:  # damaged files make libraries raise all kinds of errors
        raise InputError(f"{path}: damaged ({one_line(error)})") from None


def _parse_weights(data: bytes, path: Path, role: Role, hardware: str | None, generation: int | None) -> Weights:
    header = _read_header(data, path)
    found = next((number for number, schema in SCHEMAS.items() if schema == header["schema"]), 1)
    schema = SCHEMAS[generation or found]
    generation = found
    for name, expected in (("schema", schema), ("role", role), ("hardware", hardware)):
        if expected is not None and header[name] != expected:
            given = str(header[name])
            raise InputError(f"{path}: {name}: these weights are of '{given:.60}', expected '{expected}'")
    tensors = _read_tensors(data, path)
    # A file has ranges of exchanges where it has anything of exchanges.
    has_exchanges = any(name.startswith(("forward.", "backward.", "range.comm")) for name in tensors)
    parts = PARTS if has_exchanges else PARTS[:1]
    groups = [name for name in RANGES if generation == 1 and (has_exchanges or name != "comm")]
    if (generation, role) in NETWORKS:
        _check_architecture(tensors, {part: NETWORKS[generation, role][part] for part in parts}, path)
    else:
        _check_trees(tensors, parts, path)
    for name in groups:
        _check_shape(tensors, f"range.{name}", (2, len(RANGES[name])), path)
    densities = {}
    for name in DENSITY_NAMES if generation == 2 else ():
        if has_exchanges or name != "exchange":
            for field_name in Density._fields:
                _check_present(tensors, f"density.{name}.{field_name}", path)
            densities[name] = Density(*(tensors[f"density.{name}.{k}"] for k in Density._fields))
            densities[name] = densities[name]._replace(limit=float(densities[name].limit))
    networks: dict[str, Params] = {}
    for name, value in tensors.items():
        network, _, rest = name.partition(".")
        if network in PARTS:
            # Predictions are made in double precision: rounding must not decide which of two plans is better.
            networks.setdefault(network, {})[rest] = value.astype(np.float64)
    return Weights(
        role=role,
        hardware=str(header["hardware"]),
        precisions=tuple(header["precisions"]),
        optimizers=tuple(header["optimizers"]),
        networks=networks,
        ranges={name: tensors[f"range.{name}"] for name in groups},
        spread_limit=float(header["spread_limit"]),
        digest=hashlib.sha256(data).hexdigest(),
        generation=generation,
        densities=densities,
        links=LinkModel.from_dict(header["links"], f"{path}, links") if "links" in header else None,
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
    for name in ("schema", "role", "hardware", "precisions", "optimizers", "spread_limit"):
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


def _check_architecture(tensors: dict[str, Any], networks: dict[str, type[Network]], path: Path) -> None:
    """Compare names and shapes of parameters with the networks that shall have them."""
    for network, net in networks.items():
        for name in net.FIXED:
            _check_present(tensors, f"{network}.fixed.{name}", path)
        for chain, widths in net.SIZES.items():
            for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
                _check_shape(tensors, f"{network}.{chain}.{layer}.weight", (inputs, outputs), path)
                _check_shape(tensors, f"{network}.{chain}.{layer}.bias", (1, outputs), path)


def _check_trees(tensors: dict[str, Any], parts: Sequence[str], path: Path) -> None:
    """Check that the judge of version 2 is complete, and that its trees lead to nodes that there are."""
    for part in parts:
        for name in FIXED_NAMES:
            _check_present(tensors, f"{part}.fixed.{name}", path)
        for prefix in PHASES if part == "compute" else ("transfer",):
            for name in TREE_NAMES:
                _check_present(tensors, f"{part}.{prefix}.{name}", path)
            nodes = tensors[f"{part}.{prefix}.value"].shape[-1]
            for name in ("left", "right"):
                children = tensors[f"{part}.{prefix}.{name}"]
                if children.min() < 0 or children.max() >= nodes:
                    raise InputError(f"{path}: tensor '{part}.{prefix}.{name}' names a node that a tree does not have")


def _check_shape(tensors: dict[str, Any], name: str, shape: tuple[int, ...], path: Path) -> None:
    _check_present(tensors, name, path)
    if tensors[name].shape[-2:] != shape:
        raise InputError(f"{path}: tensor '{name}' has shape {tensors[name].shape}, expected (..., {str(shape)[1:]}")


def _check_present(tensors: dict[str, Any], name: str, path: Path) -> None:
    if name not in tensors:
        raise InputError(f"{path}: tensor '{name}' is missing: weights of another architecture")
