"""CostModel: the interface of everything that can say what a plan costs; `make_cost` makes one."""

import abc
import inspect
from collections.abc import Sequence
from types import TracebackType
from typing import Any, ClassVar, Self

from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.mixed_tables import check_all_ids, check_pooled
from shardgym.costs.plan_cost import PlanCost, Source, infinite, plan_costs
from shardgym.costs.shard_keys import PlanBatch
from shardgym.errors import InfeasiblePlanError, InputError, check_instance, printable_line
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import format_devices
from shardgym.registry import construct, find_class, registered
from shardgym.tasks.task import ShardingTask

#: Entry-point group of cost models.
GROUP = "shardgym.costs"

#: Tasks whose shards a `SummedCost` keeps; solvers and environments return to the same few.
_TASKS_KEPT = 256
#: Holders that costs without `row_tiers` price.
_PRICED = "all rows of a table on one device each, on all devices, or on the same place in every group"


class CostModel(abc.ABC):
    """Scores plans.

    To write a cost model of your own, subclass this, set the four attributes and implement `score`. Then give
    its `module:Class` wherever a cost is named. `evaluate` checks arguments, sorts out infeasible plans and calls
    `score` with the rest, so `score` needs no checks of its own.

    Attributes:
        name: registered name, or any short name.
        version: changes whenever the same plan may get another cost.
        deterministic: whether the same plan always gets the same cost.
        hardware: tag of the hardware of the times; a class attribute is enough if it is always the same.
        learned: whether the model was trained, so that a search exploits its errors.
        replicas: whether it prices plans in which several devices hold a shard. If not, such plans cost infinity, with
            that reason.
        unpooled: whether it prices unpooled tables and ids without repeats. If not, it refuses such tasks.
        host_memory: whether it prices plans with rows in the memory of hosts, as with `replicas`.
        row_tiers: whether it prices plans in which rows of a table have different numbers of holders, kind "tiers".
    """

    learned: ClassVar[bool] = False
    replicas: ClassVar[bool] = False
    unpooled: ClassVar[bool] = False
    host_memory: ClassVar[bool] = False
    row_tiers: ClassVar[bool] = False

    name: ClassVar[str]
    version: ClassVar[str]
    deterministic: ClassVar[bool]

    def __init_subclass__(cls, **options: Any) -> None:
        """Make a subclass with its own `score` additive only if it defines `additive`."""
        super().__init_subclass__(**options)
        if "score" in vars(cls) and "additive" not in vars(cls):
            cls.additive = CostModel.additive  # type: ignore[method-assign]

    @property
    @abc.abstractmethod
    def hardware(self) -> str:
        """Tag of the hardware that the times are of; times of different tags are never compared."""

    @property
    def max_devices(self) -> int | None:
        """The most devices that a task may have; None where there is no such limit.

        Solvers that price shards one by one, each on a device of a made-up task, keep to it as well.
        """
        return None

    @abc.abstractmethod
    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Return the costs of feasible plans. Called by `evaluate`; this is what a subclass implements.

        There is at least one plan. A plan that cannot be scored gets `no_cost(task, reason)`; costs are in the order of
        plans.
        """

    def evaluate(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """Score plans of one task together; measured costs interleave them.

        Costs are in the order of plans. An infeasible plan costs infinity and says why.

        Raises:
            InputError: a plan was made for another task, or arguments have other types; the task has unpooled tables,
                which the cost does not price; or `score` did not return as many costs as plans.
        """
        check_instance("task", task, ShardingTask)
        if not self.unpooled:
            check_pooled(task, f"cost '{self.name}'")
            check_all_ids(task, f"cost '{self.name}'")
        reasons: dict[int, str] = {}
        for n, plan in enumerate(plans):
            try:
                plan.validate(task)
            except InfeasiblePlanError as error:
                reasons[n] = str(error)
            else:
                if reason := self._why_not(task, plan):
                    reasons[n] = reason
        feasible = [plan for n, plan in enumerate(plans) if n not in reasons]
        scored = self.score(task, feasible) if feasible else []
        if len(scored) != len(feasible):
            raise InputError(f"score() of cost '{self.name}' returned {len(scored)} costs for {len(feasible)} plans")
        costs = iter(scored)
        return [self.no_cost(task, reasons[n]) if n in reasons else next(costs) for n in range(len(plans))]

    def additive(self) -> AdditiveCosts | None:
        """Return what prices devices from sums over their shards, for searches and environments.

        It holds no tasks yet, so call again to drop those it has kept. None when this cost scores whole plans only, as
        judges do that solvers may not query.
        """
        return None

    def plan_costs(self, costs: AdditiveCosts, batch: PlanBatch) -> list[PlanCost]:
        """Return the costs of feasible plans of any tasks in one call, as environments and `score` need them.

        Args:
            costs: what `additive()` of this cost returned.
            batch: plans that it has encoded.
        """
        tasks = costs.tasks_of(batch).tolist()
        notes = {number: self.notes(costs.task(number)) for number in set(tasks)}
        per_device = costs.batch_ms(batch)
        # Without ids, totals leave nothing out.
        ids_hidden = costs.are_ids_hidden(costs.tasks_of(batch)) & per_device[..., 0].any(axis=1)
        return plan_costs(
            per_device, [notes[number] for number in tasks], ids_hidden,
            cost=self.name, version=self.version, hardware=self.hardware,
        )  # fmt: skip

    def notes(self, task: ShardingTask) -> tuple[str, ...]:  # noqa: ARG002
        """Return caveats on the costs of a task's plans, see `PlanCost.notes`."""
        return ()

    @property
    def scores_only(self) -> bool:
        """Whether this only scores plans: a run never gives it to a solver."""
        return False

    def _why_not(self, task: ShardingTask, plan: ShardingPlan) -> str:
        """Return why a feasible plan has no price, e.g. for its replicas; "" if it has one."""
        if plan.leaves_devices and not self.host_memory:
            shard = next(shard for shard in plan.shards if shard.memory != "device")
            return (
                f"cost '{self.name}' does not price host memory, but table '{shard.table}' has kernel "
                f"{shard.compute_kernel} on {format_devices(shard.devices)}: use 'gpu' or 'roofline'"
            )
        if not plan.has_replicas:
            return ""
        copied = {shard.table: shard for shard in reversed(plan.shards) if len(shard.devices) > 1}
        for table, shard in copied.items():
            if not self.row_tiers and plan.kind_of(table, task) == "tiers":
                rows = "some of its rows are" if shard.num_rows < task.table(table).num_embeddings else "its rows are"
                size = task.num_devices // len(shard.devices)
                in_groups = f", as in a plan with group_size={size}" if size > 1 else ""
                return (
                    f"table '{table}' is in tiers, which only 'replay' prices: {rows} held by "
                    f"{format_devices(shard.devices)}, expected {_PRICED}{in_groups}"
                )
        if not self.replicas:
            shard = next(shard for shard in plan.shards if len(shard.devices) > 1)
            holders = f"table '{shard.table}' is held by {format_devices(shard.devices)}"
            return f"cost '{self.name}' prices no replicas, but {holders}: use 'roofline', 'gpu' or 'fbgemm' on CPUs"
        domain = task.topology.fast_domain_size
        sizes = {plan.group_size or task.num_devices}
        sizes |= {task.num_devices // len(shard.devices) for shard in plan.shards if len(shard.devices) > 1}
        for size in sorted(sizes):
            if size % min(domain, size) or domain % min(domain, size):
                return f"groups of {size} devices neither divide fast domains of {domain} nor are multiples of them"
        return ""

    def no_cost(self, task: ShardingTask, reason: str) -> PlanCost:
        """Return the infinite cost of a plan that cannot be scored."""
        compute, communication = self._sources(task)
        times = infinite(task.num_devices)
        reason = printable_line(reason)
        return PlanCost(times, self.name, self.version, self.hardware, compute, communication, reason=reason)

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


class SummedCost(CostModel):
    """A cost that prices plans with `make_prices`, from sums over their shards; call `__init__` at the end."""

    def __init__(self) -> None:
        self._prices = self.make_prices()

    @abc.abstractmethod
    def make_prices(self) -> AdditiveCosts:
        """Return prices that know no task yet."""

    def additive(self) -> AdditiveCosts:
        """See `CostModel`."""
        return self.make_prices()

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`."""
        if self._prices.num_tasks > _TASKS_KEPT:
            self._prices = self.make_prices()
        return self.plan_costs(self._prices, self._prices.batch(task, plans))


def cost_names() -> list[str]:
    """Names of the registered cost models."""
    return list(registered(GROUP))


def registered_class(name: str) -> type[CostModel] | None:
    """Return the class of a registered cost model; None for other names, whose modules are not imported."""
    return find_class("cost", GROUP, name) if name in registered(GROUP) else None


def is_repeatable(name: str) -> bool:
    """Say whether a cost of this name is registered, and gives a plan the same cost anywhere and at any time."""
    cls = registered_class(name)
    return cls is not None and cls.deterministic


def additive_costs(cost: CostModel, solver: str) -> AdditiveCosts:
    """Return `cost.additive()`; raises `InputError`, which names the solver that needs it, where there is none."""
    costs = cost.additive()
    if costs is None:
        raise InputError(
            f"{solver} needs an additive cost, and '{cost.name}' is not additive: plan with 'simulator', 'roofline' or "
            f"'gpu', then score the plan with '{cost.name}'"
        )
    return costs


def make_cost(name: str, **settings: Any) -> CostModel:
    """Make a cost model.

    Args:
        name: a registered name such as "fbgemm" or "roofline", or `module:Class`.
        **settings: passed to the model, e.g. `device="cpu"`.

    Raises:
        UnknownNameError: no such model; the message offers the closest names.
        InputError: the model does not take these settings, or is not a complete `CostModel`.
        MissingDependencyError: the model needs an extra that is not installed.
    """
    cls = find_class("cost", GROUP, name)
    remedy = "subclass shardgym.CostModel, set name, version, deterministic and hardware, and implement score"
    if inspect.isabstract(cls):
        raise InputError(f"cost '{name}' lacks {', '.join(sorted(cls.__abstractmethods__))}: {remedy}")
    model = construct("cost", name, cls, settings)
    if not isinstance(model, CostModel):
        raise InputError(f"cost '{name}' is not a CostModel: {remedy}")
    lacking = [attribute for attribute in ("name", "version", "deterministic") if not hasattr(model, attribute)]
    if lacking:
        raise InputError(f"cost '{name}' lacks {', '.join(lacking)}: {remedy}")
    return model
