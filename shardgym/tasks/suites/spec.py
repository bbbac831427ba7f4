"""The format of suite files: the records that a YAML or JSON file is parsed into, `SuiteSpec` as a whole."""

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
Width = Annotated[Whole, Field(ge=4, le=2**16, multiple_of=4)]  # of others no plan is feasible
Draws = tuple[Annotated[Whole, Field(ge=0)], ...]


def _in_order(pair: tuple[int, int]) -> tuple[int, int]:
    if pair[0] > pair[1]:
        raise ValueError(f"expected smallest and largest, got {list(pair)}")
    return pair


#: The smallest and the largest number that there may be.
Between = Annotated[tuple[Positive, Positive], AfterValidator(_in_order)]


@dataclass(frozen=True, config=CONFIG)
class CostChoice(Record):
    """A cost model. In a file, the bare name of a cost stands for one without settings.

    Attributes:
        cost: registered name.
        settings: keyword arguments for it.
    """

    cost: Name
    settings: dict[str, Any] = Field(default_factory=dict)


#: A field that takes the bare name of a cost model for one without settings.
CostField = Annotated[CostChoice, BeforeValidator(lambda value: {"cost": value} if isinstance(value, str) else value)]


@dataclass(frozen=True, config=CONFIG)
class Track(Record):
    """One way to score a suite. Boards of different tracks are different boards.

    Attributes:
        judge: scores plans; solvers may not query it.
        oracle: what solvers may query.
    """

    judge: CostField
    oracle: CostField


#: The track that needs no hardware. Its judge is the second simulator, trained on measurements that the
#: first never saw.
SIMULATED = Track(CostChoice("simulator", {"role": "judge"}), CostChoice("simulator"))


def _check_draws(draws: Draws, count: int) -> None:
    if draws and (len(draws) != count or len(set(draws)) != count):
        raise ValueError(f"draws: expected {count} distinct numbers, one per task")


@dataclass(frozen=True, config=CONFIG)
class Group(Record):
    """Tasks that are drawn alike.

    Attributes:
        name: name of the group.
        count: tasks in the group.
        topology: name of a preset.
        num_devices: devices of each task.
    """

    name: Name
    count: Count
    topology: Name
    num_devices: Count


@dataclass(frozen=True, config=CONFIG)
class DrawnGroup(Group):
    """Tasks that are drawn alike from a pool.

    Attributes:
        num_tables: smallest and largest number of tables.
        dims: widths; each table draws one.
        max_total_bytes: tables are drawn again until all of them together take no more, optimiser state included.
        memory_bytes: memory per device; give this or `fullness`.
        min_total_bytes: tables are drawn again until they take at least this together.
        max_table_bytes: no table takes more.
        fullness: share of the memory of all devices that the tables take; above 1 with `host_fullness` alone.
        host_fullness: share of the memory of all hosts that the tables take; without it, hosts have none.
        memory_shares: with `fullness`: memory of the devices relative to each other; equal without it.
        row_order: where popular rows of tables with Zipf laws lie; without it, as in the pool.
        row_blocks: for `row_order: blocks`: number of blocks that the rows of each table are cut into.
        draws: numbers of the draws that become the tasks, one for each; without it, the first `count`.
    """

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
            raise ValueError("expected memory_bytes or fullness, but not both")
        if self.fullness is not None and self.fullness > 1 and self.host_fullness is None:
            raise ValueError(f"fullness: expected at most 1 without host_fullness, got {self.fullness}")
        if self.memory_shares and (self.fullness is None or len(self.memory_shares) != self.num_devices):
            raise ValueError("memory_shares: expected one per device, together with fullness")
        if (self.row_order == "blocks") != (self.row_blocks is not None):
            raise ValueError("row_blocks: expected if and only if row_order is 'blocks'")
        _check_draws(self.draws, self.count)
        return self


@dataclass(frozen=True, config=CONFIG)
class DrawnTasks(Record):
    """`kind: drawn`: tasks drawn at random from a pool, groups taking turns.

    Attributes:
        kind: "drawn".
        seed: seed of the draws; the same file always gives the same tasks.
        pool: name or path of a pool.
        batch_size: samples of a step over all devices: those of the pool, divided by `scale`.
        groups: at least one.
        half: the half of the pool that tables are drawn from, or all of it.
        scale: divides the rows of the pool's tables, and its batch.
        precision: precision of weights, outputs and gradients.
        optimizer: optimizer of all tables.
    """

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
    """Tasks of unpooled tables that are drawn alike.

    Attributes:
        skew: exponent of the Zipf law of all tables.
    """

    skew: Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=CONFIG)
