"""Space: what wide collections draw from, one axis apart from the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError, UnknownNameError
from shardgym.records import CONFIG, Number, Record, Whole
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, Optimizer, Precision
from shardgym.topology import GIB

#: How the ids of a table are distributed: "uniform"; "zipf" with an exponent of its own; "recorded" with the law of a
#: table of `synthetic-2021`, which was fitted to recorded ids, and bags of random sizes.
IdsKind = Literal["uniform", "zipf", "recorded"]
IDS_KINDS: tuple[IdsKind, ...] = get_args(IdsKind)

WholeRange = tuple[Annotated[Whole, Field(ge=1)], Annotated[Whole, Field(ge=1)]]
NumberRange = tuple[Annotated[Number, Field(gt=0)], Annotated[Number, Field(gt=0)]]


@dataclass(frozen=True, config=CONFIG)
class Space(Record):
    """From where to where samples go. Both ends are included, and numbers are log-uniform between them.

    Attributes:
        batch: samples per batch over all devices, powers of two.
        precision: of weights and of pooled values.
        optimizer: fused into the backward pass.
        width: columns of a table, multiples of 4.
        pooling: mean ids per sample of a table.
        rows: of a table.
        ids: distributions of ids, drawn apart from rows and pooling.
        shards: on a device.
        offset_ms: latest start of an exchange.
        memory_bytes: that a shard set may take, optimiser state included.
    """

    batch: WholeRange = (256, 65_536)
    precision: Annotated[tuple[Precision, ...], Field(min_length=1)] = ("fp32", "fp16")
    optimizer: Annotated[tuple[Optimizer, ...], Field(min_length=1)] = get_args(Optimizer)
    width: WholeRange = (4, 512)
    pooling: NumberRange = (0.05, 500.0)
    rows: WholeRange = (1, 100_000_000)
    ids: Annotated[tuple[IdsKind, ...], Field(min_length=1)] = IDS_KINDS
    shards: WholeRange = (1, 250)
    offset_ms: Annotated[Number, Field(ge=0, le=1e4)] = 200.0
    memory_bytes: Annotated[Whole, Field(ge=2**20)] = 3 * GIB
    schema: Literal["shardgym.space/1"] = "shardgym.space/1"

    @model_validator(mode="after")
    def _ranges_rise(self) -> Space:
        for name in ("batch", "width", "pooling", "rows", "shards"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected the smaller end first, got {low}:{high}")
        if self.width[0] % 4 or self.width[1] % 4:
            raise ValueError(f"width: expected multiples of 4, got {self.width[0]}:{self.width[1]}")
        if any(end & (end - 1) for end in self.batch):
            raise ValueError(f"batch: expected powers of two, got {self.batch[0]}:{self.batch[1]}")
        return self

    @classmethod
    def of_options(cls, options: Mapping[str, str | float | None]) -> Space:
        """Return the default space with some axes changed.

        Args:
            options: text by axis: "LOW:HIGH" or one number for ranges, names with commas between them for choices, a
                number for `offset_ms` and `memory_gib`. None keeps the default.

        Raises:
            InputError: an axis is no range or choice, or is out of bounds.
        """
        changes: dict[str, Any] = {}
        for axis, text in options.items():
            if text is None:
                continue
            if axis == "memory_gib":
                changes["memory_bytes"] = int(float(text) * GIB)
            elif axis == "offset_ms":
                changes[axis] = float(text)
            elif axis in _CHOICES:
                changes[axis] = tuple(str(text).split(","))
                for name in changes[axis]:
                    if name not in _CHOICES[axis]:
                        raise UnknownNameError(axis, name, _CHOICES[axis])
            else:
                changes[axis] = _range(axis, str(text))
        return cls.from_dict(dataclasses.asdict(cls()) | changes, "options of the space")


_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": tuple(ELEMENT_BYTES), "optimizer": tuple(OPTIMIZER_STATE), "ids": IDS_KINDS,
}  # fmt: skip


def _range(axis: str, text: str) -> tuple[float, float]:
    """Parse "LOW:HIGH", or one number for both; numbers may be written as 1e8."""
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high or low)
    except ValueError:
        raise InputError(f"{axis}={text}: expected LOW:HIGH, such as 256:65536") from None
    if axis == "pooling":
        return ends
    if not all(end.is_integer() for end in ends):
        raise InputError(f"{axis}={text}: expected whole numbers")
    return int(ends[0]), int(ends[1])
