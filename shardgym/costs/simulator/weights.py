"""Files of trained weights: safetensors, with what must be known to use them in the header."""

from __future__ import annotations

import hashlib
import itertools
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.simulator import comm_net, compute_net, judge_comm_net, judge_compute_net
from shardgym.costs.simulator.features import DEVICE_RANGE_NAMES, SHARD_RANGE_NAMES
from shardgym.costs.simulator.ops import Params
from shardgym.errors import InputError

SCHEMA = "shardgym.simulator/1"

Role = Literal["oracle", "judge"]
ROLES: tuple[Role, ...] = ("oracle", "judge")

#: Networks of a simulator.
NETWORKS = ("compute", "forward", "backward")

_NETS: dict[Role, dict[str, ModuleType]] = {
    "oracle": {"compute": compute_net, "forward": comm_net, "backward": comm_net},
    "judge": {"compute": judge_compute_net, "forward": judge_comm_net, "backward": judge_comm_net},
}

#: Names of the features whose ranges are kept, by group.
RANGES: dict[str, tuple[str, ...]] = {
    "shard": SHARD_RANGE_NAMES, "device": DEVICE_RANGE_NAMES, "comm": comm_net.COMM_RANGE_NAMES,
}  # fmt: skip


@dataclass(frozen=True)
class Weights:
    """A trained simulator.

    Attributes:
        role: whether it is an oracle or a judge; they have different architectures.
        hardware: tag of the machine whose times it predicts.
        precisions: of the weights it was trained on.
        optimizers: likewise.
        networks: parameters of each of `NETWORKS`, or of "compute" alone where no exchanges could be measured; members
            of the ensemble along the first axis, the best one first.
        ranges: smallest and largest value of each feature in the training data by group of `RANGES`, shape (2, n);
            "comm" goes with the networks of exchanges.
        spread_limit: largest relative spread of the members' compute times on contents they had not seen.
        digest: SHA-256 of the file; "" before it is saved.
    """

    role: Role
    hardware: str
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    networks: dict[str, Params]
    ranges: dict[str, Floats]
    spread_limit: float
    digest: str = field(default="", compare=False)

    @property
    def predicts_exchanges(self) -> bool:
        """Whether there are networks of exchanges."""
        return "comm" in self.ranges


def save_weights(path: Path, weights: Weights) -> str:
    """Write weights in single precision; the file appears whole or not at all. Return its SHA-256."""
    from safetensors.numpy import save

    tensors = {
        f"{network}.{name}": np.ascontiguousarray(value, dtype=np.float32)
        for network, params in weights.networks.items()
        for name, value in params.items()
    }
    tensors |= {f"range.{name}": np.ascontiguousarray(value, np.float64) for name, value in weights.ranges.items()}
    header = {
        "role": weights.role, "hardware": weights.hardware, "precisions": list(weights.precisions),
        "optimizers": list(weights.optimizers), "spread_limit": weights.spread_limit,
    }  # fmt: skip
    # One key only: safetensors keeps several in no particular order, and equal weights shall be equal files.
    data: bytes = save(tensors, metadata={"shardgym": json.dumps({"schema": SCHEMA, **header}, sort_keys=True)})
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(data)
    temporary.replace(path)
    return hashlib.sha256(data).hexdigest()


def load_weights(path: Path, role: Role, hardware: str | None = None) -> Weights:
    """Read weights and check that they are what is asked for.

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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    header = _header(data, path)
    for name, expected in (("schema", SCHEMA), ("role", role), ("hardware", hardware)):
        if expected is not None and header.get(name) != expected:
            given = str(header.get(name))
            raise InputError(f"{path}: {name}: these weights are of '{given:.60}', expected '{expected}'")
    tensors = _tensors(data, path)
    _check(tensors, role, path)
    networks: dict[str, Params] = {}
    for name, value in tensors.items():
        network, _, rest = name.partition(".")
        if network in NETWORKS:
            networks.setdefault(network, {})[rest] = value.astype(np.float64)
    return Weights(
        role, str(header["hardware"]), tuple(header["precisions"]), tuple(header["optimizers"]), networks,
        {name: tensors[f"range.{name}"] for name in _groups(tensors)}, float(header["spread_limit"]),
        hashlib.sha256(data).hexdigest(),
    )  # fmt: skip


def _header(data: bytes, path: Path) -> dict[str, Any]:
    """Parse the header's own field; its layout is 8 bytes of length, then JSON (safetensors format)."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])["__metadata__"]["shardgym"]
        fields: dict[str, Any] = json.loads(header)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path}: not a whole file of simulator weights: expected one written by 'shardgym pretrain'"
        ) from None
    missing = [n for n in ("schema", "role", "hardware", "precisions", "optimizers", "spread_limit") if n not in fields]
    if missing:
        raise InputError(f"{path}: field '{missing[0]}' is missing from the header")
    return fields


def _tensors(data: bytes, path: Path) -> dict[str, Any]:
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


def _check(tensors: dict[str, Any], role: Role, path: Path) -> None:
    """Compare names and shapes with the architecture of the role."""
    whole_model = "comm" in _groups(tensors)
    for network, net in _NETS[role].items() if whole_model else [("compute", _NETS[role]["compute"])]:
        for name in net.FIXED:
            if f"{network}.fixed.{name}" not in tensors:
                raise InputError(f"{path}: tensor '{network}.fixed.{name}' is missing: weights of another architecture")
        for chain, widths in net.sizes().items():
            # The width of a compute encoder's input is that of the features.
            features = len(tensors[f"{network}.fixed.feature_mean"])
            whole = (features, *widths) if (network, chain) == ("compute", "encoder") else widths
            for layer, (inputs, outputs) in enumerate(itertools.pairwise(whole)):
                _check_shape(tensors, f"{network}.{chain}.{layer}.weight", (inputs, outputs), path)
                _check_shape(tensors, f"{network}.{chain}.{layer}.bias", (1, outputs), path)
    for name in _groups(tensors):
        _check_shape(tensors, f"range.{name}", (2, len(RANGES[name])), path)


def _groups(tensors: dict[str, Any]) -> list[str]:
    """Return the groups of features that a file should have ranges of: "comm" where it has anything of exchanges."""
    exchanges = any(name.startswith(("forward.", "backward.", "range.comm")) for name in tensors)
    return [name for name in RANGES if exchanges or name != "comm"]


def _check_shape(tensors: dict[str, Any], name: str, shape: tuple[int, ...], path: Path) -> None:
    if name not in tensors:
        raise InputError(f"{path}: tensor '{name}' is missing: weights of another architecture")
    if tensors[name].shape[-2:] != shape:
        raise InputError(f"{path}: tensor '{name}' has shape {tensors[name].shape}, expected (..., {str(shape)[1:]}")
