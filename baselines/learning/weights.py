"""Files of a learned solver: weights as safetensors, a card as JSON, and which of those in the package serve a task."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from shardgym.errors import InputError
from shardgym.files import make_folder, read_bytes, write_whole
from shardgym.records import CONFIG, Digest, Name, Record, Whole

WEIGHTS = "weights.safetensors"
CARD = "card.json"

#: Weights in the package: SOLVER/NAME/seed-K, where NAME is the suite whose training tasks they were fitted on.
SHIPPED = Path(__file__).parents[1] / "weights"

Range = tuple[Whole, Whole]


@dataclass(frozen=True, config=CONFIG)
class TaskSummary(Record):
    """What is known of the tasks that a solver was fitted on.

    Attributes:
        source: where they come from, e.g. "train half of synthetic-2021, drawn like dlrm4-v1".
        count: how many.
        sha256: over their digests in order.
        num_tables: smallest and largest number of tables.
        num_devices: smallest and largest number of devices.
    """

    source: str
    count: Annotated[Whole, Field(ge=1)]
    sha256: Digest
    num_tables: Range
    num_devices: Range


@dataclass(frozen=True, config=CONFIG)
class SolverCard(Record):
    """Written next to the weights of a learned solver.

    Attributes:
        solver: its name.
        architecture: widths of its networks by name; weights of another are refused.
        settings: of training.
        features: mean and standard deviation that each feature of a table is scaled by, by the feature's name.
        tasks: that it was fitted on.
        validation: tasks of the same kind that chose the step whose weights these are.
        oracle: name, version, hardware and settings of the cost that was queried.
        oracle_queries: plans that were priced, those of validation included.
        seed: of training.
        steps: of training that were made.
        best_step: the step whose weights these are.
        minutes: that training took, interruptions left out.
        curve: one entry per evaluation: step, minutes, mean cost of the validation tasks, and what the solver reports.
        created: UTC.
        versions: of Python and the packages.
        weights_sha256: of the file of weights.
    """

    solver: Name
    architecture: dict[str, Any]
    settings: dict[str, Any]
    features: dict[str, tuple[float, float]]
    tasks: TaskSummary
    validation: TaskSummary
    oracle: dict[str, Any]
    oracle_queries: Whole
    seed: Whole
    steps: Whole
    best_step: Whole
    minutes: float
    curve: list[dict[str, Any]]
    created: str
    versions: dict[str, str]
    weights_sha256: Digest
    schema: Literal["shardgym.solver_card/1"] = "shardgym.solver_card/1"


class Card(Protocol):
    """What is written next to weights."""

    @property
    def weights_sha256(self) -> str:
        """Of the file of weights."""

    def to_json(self, indent: int | None = None) -> str:
        """Return the card as a file has it."""


def pack(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file; equal tensors give equal bytes."""
    # Copies: layers that two networks share are written twice.
    copies = {name: tensors[name].detach().clone(memory_format=torch.contiguous_format) for name in sorted(tensors)}
    data: bytes = save_tensors(copies, metadata)
    return data


