"""PlanCost and CostModel: what a plan costs, and the interface of everything that can say so; `make_cost` makes one."""

from __future__ import annotations

import abc
import inspect
import math
import numbers
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)
from pydantic.dataclasses import dataclass

from shardgym.arguments import check_instance, check_list_of
from shardgym.arrays import Floats
from shardgym.errors import InfeasiblePlanError, InputError, printable_line
from shardgym.plan import ShardingPlan
from shardgym.records import Label, Note, OneLine, Record, short_repr
from shardgym.registry import construct, find_class, registered
from shardgym.task import ShardingTask

if TYPE_CHECKING:
    from shardgym.costs.additive import AdditiveCosts

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
        raise ValueError("times must be numbers that are not negative")
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
        raise ValueError(f"times must be numbers of ordinary size, got {short_repr(value)}") from None


def _as_lists(matrix: Floats) -> list[list[float | None]]:
    return [[float(x) if math.isfinite(x) else None for x in row] for row in matrix]


Matrix = Annotated[Floats, BeforeValidator(_as_matrix), PlainSerializer(_as_lists)]

CONFIG = ConfigDict(extra="forbid", arbitrary_types_allowed=True, allow_inf_nan=False)


@dataclass(frozen=True, eq=False, config=CONFIG)
class PlanCost(Record):
    """The cost of one plan on one task, in milliseconds per training step.

    Attributes:
        per_device: read-only array, shape (D, 5): exchange of ids (0 where a cost has none), forward compute, forward
            communication, backward communication, backward compute of every device. All infinite when the plan is
            infeasible or could not be measured.
        cost: name of the cost model.
        version: version of the cost model.
        hardware: tag of the hardware that the times are of.
        compute: how the compute columns came about.
        communication: how the communication columns came about.
        reason: why there are no times; None for a feasible plan.
        noise: relative standard error of `total_ms`; 0 for a deterministic cost.
        repeats: measurements behind each time.
        session: identifies times that were measured interleaved and may be compared without drift; "" if it does
            not matter.
        notes: what a reader must know besides, e.g. that devices shared cores.
        ids_hidden: whether ids travel while the step before computes, so that they are no part of `device_ms`.
    """

    per_device: Matrix
    cost: Label
    version: Label
    hardware: Label
    compute: Source = "modelled"
    communication: Source = "modelled"
    reason: OneLine | None = None
    noise: Annotated[float, Field(ge=0)] = 0.0
    repeats: Annotated[int, Field(ge=0)] = 1
    session: OneLine = ""
    notes: Annotated[tuple[Note, ...], Field(max_length=100)] = ()
    ids_hidden: bool = False
    schema: Literal["shardgym.plan_cost/1"] = "shardgym.plan_cost/1"

    @model_validator(mode="after")
    def _reason_iff_infinite(self) -> PlanCost:
        finite = bool(np.isfinite(self.per_device).all())
        if finite == (self.reason is not None):
            raise ValueError("a cost has finite times or a reason why not, and not both")
        return self

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


def infinite(num_devices: int) -> Floats:
    """Return the `per_device` of a plan that has no times."""
    return np.full((num_devices, len(PHASES)), math.inf)


#: Entry-point group of cost models.
GROUP = "shardgym.costs"

#: End of the error message where `plans` is not a list of plans.
ONE_PLAN = "a single plan goes into a list, [plan]; ShardingPlan.load(path) reads one"