class SequenceTasks(Record):
    """`kind: sequences`: tasks of made-up unpooled tables, of which a row travels for every id.

    Each table draws its rows, width and length from the values listed, and each task its fullness.

    Attributes:
        kind: "sequences".
        seed: seed of the draws.
        batch_size: samples of a step over all devices.
        num_tables: smallest and largest number of tables.
        rows: numbers of rows to draw from.
        dims: widths to draw from.
        lengths: mean ids per sample to draw from.
        fullness: shares of the memory of all devices that the tables take, to draw from.
        groups: at least one.
        shift: flattens the head of all laws, see `ZipfIds.q`.
        precision: precision of weights, outputs and gradients.
        optimizer: optimizer of all tables.
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
    """`kind: drift`: drawn tasks whose statistics change from step to step. Each step is a task of the same tables.

    Attributes:
        kind: "drift".
        seed: seed of the changes.
        drawn: the tasks at the first step; their tables lose their reuse histograms.
        steps: tasks that each drawn task becomes, in a row.
        pooling_change: standard deviation of the logarithm by which a pooling factor changes from step to step.
        skew_change: standard deviation by which the exponent of a Zipf law changes from step to step.
    """

    kind: Literal["drift"]
    seed: Annotated[Whole, Field(ge=0)]
    drawn: DrawnTasks
    steps: Annotated[Whole, Field(ge=1, le=1000)]
    pooling_change: Annotated[float, Field(ge=0, le=10)]
    skew_change: Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=CONFIG)
class PoolToMix(Record):
    """A pool that tables are taken from.

    Attributes:
        pool: name or path.
        dims: widths to draw from; without them, tables keep theirs.
    """

    pool: Name
    dims: tuple[Width, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class MixedGroup(Group):
    """Tasks of mixed pools that are drawn alike.

    Attributes:
        draws: numbers of the draws that become the tasks, one for each; without it, the first `count`.
    """

    draws: Draws = ()

    @model_validator(mode="after")
    def _enough(self) -> MixedGroup:
        _check_draws(self.draws, self.count)
        return self


@dataclass(frozen=True, config=CONFIG)
class MixedTasks(Record):
    """`kind: mixed`: tasks with tables of several pools, each task with shares of its own.

    Attributes:
        kind: "mixed".
        seed: seed of the draws.
        pools: at least one.
        samples_per_device: batch size over the number of devices.
        num_tables: smallest and largest number of tables.
        total_bytes: smallest and largest size of all tables together.
        groups: at least one.
        precision: precision of weights, outputs and gradients.
        optimizer: optimizer of all tables.
        group_sync_interval: interval of all tasks, see `ShardingTask`.
    """

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
    """A published model and what it is placed on.

    Attributes:
        model: name, as `shardgym list pools` prints it.
        topology: name of a preset.
        num_devices: devices of the task.
    """

    model: Name
    topology: Name
    num_devices: Count


@dataclass(frozen=True, config=CONFIG)
class PublishedTasks(Record):
    """`kind: published`: a task per model, with the batch size, precision and optimiser it was published with.

    Attributes:
        kind: "published".
        models: at least one.
    """

    kind: Literal["published"]
    models: Annotated[tuple[ModelOnDevices, ...], Field(min_length=1)]


@dataclass(frozen=True, config=CONFIG)
class ListedTasks(Record):
    """`kind: listed`: tasks that are written down.

    Attributes:
        kind: "listed".
        tasks: task records, or paths of task files.
    """

    kind: Literal["listed"]
    tasks: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=1)]


@dataclass(frozen=True, config=CONFIG)
class SuiteSpec(Record):
    """A suite file.

    Attributes:
        description: one sentence.
        judge: scores plans on the default track.
        oracle: what solvers may query on the default track.
        tasks: one of the six kinds.
        solvers: what `shardgym run` takes without `--solver`.
        schema: "shardgym.suite/1", which may be left out.
    """

    description: str
    judge: CostField
    oracle: CostField
    tasks: Annotated[
        DrawnTasks | SequenceTasks | MixedTasks | DriftTasks | PublishedTasks | ListedTasks, Field(discriminator="kind")
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
