"""The format of suite files: the records that a YAML or JSON file is parsed into."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError
from shardgym.files import read_text
from shardgym.records import CONFIG, Name, Record, Whole, parse_json
from shardgym.tables.table import Optimizer, Precision, RowOrder

#: Values that a YAML file may stand for, each alias counted as all that it repeats. The shipped suites have hundreds.
MAX_VALUES = 2_000_000

Count = Annotated[Whole, Field(ge=1, le=100_000)]
Bytes = Annotated[Whole, Field(ge=0, le=2**62)]
Width = Annotated[Whole, Field(ge=1, le=2**16)]


@dataclass(frozen=True, config=CONFIG)
class CostChoice(Record):
    """A cost model by name.

    Attributes:
        cost: a registered name.
        settings: keyword arguments that it is made with.
    """

    cost: Name
    settings: dict[str, Any] = Field(default_factory=dict)


#: A field that takes the bare name of a cost model for one without settings.
CostField = Annotated[CostChoice, BeforeValidator(lambda value: {"cost": value} if isinstance(value, str) else value)]


@dataclass(frozen=True, config=CONFIG)
class Track(Record):
    """One way to score a suite. Boards of different tracks are different boards.

    Attributes:
        judge: scores plans; no solver is given it.
        oracle: what solvers may query.
    """

    judge: CostField
    oracle: CostField


#: The track that needs no hardware. Its judge is the second simulator, which has another architecture and
#: was trained on measurements that the first never saw.
SIMULATED = Track(CostChoice("simulator", {"role": "judge"}), CostChoice("simulator"))


@dataclass(frozen=True, config=CONFIG)
class DrawnGroup(Record):
    """Tasks that are drawn alike.

    Attributes:
        name: of the group, e.g. "max_dim=16".
        count: tasks.
        topology: a preset's name.
        num_devices: devices of each task.
        num_tables: smallest and largest number of tables; drawn once per task.
        dims: widths, drawn for every table.
        max_total_bytes: tables are drawn again until they take at most this together, before rows are rounded up;
        min_total_bytes: at least this,
        max_table_bytes: and none of them more than this.
        memory_bytes: per device.
        fullness: in its place, the share of all memory that the tables take: each task gets as much memory as it needs.
            More than 1 where hosts have memory, too.
        host_fullness: the share of the memory of all hosts that the tables take; hosts have none where it is not given.
        memory_shares: memory of the devices relative to each other; equal where none are given.
        row_order: where popular rows of the tables lie, see `ZipfIds`; as the pool says where none is given.
        row_blocks: into so many blocks the rows of each table are cut, for "blocks" alone.
        draws: numbers of the draws that are the tasks; the first `count` of them where none are given.
    """

    name: Name
    count: Count
    topology: Name
    num_devices: Count
    num_tables: tuple[Count, Count]
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
    draws: tuple[Annotated[Whole, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _ordered(self) -> DrawnGroup:
        if self.num_tables[0] > self.num_tables[1]:
            raise ValueError(f"num_tables: expected smallest and largest, got {list(self.num_tables)}")
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
        if self.draws and (len(self.draws) != self.count or len(set(self.draws)) != self.count):
            raise ValueError(f"draws: expected {self.count} different numbers, one for each task")
        return self


@dataclass(frozen=True, config=CONFIG)
class DrawnTasks(Record):
    """Tasks drawn at random from a pool, groups taking turns.

    Attributes:
        seed: of the draws. Two suites with the same seed, pool, half and groups draw the same tables.
        pool: a pool's name, or the path of a pool file as seen from the suite file.
        half: of the pool, as `TablePool.split` cuts it.
        scale: divides rows and batch of the pool (`TablePool.scaled`).
        batch_size: of the tasks; must be the scaled pool's.
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
class SequenceGroup(Record):
    """Tasks of unpooled tables that are drawn alike.

    Attributes:
        name: of the group, e.g. "s=1.05, 2 nodes".
        count: tasks.
        topology: a preset's name.
        num_devices: devices of each task.
        skew: exponent of the Zipf law of all tables; rows are in order of frequency.
    """

    name: Name
    count: Count
    topology: Name
    num_devices: Count
    skew: Annotated[float, Field(ge=0, le=10)]


@dataclass(frozen=True, config=CONFIG)
class SequenceTasks(Record):
    """Tasks of unpooled tables, of which a row travels for every id, made up and drawn at random.

    Every table of a task, and its memory, takes one of the values that are listed, each as likely.

    Attributes:
        seed: of the draws.
        batch_size: of the tasks.
        num_tables: smallest and largest number of tables; drawn once per task.
        rows: of a table.
        dims: widths.
        lengths: mean ids per sample; each sample draws its own number from a Poisson law.
        fullness: shares of all memory that the tables take.
        shift: of the Zipf laws: larger flattens the head.
        groups: what is drawn alike; groups take turns.
    """

    kind: Literal["sequences"]
    seed: Annotated[Whole, Field(ge=0)]
    batch_size: Annotated[Whole, Field(ge=1)]
    num_tables: tuple[Count, Count]
    rows: Annotated[tuple[Annotated[Whole, Field(ge=1, le=2**40)], ...], Field(min_length=1)]
    dims: Annotated[tuple[Width, ...], Field(min_length=1)]
    lengths: Annotated[tuple[Annotated[float, Field(gt=0, le=1e6)], ...], Field(min_length=1)]
    fullness: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)]
    groups: Annotated[tuple[SequenceGroup, ...], Field(min_length=1)]
    shift: Annotated[float, Field(ge=-0.5, le=1e12)] = 0.0
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"

    @model_validator(mode="after")
    def _ordered(self) -> SequenceTasks:
        if self.num_tables[0] > self.num_tables[1]:
            raise ValueError(f"num_tables: expected smallest and largest, got {list(self.num_tables)}")
        return self