class CostModel(abc.ABC):
    """Scores plans.

    To write a cost model of your own, subclass this, set the four attributes and implement `score`. Then give
    its `module:Class` wherever a cost is named. `evaluate` checks arguments, sorts out infeasible plans and calls
    `score` with the rest, so `score` needs no checks of its own.

    Attributes:
        name: as registered, or any short name.
        version: changes whenever the same plan may get another cost.
        deterministic: whether the same plan always gets the same cost.
        hardware: tag of the hardware that the times are of; a class attribute will do where it is always the same.
        limits: of a cost that measures: the largest numbers that somebody else's records may give its settings, by
            name. `verify` obeys no larger ones by itself.
    """

    how_to_get: ClassVar[str] = "make_cost(name) makes one"
    limits: ClassVar[Mapping[str, float]] = {}

    name: ClassVar[str]
    version: ClassVar[str]
    deterministic: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        """See to it that a subclass which scores in its own way is additive only when it says so."""
        super().__init_subclass__(**options)
        if "score" in vars(cls) and "additive" not in vars(cls):
            cls.additive = CostModel.additive  # type: ignore[method-assign]

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Tag of the hardware that the times are of; times of different tags are never compared."""

    @abc.abstractmethod
    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Return the costs of feasible plans. Called by `evaluate`; this is what a subclass implements.

        Args:
            task: the task.
            plans: at least one plan for it. All of them are known to be feasible.

        Returns:
            One cost per plan, in the same order. A plan that cannot be scored gets `no_cost(task, reason)`.
        """

    def evaluate(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Score plans of one task together; measured costs interleave them.

        Args:
            task: the task.
            plans: any number of plans for it.

        Returns:
            One cost per plan, in order. An infeasible plan costs infinity and says why.

        Raises:
            InputError: a plan was made for another task, or these are no task and plans; or `score` did not return
                one `PlanCost` for each plan.
        """
        check_instance("task", task, ShardingTask)
        plans = check_list_of("plans", plans, ShardingPlan, ONE_PLAN)
        reasons: dict[int, str] = {}
        for n, plan in enumerate(plans):
            try:
                plan.validate(task)
            except InfeasiblePlanError as error:
                reasons[n] = str(error)
        feasible = [plan for n, plan in enumerate(plans) if n not in reasons]
        scored = self.score(task, feasible) if feasible else []
        scored = check_list_of(f"what score() of cost '{self.name}' returned", scored, PlanCost)
        if len(scored) != len(feasible):
            raise InputError(f"score() of cost '{self.name}' returned {len(scored)} costs for {len(feasible)} plans")
        costs = iter(scored)
        return [self.no_cost(task, reasons[n]) if n in reasons else next(costs) for n in range(len(plans))]

    def additive(self) -> AdditiveCosts | None:
        """Return what prices devices from sums over their shards, for searches and environments.

        It knows no task yet, so ask for another one to forget them. None when this cost scores whole plans only, as
        every judge does that no solver may query.
        """
        return None

    @property
    def scores_only(self) -> bool:
        """Whether this is for scoring plans alone: the harness gives it to no solver."""
        return False

    @property
    def learned(self) -> bool:
        """Whether this was trained, so that a search which queried it profits from its errors."""
        return False

    def no_cost(self, task: ShardingTask, reason: str) -> PlanCost:
        """Return the infinite cost of a plan that cannot be scored."""
        compute, communication = self._sources(task)
        return PlanCost(
            infinite(task.num_devices),
            self.name,
            self.version,
            self.hardware,
            compute,
            communication,
            reason=printable_line(reason),
        )

    def _sources(self, task: ShardingTask) -> tuple[Source, Source]:  # noqa: ARG002
        """Return how compute and communication of a task's plans come about, or would have."""
        return "modelled", "modelled"

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again, JSON-ready."""
        return {}

    def close(self) -> None:  # noqa: B027
        """Release what the model holds (processes, memory); it may be used again afterwards."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def cost_names() -> list[str]:
    """Names of the registered cost models."""
    return list(registered(GROUP))


def make_cost(name: str, **settings: Any) -> CostModel:
    """Make a cost model.

    Args:
        name: a registered name such as "fbgemm" or "roofline", or `module:Class`.
        **settings: passed to the model, e.g. `device="cpu"`.

    Raises:
        UnknownNameError: no such model; the closest names are given.
        InputError: the model does not take these settings, or it is no complete `CostModel`.
        MissingDependencyError: the model needs an extra that is not installed.
    """
    cls = find_class("cost", GROUP, name)
    remedy = "subclass shardgym.CostModel, set name, version, deterministic and hardware, and implement score"
    if inspect.isabstract(cls):
        raise InputError(f"cost '{name}' lacks {', '.join(sorted(cls.__abstractmethods__))}: {remedy}")
    model = construct("cost", name, cls, settings)
    if not isinstance(model, CostModel):
        raise InputError(f"cost '{name}' is no CostModel: {remedy}")
    lacking = [attribute for attribute in ("name", "version", "deterministic") if not hasattr(model, attribute)]
    if lacking:
        raise InputError(f"cost '{name}' lacks {', '.join(lacking)}: {remedy}")
    return model
