"""Columns of the measured samples, and what a file says about them."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import pydantic.dataclasses
from pydantic import Field

from shardgym.costs.simulator.optional import need
from shardgym.records import CONFIG, Name, Record
from shardgym.table import REUSE_BINS

Kind = Literal["compute", "comm"]

#: Who may learn from a row: the oracle, the judge, or nobody. `test` rows measure errors; `plans` rows are the devices
#: of complete plans and measure how well plans are ranked.
ROLES = ("oracle", "judge", "test", "plans")


class ComputeRow(NamedTuple):
    """One measurement of what one device holds. Lists have one entry per shard.

    Attributes:
        sample_id: unique within a data set.
        role: one of `ROLES`.
        content: digest of everything the time depends on; repeats share it.
        repeat: 0 for the first measurement of a content, 1 for the next, ...
        batch_size: samples of the batch.
        precision: of the weights.
        optimizer: fused into the backward pass.
        num_embeddings: rows of each shard.
        embedding_dim: columns of each shard.
        pooling_factor: mean ids per sample that fall into each shard.
        reuse_histogram: of each shard's table, see `EmbeddingTable`.
        table_name: of each shard's table in its pool.
        forward_ms: forward pass.
        backward_ms: backward pass with the optimiser's update.
        noise: relative standard error of forward plus backward over the rounds of this measurement.
    """

    sample_id: str
    role: str
    content: str
    repeat: int
    batch_size: int
    precision: str
    optimizer: str
    num_embeddings: list[int]
    embedding_dim: list[int]
    pooling_factor: list[float]
    reuse_histogram: list[list[float]]
    table_name: list[str]
    forward_ms: float
    backward_ms: float
    noise: float


class CommRow(NamedTuple):
    """One measurement of an all-to-all in both directions. Lists have one entry per device.

    Attributes:
        sample_id: unique within a data set.
        role: one of `ROLES`.
        content: digest of everything the times depend on; repeats share it.
        repeat: 0 for the first measurement of a content, 1 for the next, ...
        num_devices: devices that take part.
        batch_size: samples over all devices.
        element_bytes: bytes of one value.
        widths: columns of each device's pooled output.
        start_offsets_ms: how much later than the first each device enters the forward exchange.
        forward_ms: from each device's own start to its end, the offset not counted.
        backward_ms: likewise for the gradients, all devices starting together.
        noise: relative standard error of the slowest device's times over the rounds of this measurement.
    """

    sample_id: str
    role: str
    content: str
    repeat: int
    num_devices: int
    batch_size: int
    element_bytes: int
    widths: list[int]
    start_offsets_ms: list[float]
    forward_ms: list[float]
    backward_ms: list[float]
    noise: float


ROWS: dict[Kind, type[ComputeRow] | type[CommRow]] = {"compute": ComputeRow, "comm": CommRow}

#: Columns whose Arrow type does not follow from the annotation.
_NARROW = {"embedding_dim": "int32", "repeat": "int32", "num_devices": "int32", "element_bytes": "int32"}
_SCALARS = {str: "string", int: "int64", float: "float64"}


def arrow_schema(kind: Kind) -> Any:
    """Return the `pyarrow.Schema` of the rows of a kind."""
    pa = need("pyarrow", "reading and writing samples")
    hints = get_type_hints(ROWS[kind])
    return pa.schema([pa.field(name, _arrow_type(pa, name, hint), nullable=False) for name, hint in hints.items()])


def _arrow_type(pa: Any, name: str, hint: Any) -> Any:
    if name == "reuse_histogram":
        return pa.list_(pa.list_(pa.float32(), REUSE_BINS))
    is_list = get_origin(hint) is list
    scalar = getattr(pa, _NARROW.get(name) or _SCALARS[get_args(hint)[0] if is_list else hint])()
    return pa.list_(scalar) if is_list else scalar


@pydantic.dataclasses.dataclass(frozen=True, config=CONFIG)
class DataInfo(Record):
    """What a file of samples says about itself, under the key `shardgym` of its metadata.

    Attributes:
        kind: which rows it holds.
        hardware: tag of the machine that was measured.
        versions: of what can change a time.
        settings: of the collection.
        created: UTC, ISO 8601.
    """

    kind: Kind
    hardware: Name
    versions: dict[str, str]
    settings: dict[str, Any]
    created: Annotated[str, Field(min_length=1)]
    schema: Literal["shardgym.samples/1"] = "shardgym.samples/1"


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Smallest and largest value that a number in a file may have."""

    low: float
    high: float


#: A time of 0 cannot be: even an empty kernel takes longer than the clock's tick.
TIME_MS = Bounds(1e-9, 1e9)
BOUNDS: dict[str, Bounds] = {
    "repeat": Bounds(0, 2**31), "batch_size": Bounds(1, 2**26), "num_embeddings": Bounds(1, 2**40),
    "embedding_dim": Bounds(1, 2**16), "pooling_factor": Bounds(0, 1e6), "reuse_histogram": Bounds(0, 1),
    "forward_ms": TIME_MS, "backward_ms": TIME_MS, "noise": Bounds(0, 1e6), "num_devices": Bounds(2, 65536),
    "element_bytes": Bounds(1, 16), "widths": Bounds(0, 2**40), "start_offsets_ms": Bounds(0, 1e9),
}  # fmt: skip
