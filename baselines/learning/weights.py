"""Files of a learned solver: weights as safetensors, a card as JSON, and which of those in the package serve a task."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

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
    """Written next to the weights of a learned solver. What another library trained has neither tasks nor a curve.

    Attributes:
        solver: its name; of a policy that another library trained, module:function that makes it without weights.
        settings: of training; of such a policy, what `PolicySolver` is made with.
        weights_sha256: of the file of weights.
        created: UTC.
        versions: of Python and the packages.
        minutes: that training took, interruptions left out; None when unknown.
        note: how it was trained, in a sentence.
        features: mean and standard deviation that each feature of a table is scaled by, by the feature's name.
        tasks: that it was fitted on.
        validation: tasks of the same kind that chose the step whose weights these are.
        oracle: name, version, hardware and settings of the cost that was queried.
        oracle_queries: plans that were priced, those of validation included.
        seed: of training.
        steps: of training that were made.
        best_step: the step whose weights these are.
        curve: one entry per evaluation: step, minutes, mean cost of the validation tasks, and what the solver reports.
    """

    solver: Name
    settings: dict[str, Any]
    weights_sha256: Digest
    created: str
    versions: dict[str, str]
    minutes: Annotated[float, Field(ge=0)] | None = None
    note: str = ""
    features: dict[str, tuple[float, float]] = Field(default_factory=dict)
    tasks: TaskSummary | None = None
    validation: TaskSummary | None = None
    oracle: dict[str, Any] = Field(default_factory=dict)
    oracle_queries: Whole = 0
    seed: Whole = 0
    steps: Whole = 0
    best_step: Whole = 0
    curve: list[dict[str, Any]] = Field(default_factory=list)
    schema: Literal["shardgym.solver_card/2"] = "shardgym.solver_card/2"


def pack(network: nn.Module) -> bytes:
    """Return weights as the bytes of a safetensors file; equal weights give equal bytes."""
    tensors = network.state_dict()
    # Copies: layers that two networks share are written twice.
    copies = {name: tensors[name].detach().clone(memory_format=torch.contiguous_format) for name in sorted(tensors)}
    data: bytes = save_tensors(copies)
    return data


def digest_of(network: nn.Module) -> str:
    """Return the SHA-256 of the file of a network's weights."""
    return hashlib.sha256(pack(network)).hexdigest()


def save_network(folder: Path, network: nn.Module, card: SolverCard) -> None:
    """Write weights and card into a folder; of earlier ones there, the card goes first.

    So after a kill in between there is no card, and never a card beside the weights of another training.
    """
    make_folder(folder)
    (folder / CARD).unlink(missing_ok=True)
    write_whole(folder / WEIGHTS, pack(network))
    write_whole(folder / CARD, card.to_json(indent=1) + "\n")


def load_card(folder: str | Path, solver: str | None) -> SolverCard:
    """Read the card of a folder of weights; raises `InputError` unless there is one, of this solver if named."""
    path = Path(folder) / CARD
    if not path.is_file():
        how = f"'shardgym fit {solver}' or save()" if solver else "PolicySolver.save"
        raise InputError(f"no weights in {folder}: expected a folder with {CARD} that {how} wrote")
    card = SolverCard.load(path)
    if solver is not None and card.solver != solver:
        raise InputError(f"{path}: weights of solver '{card.solver}', expected '{solver}'")
    return card


def load_network(folder: str | Path, card: SolverCard, network: nn.Module) -> None:
    """Read the weights of a card into a network.

    Raises:
        InputError: the file is damaged, is not the card's, or has other tensors than the network.
    """
    path = Path(folder) / WEIGHTS
    data = read_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != card.weights_sha256:
        raise InputError(
            f"{path}: damaged, or not the weights that {CARD} is about: its digest is {digest[:12]}, expected "
            f"{card.weights_sha256[:12]}"
        )
    try:
        tensors: dict[str, Tensor] = load_tensors(data)
        network.load_state_dict(tensors)
    except (SafetensorError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: weights of another architecture, fit again: {why}") from None
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise InputError(f"{path}: tensor '{name}' holds numbers that are not finite")


class Shipped(NamedTuple):
    """Weights of one name in the package.

    Attributes:
        seeds: folders of the training seeds, ascending.
        num_devices: smallest and largest number of devices that they were fitted on.
    """

    seeds: tuple[Path, ...]
    num_devices: tuple[int, int]


def shipped_weights(solver: str) -> dict[str, Shipped]:
    """Return by name what ships for a solver: nothing where none does."""
    found: dict[str, list[Path]] = {}
    for card in (SHIPPED / solver).glob(f"*/seed-*/{CARD}"):
        found.setdefault(card.parent.parent.name, []).append(card.parent)
    shipped = {}
    for name in sorted(found):
        seeds = tuple(sorted(found[name], key=lambda folder: int(folder.name.removeprefix("seed-"))))
        tasks = SolverCard.load(seeds[0] / CARD).tasks
        assert tasks is not None
        shipped[name] = Shipped(seeds, tasks.num_devices)
    return shipped


def choose_shipped(shipped: Mapping[str, Shipped], num_devices: int, seed: int) -> Path:
    """Return the folder of the weights that serve a task with so many devices.

    Those that were fitted on the nearest number of devices, compared by ratio; of equally near ones the first by
    name. Of their training seeds, number `seed` modulo how many there are.
    """

    def distance(name: str) -> tuple[float, str]:
        least, most = shipped[name].num_devices
        nearest = min(max(num_devices, least), most)
        return abs(math.log(num_devices / nearest)), name

    seeds = shipped[min(shipped, key=distance)].seeds
    return seeds[seed % len(seeds)]
