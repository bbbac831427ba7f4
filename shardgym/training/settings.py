"""What is collected: sizes per device, steps per sample, samples per role; and the space of wide collections."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InputError, UnknownNameError
from shardgym.records import CONFIG, Number, Record, Whole
from shardgym.tables.table import Optimizer, Precision
from shardgym.tasks.task import ELEMENT_BYTES, OPTIMIZER_STATE
from shardgym.tasks.topology import GIB

#: "compute" samples are the shard sets of one device, "steps" samples are plans of all devices of a task.
Kind = Literal["compute", "steps"]
#: Who may learn from a sample. Nobody learns from "test", "plans" and "transfer": they measure errors.
Role = Literal["oracle", "judge", "test", "plans", "transfer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ROLES: tuple[Role, ...] = get_args(Role)

#: Samples by kind and role; of "steps" tasks, each of which has several plans.
Counts = Mapping[Kind, Mapping[Role, int]]

#: How the ids of a table are distributed: "uniform"; "zipf" with an exponent of its own; "recorded" with the law of a
#: table of `synthetic-2021`, which was fitted to recorded ids, and bags of random sizes.
IdsKind = Literal["uniform", "zipf", "recorded"]
IDS_KINDS: tuple[IdsKind, ...] = get_args(IdsKind)

WholeRange = tuple[Annotated[Whole, Field(ge=1)], Annotated[Whole, Field(ge=1)]]
NumberRange = tuple[Annotated[Number, Field(gt=0)], Annotated[Number, Field(gt=0)]]
_CHOICES: dict[str, tuple[str, ...]] = {
    "precision": tuple(ELEMENT_BYTES), "optimizer": tuple(OPTIMIZER_STATE), "ids": IDS_KINDS,
}  # fmt: skip


#: Axes of a space.
_AXES = ("batch", "width", "pooling", "rows", "shards", *_CHOICES, "memory_bytes")


class Setup(NamedTuple):
    """The problem whose shards are measured.

    Attributes:
        pool: its train half gives tables for the oracle and the judge, its test half those for tests.
        scale: rows and batch of the pool are divided by it.
        memory_bytes: of one device; a shard set may take `OVERFULL` times that.
        precision: of weights and of pooled values.
        optimizer: fused into the backward pass.
    """

    pool: str
    scale: int
    memory_bytes: int
    precision: Precision = "fp32"
    optimizer: Optimizer = "exact_sgd"


#: The sizes of the suites `dlrm4-v1` and `dlrm8-v1` on the CPU, of `dlrm4-gpu-v1` and `dlrm8-gpu-v1` on a GPU.
SETUPS: dict[str, Setup] = {
    "cpu": Setup("synthetic-2021", scale=8, memory_bytes=GIB // 2),
    "cuda": Setup("synthetic-2021", scale=1, memory_bytes=4 * GIB),
}

#: Search compares partial and hypothetical placements, so a shard set may be somewhat larger than a device.
OVERFULL = 1.25


class StepCounts(NamedTuple):
    """Steps per sample.

    Small shard sets get more steps: 12 instead of 4 took the spread between repeats below 1 ms from 12 to 7 %. Large
    ones gain nothing, because they differ from one measurement to the next as a whole.

    Attributes:
        warmups: untimed steps of a shard set.
        iterations: timed steps of a shard set.
        small_iterations: timed steps of small shard sets.
        small_values: a set is small when a step reads fewer weights than this.
        plan_warmups: untimed complete steps of a plan.
        plan_iterations: timed complete steps of a plan.
    """

    warmups: int = 1
    iterations: int = 4
    small_iterations: int = 12
    small_values: int = 250_000
    plan_warmups: int = 1
    plan_iterations: int = 3


STEPS = StepCounts()
#: Of wide collections, whose tables are made for one sample: drawing their ids takes longer than the steps.
SPACE_STEPS = StepCounts(iterations=3, small_iterations=9, small_values=1_000_000)

#: Compute samples of role "plans" are the devices of complete plans: so many per plan, and so many plans of the same
#: tables.
PLAN_DEVICES = 4
PLANS_PER_TASK = 20


#: Samples by preset, without repeats. "oracle" and "judge" are wide collections, which draw from a `Space`: the
#: oracle's has the tests, the judge's is another one, made at another time.
PRESETS: dict[str, Counts] = {
    "survey": {
        "compute": {"oracle": 10_000, "judge": 4_000, "test": 1_500},
        "steps": {"oracle": 250, "judge": 165, "test": 85},
    },
    "quick": {
        "compute": {"oracle": 60, "judge": 24, "test": 12},
        "steps": {"oracle": 3, "judge": 2, "test": 1},
    },
    "oracle": {
        "compute": {"oracle": 8_000, "test": 1_200, "transfer": 400, "plans": 4 * PLANS_PER_TASK * PLAN_DEVICES},
        "steps": {"oracle": 250, "test": 85},
    },
    "judge": {"compute": {"judge": 5_000}, "steps": {"judge": 165}},
}
WIDE_PRESETS = ("oracle", "judge")
#: The survey of a GPU. There are no complete steps on CUDA: kernels are timed apart, those of complete plans too.
_CUDA_SURVEY: Mapping[Role, int] = {"oracle": 13_000, "judge": 5_200, "test": 1_800, "plans": 200 * PLAN_DEVICES}


def preset_counts(preset: str, device: str, compute: int | None, steps: int | None) -> Counts:
    """Return samples by kind and role.

    Args:
        preset: its name.
        device: a key of `SETUPS`.
        compute: compute samples over all roles, in the preset's proportions; the preset's own number when None.
        steps: the same for tasks whose plans are measured in complete steps.

    Raises:
        UnknownNameError: no such preset or device.
        InputError: a number is negative, or steps are wanted of CUDA.
    """
    if device not in SETUPS:
        raise UnknownNameError("device", device, SETUPS)
    if preset not in PRESETS:
        raise UnknownNameError("preset", preset, PRESETS)
    counts = PRESETS[preset]
    if device == "cuda":
        counts = {"compute": _CUDA_SURVEY if preset == "survey" else counts["compute"], "steps": {}}
    totals: dict[Kind, int | None] = {"compute": compute, "steps": steps}
    for kind, total in totals.items():
        if total is not None and total < 0:
            raise InputError(f"{kind}={total}: expected a number of samples, at least 0")
        if total and not counts[kind]:
            raise InputError(f"{kind}={total} on {device}: complete steps are measured on the CPU; use {kind}=0")
    return {kind: apportion(counts[kind], totals[kind]) for kind in KINDS}


def apportion(shares: Mapping[Role, int], total: int | None) -> dict[Role, int]:
    """Divide `total` in the proportions of `shares`, by largest remainders; `shares` themselves when it is None.

    Nothing is divided where there are no shares.
    """
    if total is None or not shares:
        return dict(shares)
    exact = {role: total * share / sum(shares.values()) for role, share in shares.items()}
    counts = {role: int(value) for role, value in exact.items()}
    for role in sorted(exact, key=lambda r: counts[r] - exact[r])[: total - sum(counts.values())]:
        counts[role] += 1
    return counts


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
    def of_options(cls, options: Iterable[str]) -> Space:
        """Return the default space with some axes changed.

        Args:
            options: "AXIS=VALUES", with a field's name and "LOW:HIGH" or one number for ranges, names with commas
                between them for choices, one number for `memory_bytes`.

        Raises:
            InputError: an axis is unknown, is no range or choice, or is out of bounds.
        """
        changes: dict[str, Any] = {}
        for option in options:
            axis, _, text = option.partition("=")
            if axis not in _AXES:
                raise UnknownNameError("axis", axis, _AXES)
            if axis in _CHOICES:
                changes[axis] = tuple(text.split(","))
                for name in changes[axis]:
                    if name not in _CHOICES[axis]:
                        raise UnknownNameError(axis, name, _CHOICES[axis])
            else:
                low, high = _range(axis, text)
                changes[axis] = low if axis == "memory_bytes" else (low, high)
        return cls.from_dict(dataclasses.asdict(cls()) | changes, "axes of the space")


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
