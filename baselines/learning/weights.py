"""Files of a learned solver, safetensors weights and a JSON card, and the choice of shipped weights for a task."""

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

#: Shipped weights: SOLVER/NAME/seed-K, where NAME is the suite whose training tasks they were fitted on.
SHIPPED = Path(__file__).parents[1] / "weights"

Range = tuple[Whole, Whole]


@dataclass(frozen=True, config=CONFIG)
class TaskSummary(Record):
    """Summary of the tasks that a solver was fitted on."""

    source: str  #: origin, such as "train half of synthetic-2021, drawn like dlrm4-v2"
    count: Annotated[Whole, Field(ge=1)]  #: number of tasks
    sha256: Digest  #: digest of their digests in order
    num_tables: Range  #: smallest and largest number of tables
    num_devices: Range  #: smallest and largest number of devices


@dataclass(frozen=True, config=CONFIG)
class SolverCard(Record):
    """Card beside the weights of a learned solver; policies of other libraries have neither tasks nor a curve."""

    solver: Name  #: name of the solver, or module:function that builds another library's policy without weights
    settings: dict[str, Any]  #: training settings, or arguments of `PolicySolver` for another library's policy
    weights_sha256: Digest  #: digest of the weights' file
    created: str  #: time in UTC
    versions: dict[str, str]  #: versions of Python and of packages
    #: Training time without interruptions; None if unknown.
    minutes: Annotated[float, Field(ge=0)] | None = None
    note: str = ""  #: a sentence on the training
    #: Mean and standard deviation of each table feature, by the feature's name.
    features: dict[str, tuple[float, float]] = Field(default_factory=dict)
    tasks: TaskSummary | None = None  #: training tasks
    validation: TaskSummary | None = None  #: tasks that chose the best step
    #: Name, version, hardware and settings of the oracle.
    oracle: dict[str, Any] = Field(default_factory=dict)
    oracle_queries: Whole = 0  #: number of priced plans, including validation
    seed: Whole = 0  #: seed of the training
    steps: Whole = 0  #: number of training steps
    best_step: Whole = 0  #: step of these weights
    #: One entry per evaluation: step, minutes, mean cost of the validation tasks, and what the solver reports.
    curve: list[dict[str, Any]] = Field(default_factory=list)
    schema: Literal["shardgym.solver_card/2"] = "shardgym.solver_card/2"


def pack(network: nn.Module) -> bytes:
    """Serialise weights as safetensors bytes; equal weights give equal bytes."""
    tensors = network.state_dict()
    # Copies: layers that two networks share are written twice.
    copies = {name: tensors[name].detach().clone(memory_format=torch.contiguous_format) for name in sorted(tensors)}
    data: bytes = save_tensors(copies)
    return data


def digest_of(network: nn.Module) -> str:
    """Return the SHA-256 of a network's weights file."""
    return hashlib.sha256(pack(network)).hexdigest()


def save_network(folder: Path, network: nn.Module, card: SolverCard) -> None:
    """Write weights and card into a folder; an older card is removed first, so that it never meets the new weights."""
    make_folder(folder)
    (folder / CARD).unlink(missing_ok=True)
    write_whole(folder / WEIGHTS, pack(network))
    write_whole(folder / CARD, card.to_json(indent=1) + "\n")


def load_card(folder: str | Path, solver: str | None) -> SolverCard:
    """Read the card of a folder; raises `InputError` if there is none, or if it is of another solver than named."""
    path = Path(folder) / CARD
    if not path.is_file():
        how = f"'shardgym fit {solver}' or save()" if solver else "PolicySolver.save"
        raise InputError(f"no weights in {folder}: expected a folder with {CARD} that {how} wrote")
    card = SolverCard.load(path)
    if solver is not None and card.solver != solver:
        raise InputError(f"{path}: weights of solver '{card.solver}', expected '{solver}'")
    return card


def load_network(folder: str | Path, card: SolverCard, network: nn.Module) -> None:
    """Load a card's weights into a network; raises `InputError` if the file is damaged or does not match either."""
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
    """Shipped weights of one name."""

    seeds: tuple[Path, ...]  #: folders of the training seeds, ascending
    num_devices: tuple[int, int]  #: smallest and largest number of devices of the training tasks


def shipped_weights(solver: str) -> dict[str, Shipped]:
    """Return the shipped weights of a solver by name, possibly none."""
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
    """Return the folder of the weights fitted on the number of devices nearest by ratio; ties go to the first name.

    Training seed number `seed`, modulo how many there are, is chosen among them.
    """

    def distance(name: str) -> tuple[float, str]:
        least, most = shipped[name].num_devices
        nearest = min(max(num_devices, least), most)
        return abs(math.log(num_devices / nearest)), name

    seeds = shipped[min(shipped, key=distance)].seeds
    return seeds[seed % len(seeds)]