@dataclass(frozen=True, config=CONFIG)
class DriftTasks(Record):
    """Drawn tasks whose statistics change from step to step; each step is a task, those of one drift in a row.

    Attributes:
        seed: of the changes.
        drawn: the tasks of the first steps.
        steps: of each drift, the first one included.
        pooling_change: standard deviation of the logarithm of a table's pooling factor from one step to the next.
        skew_change: standard deviation of the exponent of a Zipf law from one step to the next.
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
        pool: its name.
        dims: widths, of which one is drawn for every table; tables keep the pool's where none are given.
    """

    pool: Name
    dims: tuple[Width, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class MixedGroup(Record):
    """Tasks of mixed pools that are drawn alike.

    Attributes:
        name: of the group, e.g. "128 GPUs".
        count: tasks.
        topology: a preset's name; its memory per device is used.
        num_devices: devices of each task.
        draws: numbers of the draws that are the tasks; the first `count` of them where none are given.
    """

    name: Name
    count: Count
    topology: Name
    num_devices: Count
    draws: tuple[Annotated[Whole, Field(ge=0)], ...] = ()

    @model_validator(mode="after")
    def _enough(self) -> MixedGroup:
        if self.draws and (len(self.draws) != self.count or len(set(self.draws)) != self.count):
            raise ValueError(f"draws: expected {self.count} different numbers, one for each task")
        return self


@dataclass(frozen=True, config=CONFIG)
class MixedTasks(Record):
    """Tasks with tables of several pools, of which each task has shares of its own.

    Attributes:
        seed: of the draws.
        pools: what tables are taken from, each at most once for a task.
        samples_per_device: of a step.
        num_tables: smallest and largest number of tables; drawn once per task.
        total_bytes: least and most that the tables of a task take together, optimiser state included; other draws are
            drawn again.
        groups: what is drawn alike; groups take turns.
        group_sync_interval: see `ShardingTask`.
    """

    kind: Literal["mixed"]
    seed: Annotated[Whole, Field(ge=0)]
    pools: Annotated[tuple[PoolToMix, ...], Field(min_length=1)]
    samples_per_device: Count
    num_tables: tuple[Count, Count]
    total_bytes: tuple[Bytes, Bytes]
    groups: Annotated[tuple[MixedGroup, ...], Field(min_length=1)]
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"
    group_sync_interval: Count | None = None

    @model_validator(mode="after")
    def _ordered(self) -> MixedTasks:
        for name, (least, most) in (("num_tables", self.num_tables), ("total_bytes", self.total_bytes)):
            if least > most:
                raise ValueError(f"{name}: expected smallest and largest, got {[least, most]}")
        return self


@dataclass(frozen=True, config=CONFIG)
class ModelOnDevices(Record):
    """A published model and what it is placed on.

    Attributes:
        model: a name from `shardgym.tables.pools.load.model_names()`.
        topology: a preset's name; its memory per device is used.
        num_devices: devices.
    """

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
    """Tasks that are written down.

    Attributes:
        tasks: task records, or paths of task files as seen from the suite file.
    """

    kind: Literal["listed"]
    tasks: Annotated[tuple[str | dict[str, Any], ...], Field(min_length=1)]


@dataclass(frozen=True, config=CONFIG)
class SuiteSpec(Record):
    """A suite file.

    Attributes:
        description: one sentence.
        judge: the cost model that scores plans, by name or with settings.
        oracle: the cost model that solvers may query, likewise.
        tasks: how the tasks come about.
        solvers: what `shardgym run` runs where no solver is named, each written as for `--solver`; empty for the
            heuristics and NeuroShard's two.
    """

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
    return parse_json(text, str(path)) if path.suffix == ".json" else parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML of plain values.

    A few lines of aliases to lists of aliases stand for billions of values, which every reader of them would have to
    go through. So values are counted before anything is built.

    Raises:
        InputError: not YAML, holds itself, or stands for more than `MAX_VALUES` values.
    """
    try:
        loader = yaml.SafeLoader(text)  # which reads the text for odd characters already
        node = loader.get_single_node()
        if node is None:
            return None
        count = _count_values(node, {})
        if count > MAX_VALUES:
            size = str(count) if count < 10**12 else "10^12 or more"
            raise InputError(f"{source}: stands for {size} values with its aliases, expected at most {MAX_VALUES}")
        return loader.construct_document(node)
    except InputError:
        raise
    except Exception as error:  # e.g. KeyError for '!!bool 7'
        raise InputError(f"{source}: not valid YAML ({' '.join(str(error).split())})") from None


def _count_values(node: yaml.Node, counts: dict[int, int]) -> int:
    """Count a node and all below it; `counts` has those of earlier nodes, 0 for one that is still being counted."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = 0
        parts = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        counts[id(node)] = 1 + sum(_count_values(part, counts) for part in parts)
    elif counts[id(node)] == 0:
        raise ValueError("a value holds itself")
    return counts[id(node)]