def unpack(data: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; raises `InputError` when it is damaged."""
    try:
        tensors: dict[str, Tensor] = load_tensors(data)
    except SafetensorError as error:
        raise InputError(f"{path}: damaged or truncated ({' '.join(str(error).split())[:120]})") from None
    return tensors


def unpack_metadata(data: bytes, path: Path) -> dict[str, str]:
    """Return the text fields in the header of a safetensors file; raises `InputError` when there are none."""
    try:
        # 8 bytes of length, then JSON.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return dict(header["__metadata__"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path}: damaged or truncated, or another kind of file") from None


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def save_network(folder: Path, network: nn.Module, card: Card) -> None:
    """Write weights and card into a folder; of earlier ones there, the card goes first.

    So after a kill in between there is no card, and never a card beside the weights of another training.
    """
    make_folder(folder)
    (folder / CARD).unlink(missing_ok=True)
    write_whole(folder / WEIGHTS, pack(network.state_dict()))
    write_whole(folder / CARD, card.to_json(indent=1) + "\n")


def load_card(folder: str | Path, solver: str, architecture: Mapping[str, Any]) -> SolverCard:
    """Read the card of a folder of weights.

    Args:
        folder: as `save_network` writes it.
        solver: name of the solver that the weights must be of.
        architecture: that they must have.

    Raises:
        InputError: there are no weights, or they are of another schema, solver or architecture.
    """
    if not str(folder):
        raise InputError("weights is empty: give the folder of weights, or leave the setting out")
    path = Path(folder)
    if not (path / CARD).is_file():
        raise InputError(
            f"no weights of solver '{solver}' in {path}{_what_lacks(path)}: expected a folder that "
            f"'shardgym fit {solver}' or save() wrote"
        )
    card = SolverCard.load(path / CARD)
    if card.solver != solver:
        raise InputError(f"{path / CARD}: weights of solver '{card.solver}', expected '{solver}'")
    # Through JSON, which knows no tuples.
    expected = json.loads(json.dumps(dict(architecture)))
    for name in sorted({*card.architecture, *expected}):
        if card.architecture.get(name) != expected.get(name):
            raise InputError(
                f"{path / CARD}: weights of another architecture: '{name}' is {card.architecture.get(name)}, expected "
                f"{expected.get(name)}; fit again with 'shardgym fit {solver}'"
            )
    return card


def _what_lacks(path: Path) -> str:
    """Say why a folder has no card, as far as can be seen."""
    if (path / WEIGHTS).is_file():
        return f" ({WEIGHTS} without its {CARD}: writing was cut off)"
    if any(path.glob("checkpoint.*")):
        return " (a checkpoint alone: training has not ended; the same command with --resume continues it)"
    inside = sorted(card.parent.name for card in path.glob(f"*/{CARD}"))
    return f" (there are some in {', '.join(inside[:3])}: give one of these folders)" if inside else ""


def load_network(folder: str | Path, card: Card, network: nn.Module) -> None:
    """Read weights into a network of the card's architecture.

    Raises:
        InputError: the file is damaged, is not the card's, or has other tensors than the network.
    """
    path = Path(folder) / WEIGHTS
    data = read_bytes(path)
    if sha256_of(data) != card.weights_sha256:
        raise InputError(
            f"{path}: damaged, or not the weights that {CARD} is about: its digest is {sha256_of(data)[:12]}, "
            f"expected {card.weights_sha256[:12]}"
        )
    tensors = unpack(data, path)
    expected = network.state_dict()
    for name in sorted({*tensors, *expected}):
        found = tuple(tensors[name].shape) if name in tensors else "missing"
        wanted = tuple(expected[name].shape) if name in expected else "no such tensor"
        if found != wanted:
            raise InputError(f"{path}: weights of another architecture: '{name}' is {found}, expected {wanted}")
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: tensor '{name}' holds numbers that are not finite")
    network.load_state_dict(tensors)


class Shipped(NamedTuple):
    """Weights of one name in the package.

    Attributes:
        seeds: folders of the training seeds, ascending.
        num_devices: smallest and largest number of devices that they were fitted on.
    """

    seeds: tuple[Path, ...]
    num_devices: tuple[int, int]


def shipped_weights(solver: str, root: Path = SHIPPED) -> dict[str, Shipped]:
    """Return by name what ships for a solver: nothing where none does."""
    found: dict[str, list[Path]] = {}
    for card in (root / solver).glob(f"*/seed-*/{CARD}"):
        found.setdefault(card.parent.parent.name, []).append(card.parent)
    shipped = {}
    for name in sorted(found):
        seeds = tuple(sorted(found[name], key=lambda folder: int(folder.name.removeprefix("seed-"))))
        shipped[name] = Shipped(seeds, SolverCard.load(seeds[0] / CARD).tasks.num_devices)
    return shipped


def choose_shipped(shipped: Mapping[str, Shipped], num_devices: int, seed: int) -> Path:
    """Return the folder of the weights that serve a task.

    Those that were fitted on the nearest number of devices, compared by ratio; of equally near ones the first by
    name. Of their training seeds, number `seed` modulo how many there are.

    Args:
        shipped: at least one.
        num_devices: of the task.
        seed: given to `solve`.
    """

    def distance(name: str) -> tuple[float, str]:
        least, most = shipped[name].num_devices
        nearest = min(max(num_devices, least), most)
        return abs(math.log(num_devices / nearest)), name

    seeds = shipped[min(shipped, key=distance)].seeds
    return seeds[seed % len(seeds)]
