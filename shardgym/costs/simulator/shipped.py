"""Where weights are: in a folder of the user's, or in the package."""

from __future__ import annotations

from pathlib import Path

from shardgym.costs.simulator.weights import Role
from shardgym.errors import InputError

#: One folder per hardware tag, each as `shardgym pretrain` writes it.
SHIPPED = Path(__file__).parent / "models"

_TRAIN = "run 'shardgym collect' and 'shardgym pretrain' and give weights=FOLDER"


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
        raise InputError(f"no weights of the simulator's {role} ship with this version: {_TRAIN}")
    if hardware is None and len(tags) > 1:
        raise InputError(f"weights for several machines ship: give hardware=, one of {', '.join(tags)}")
    if hardware is not None and hardware not in tags:
        raise InputError(f"no weights for hardware '{hardware}' ship, only for {', '.join(tags)}: {_TRAIN}")
    return SHIPPED / (hardware or tags[0]) / f"{role}.safetensors"
