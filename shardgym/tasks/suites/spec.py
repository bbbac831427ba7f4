"""The format of suite files: the records that a file is parsed into. docs/concepts.md says what fields mean."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError, one_line
from shardgym.files import read_text
from shardgym.records import CONFIG, Name, Record, Whole, parse_json
from shardgym.tables.table import Optimizer, Precision, RowOrder

Count = Annotated[Whole, Field(ge=1, le=100_000)]
Bytes = Annotated[Whole, Field(ge=0, le=2**62)]
Positive = Annotated[Whole, Field(ge=1, le=2**62)]
Width = Annotated[Whole, Field(ge=1, le=2**16)]
Draws = tuple[Annotated[Whole, Field(ge=0)], ...]


def _in_order(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] > pair[1]:
        raise ValueError(f"expected smallest and largest, got {list(pair)}")
    return pair


#: The smallest and the largest number that there may be.
Between = Annotated[tuple[Positive, Positive], AfterValidator(_in_order)]


@dataclass(frozen=True, config=CONFIG)
class CostChoice(Record):
    """A cost model by its registered name, and keyword arguments that it is made with."""

    cost: Name
    settings: dict[str, Any] = Field(default_factory=dict)


#: A field that takes the bare name of a cost model for one without settings.
CostField = Annotated[CostChoice, BeforeValidator(lambda value: {"cost": value} if isinstance(value, str) else value)]


@dataclass(frozen=True, config=CONFIG)
class Track(Record):
    """One way to score a suite. Boards of different tracks are different boards."""

    judge: CostField  #: scores plans; no solver is given it
    oracle: CostField  #: what solvers may query


#: The track that needs no hardware. Its judge is the second simulator, trained on measurements that the
#: first never saw.
SIMULATED = Track(CostChoice("simulator", {"role": "judge"}), CostChoice("simulator"))


def _check_draws(draws: Draws, count: int) -> None:
    if draws and (len(draws) != count or len(set(draws)) != count):
        raise ValueError(f"draws: expected {count} different numbers, one for each task")


@dataclass(frozen=True, config=CONFIG)
class Group(Record):
    """Tasks that are drawn alike."""

    name: Name
    count: Count
    topology: Name
    num_devices: Count


@dataclass(frozen=True, config=CONFIG)
class DrawnGroup(Group):
    """Tasks that are drawn alike from a pool."""

    num_tables: Between
    dims: Annotated[tuple[Width, ...], Field(min_length=1)]
    max_total_bytes: Bytes
    memory_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    min_total_bytes: Bytes = 0
    max_table_bytes: Bytes = 2**62
    fullness: Annotated[float, Field(gt=0, le=1000)] | None = None
    host_fullness: Annotated[float, Field(gt=0, le=1)] | None = None
    memory_shares: tuple[Count, ...] = ()
    row_order: RowOrder | None = None
    row_blocks: Count | None = None
    draws: Draws = ()

    @model_validator(mode="after")
    def _ordered(self) -> DrawnGroup:
        if self.min_total_bytes > self.max_total_bytes:
            raise ValueError("min_total_bytes exceeds max_total_bytes")
        if (self.memory_bytes is None) == (self.fullness is None):
            raise ValueError("expected memory_bytes or fullness, and not both")
        if self.fullness is not None and self.fullness > 1 and self.host_fullness is None:
            raise ValueError(f"fullness: expected at most 1 without a host_fullness, got {self.fullness}")
        if self.memory_shares and (self.fullness is None or len(self.memory_shares) != self.num_devices):
            raise ValueError("memory_shares: expected one for each device, beside a fullness")
        if (self.row_order == "blocks") != (self.row_blocks is not None):
            raise ValueError("row_blocks: expected with row_order 'blocks', and with no other")
        _check_draws(self.draws, self.count)
        return self


@dataclass(frozen=True, config=CONFIG)
class DrawnTasks(Record):
    """Tasks drawn at random from a pool, groups taking turns."""

    kind: Literal["drawn"]
    seed: Annotated[Whole, Field(ge=0)]
    pool: Name
    batch_size: Annotated[Whole, Field(ge=1)]
    groups: Annotated[tuple[DrawnGroup, ...], Field(min_length=1)]
    half: Literal["train", "test", "all"] = "test"
    scale: Annotated[Whole, Field(ge=1)] = 1
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"


@dataclass(frozen=True, config=CONFIG)
class SequenceGroup(Group):
    """Tasks of unpooled tables that are drawn alike."""

    skew: Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=CONFIG)
class SequenceTasks(Record):
    """Tasks of unpooled tables, of which a row travels for every id, made up and drawn at random.

    Every table of a task, and its memory, takes one of the values that are listed, each as likely.
    """

    kind: Literal["sequences"]
    seed: Annotated[Whole, Field(ge=0)]
    batch_size: Annotated[Whole, Field(ge=1)]
    num_tables: Between
    rows: Annotated[tuple[Annotated[Whole, Field(ge=1, le=2**40)], ...], Field(min_length=1)]
    dims: Annotated[tuple[Width, ...], Field(min_length=1)]
    lengths: Annotated[tuple[Annotated[float, Field(gt=0, le=1e6)], ...], Field(min_length=1)]
    fullness: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)]
    groups: Annotated[tuple[SequenceGroup, ...], Field(min_length=1)]
    shift: Annotated[float, Field(ge=-0.5, le=1e12)] = 0.0
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"


@dataclass(frozen=True, config=CONFIG)
class DriftTasks(Record):
    """Drawn tasks whose statistics change from step to step; each step is a task, those of one drift in a row."""

    kind: Literal["drift"]
    seed: Annotated[Whole, Field(ge=0)]
    drawn: DrawnTasks
    steps: Annotated[Whole, Field(ge=1, le=1000)]
    pooling_change: Annotated[float, Field(ge=0, le=10)]
    skew_change: Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=CONFIG)
class PoolToMix(Record):
    """A pool that tables are taken from."""

    pool: Name
    dims: tuple[Width, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class MixedGroup(Group):
    """Tasks of mixed pools that are drawn alike."""

    draws: Draws = ()

    @model_validator(mode="after")
    def _enough(self) -> MixedGroup:
        _check_draws(self.draws, self.count)
        return self


@dataclass(frozen=True, config=CONFIG)
class MixedTasks(Record):
    """Tasks with tables of several pools, of which each task has shares of its own."""

    kind: Literal["mixed"]
    seed: Annotated[Whole, Field(ge=0)]
    pools: Annotated[tuple[PoolToMix, ...], Field(min_length=1)]
    samples_per_device: Count
    num_tables: Between
    total_bytes: Between
    groups: Annotated[tuple[MixedGroup, ...], Field(min_length=1)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"
    group_sync_interval: Count | None = None


@dataclass(frozen=True, config=CONFIG)
class ModelOnDevices(Record):
    """A published model and what it is placed on."""

    model: Name
    topology: Name
    num_devices: Count


@dataclass(frozen=True, config=CONFIG)
class PublishedTasks(Record):
    """One task per published model, with the batch size, precision and optimiser that it was published with."""

    kind: Literal["published"]
    models: Annotated[tuple[ModelOnDevices, ...], Field(min_length=1)]


@dataclass(frozen=True, config=CONFIG)
class ListedTasks(Record):
    """Tasks that are written down."""

    kind: Literal["listed"]
    tasks: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=1)]


@dataclass(frozen=True, config=CONFIG)
class SuiteSpec(Record):
    """A suite file."""

    description: str
    judge: CostField
    oracle: CostField
    tasks: Annotated[
        DrawnTasks | SequenceTasks | MixedTasks | DriftTasks | PublishedTasks | ListedTasks,
        Field(discriminator="kind"),
    ]
    solvers: tuple[Name, ...] = ()
    schema: Literal["shardgym.suite/1"] = "shardgym.suite/1"

    def tracks(self) -> tuple[Track, ...]:
        """Return the tracks of the suite, the default one first; with the simulator as oracle, also `SIMULATED`."""
        default = Track(self.judge, self.oracle)
        return (default, SIMULATED) if self.oracle.cost == SIMULATED.oracle.cost else (default,)


def read_suite_file(path: Path) -> Any:
    """Parse a suite file by its ending, JSON or YAML; raises `InputError` when it cannot be read or is neither."""
    text = read_text(path)
    if path.suffix == ".json":
        return parse_json(text, str(path))
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML ({one_line(error, with_type=False)})") from None
