"""Files of a learned solver: weights as safetensors, a card as JSON, and which of those in the package serve a task."""

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
from torch import nn

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
    """What is known of the tasks that a solver was fitted on."""

    source: str  #: where they come from, e.g. "train half of synthetic-2021, drawn like dlrm4-v1".
    count: Annotated[Whole, Field(ge=1)]  #: how many
    sha256: Digest  #: over their digests in order
    num_tables: Range  #: smallest and largest number of tables
    num_devices: Range  #: smallest and largest number of devices


@dataclass(frozen=True, config=CONFIG)
class SolverCard(Record):
    """Written next to the weights of a learned solver. What another library trained has neither tasks nor a curve."""

    solver: Name  #: its name; of a policy that another library trained, module:function that makes it without weights
    settings: dict[str, Any]  #: of training; of such a policy, what `PolicySolver` is made with
    weights_sha256: Digest  #: of the file of weights
    created: str  #: UTC
    versions: dict[str, str]  #: of Python and the packages
    #: That training took, interruptions left out; None when unknown.
    minutes: Annotated[float, Field(ge=0)] | None = None
    note: str = ""  #: how it was trained, in a sentence
    #: Mean and standard deviation that each feature of a table is scaled by, by the feature's name.
    features: dict[str, tuple[float, float]] = Field(default_factory=dict)
    tasks: TaskSummary | None = None  #: that it was fitted on
    validation: TaskSummary | None = None  #: tasks of the same kind that chose the step whose weights these are
    #: Name, version, hardware and settings of the cost that was queried.
    oracle: dict[str, Any] = Field(default_factory=dict)
    oracle_queries: Whole = 0  #: plans that were priced, those of validation included
    seed: Whole = 0  #: of training
    steps: Whole = 0  #: of training that were made
    best_step: Whole = 0  #: the step whose weights these are
    #: One entry per evaluation: step, minutes, mean cost of the validation tasks, and what the solver reports.
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
    """Read the weights of a card into a network; a file that is damaged, another or of other tensors is refused."""
    path = Path(folder) / WEIGHTS
    data = read_bytes(path)
    digest = hashlib.sha256(data).hexdigest()
    if digest != card.weights_sha256:
        raise InputError(
            f"{path}: damaged, or not the weights that {CARD} is about: its digest is {digest[:12]}, expected "
            f"{card.weights_sha256[:12]}"
        )
    try:
        network.load_state_dict(load_tensors(data))
    except (SafetensorError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise InputError(f"{path}: weights of another architecture, fit again: {why}") from None


class Shipped(NamedTuple):
    """Weights of one name in the package."""

    seeds: tuple[Path, ...]  #: folders of the training seeds, ascending
    num_devices: tuple[int, int]  #: smallest and largest number of devices that they were fitted on


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
