"""PlanCost: what one plan costs on one task, by device and phase."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, model_validator
from pydantic.dataclasses import dataclass

from shardgym.arrays import Bools, Floats
from shardgym.errors import short_repr
from shardgym.records import Label, Record

#: Columns of `PlanCost.per_device`, in order.
PHASES = ("ids", "forward_compute", "forward_comm", "backward_comm", "backward_compute")

#: Which of them are compute.
COMPUTE_COLUMNS = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]

#: How a figure came about.
Source = Literal["measured", "modelled", "predicted"]

#: Start of the notes which say that a plan is outside of the simulator's training data.
UNFAMILIAR = "outside of what the simulator was trained on"

_EXPECTED = f"expected one row of {len(PHASES)} numbers per device"


def _as_matrix(value: Any) -> Floats:
    """Take D x 5 numbers; None stands for infinity, as JSON has none."""
    is_numeric = isinstance(value, np.ndarray) and value.dtype.kind in "fiu"  # arrays are fast: not number by number
    rows = value if is_numeric else [[_number(x) for x in _list(row, len(PHASES))] for row in _list(value)]
    matrix: Floats = np.array(rows, dtype=np.float64) + 0.0  # turns -0 into 0: equal costs have equal digests
    if matrix.ndim != 2 or matrix.shape[0] == 0 or matrix.shape[1] != len(PHASES):
        raise ValueError(_EXPECTED)
    if np.isnan(matrix).any() or (matrix < 0).any():
        raise ValueError("times must be non-negative numbers")
    matrix.setflags(write=False)
    return matrix


def _list(value: Any, length: int | None = None) -> list[Any]:
    is_list = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim)
    if is_list and length in (None, len(value)):
        return list(value)
    raise ValueError(f"{_EXPECTED}, got {short_repr(value)}")


def _number(value: Any) -> float:
    if value is None:
        return math.inf
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"times must be numbers, got {short_repr(value)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"times must be numbers that fit a float, got {short_repr(value)}") from None


def _as_lists(matrix: Floats) -> list[list[float | None]]:
    return [[float(x) if math.isfinite(x) else None for x in row] for row in matrix]


Matrix = Annotated[Floats, BeforeValidator(_as_matrix), PlainSerializer(_as_lists)]

CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


@dataclass(frozen=True, eq=False, config=CONFIG)
class PlanCost(Record):
    """The cost of one plan on one task, in milliseconds per training step."""

    #: Read-only array, shape (D, 5): exchange of ids (0 where a cost has none), forward compute, forward communication,
    #: backward communication, backward compute of every device. All infinite when the plan is infeasible or could not
    #: be measured.
    per_device: Matrix
    cost: Label
    version: Label
    hardware: Label  #: tag of the hardware that the times are of
    compute: Source = "modelled"
    communication: Source = "modelled"
    reason: str | None = None  #: why there are no times; None for a feasible plan
    #: Time of fixed work while times were measured, over its time at pace 1. All times are proportional to it.
    #: Predictions are of pace 1.
    pace: Annotated[float, Field(gt=0)] = 1.0
    noise: Annotated[float, Field(ge=0)] = 0.0  #: relative standard error of `total_ms`; 0 for a deterministic cost
    repeats: Annotated[int, Field(ge=0)] = 1  #: measurements behind each time
    #: Identifies times that were measured interleaved, and can be compared without drift; "" if it does not matter.
    session: str = ""
    #: What a reader must know, e.g. that devices shared cores.
    notes: Annotated[tuple[str, ...], Field(max_length=100)] = ()
    #: Whether ids travel while the previous step computes, so that `device_ms` does not count them; false without ids.
    ids_hidden: bool = False
    schema: Literal["shardgym.plan_cost/1"] = "shardgym.plan_cost/1"

    @model_validator(mode="after")
    def _reason_iff_infinite(self) -> PlanCost:
        finite = bool(np.isfinite(self.per_device).all())
        if finite == (self.reason is not None):
            raise ValueError("expected finite times or a reason, but not both")
        return self

    def at_pace(self, pace: float) -> PlanCost:
        """Return what the plan costs on a machine of another pace: a measured cost at the pace of predictions, 1, or a
        predicted one at the pace of a measured run.
        """
        return dataclasses.replace(self, per_device=self.per_device * (pace / self.pace), pace=pace)

    @property
    def feasible(self) -> bool:
        """Whether the plan can be executed and has times."""
        return self.reason is None

    @property
    def device_ms(self) -> Floats:
        """Time of every device: the sum of its phases, without the exchange of ids where that is hidden, shape (D,)."""
        sums: Floats = self.per_device[:, int(self.ids_hidden) :].sum(axis=1)
        return sums

    @property
    def total_ms(self) -> float:
        """The slowest device's time, the objective of the papers; infinite for an infeasible plan."""
        return float(self.device_ms.max())

    @property
    def compute_ms(self) -> Floats:
        """Forward plus backward compute of every device, shape (D,)."""
        sums: Floats = self.per_device[:, COMPUTE_COLUMNS].sum(axis=1)
        return sums

    @property
    def phases(self) -> dict[str, Floats]:
        """Times of every phase of `PHASES` by device, each of shape (D,)."""
        return dict(zip(PHASES, self.per_device.T, strict=True))

    @property
    def slowest_device(self) -> int:
        """The device that sets `total_ms`."""
        return int(self.device_ms.argmax())

    @property
    def origin(self) -> str:
        """How the times came about in words: "modelled", or "compute measured, communication modelled"."""
        if self.compute == self.communication:
            return self.compute
        return f"compute {self.compute}, communication {self.communication}"

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, PlanCost) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)


def plan_costs(per_device: Floats, notes: Sequence[tuple[str, ...]], ids_hidden: Bools, **same: Any) -> list[PlanCost]:
    """Return the costs of P plans that differ only in times, notes and whether ids are hidden.

    Args:
        per_device: shape (P, D, 5); becomes read-only.
        notes: notes of each plan.
        ids_hidden: whether the ids of each plan are hidden, shape (P,).
        **same: fields that they share.
    """
    if not len(per_device):
        return []
    per_device.setflags(write=False)  # before there are views of it
    own = [
        {"per_device": ms, "notes": note, "ids_hidden": hidden}
        for ms, note, hidden in zip(per_device, notes, ids_hidden.tolist(), strict=True)
    ]
    first = PlanCost(**own[0], **same)
    if not (np.isfinite(per_device) & (per_device >= 0)).all():
        return [first, *(dataclasses.replace(first, **fields) for fields in own[1:])]
    # Checking the fields of a record takes longer than pricing a plan. The others differ from the first in times, which
    # were checked together, and in what callers make.
    return [first, *(PlanCost.unchecked(**(first.__dict__ | fields)) for fields in own[1:])]


def infinite(num_devices: int) -> Floats:
    """Return the `per_device` of a plan that has no times."""
    return np.full((num_devices, len(PHASES)), math.inf)
