"""ShardGym in place of TorchRec's planner: two lines of a training script change."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlanner
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.arguments import check_instance, check_int
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.comparison import compare
from shardgym.costs.gpu.cards import CARDS
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import NO_PLAN, InputError
from shardgym.evaluation.solver import Solver, call_solver, make_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.bags import Bags
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import Optimizer
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology
from shardgym.torchrec.constraints import NEEDS_PLAN, Wish, apply_constraints, in_words, rules_of
from shardgym.torchrec.first_rank import from_first_rank
from shardgym.torchrec.following import follow
from shardgym.torchrec.host_tables import solve_beside_host_tables
from shardgym.torchrec.model_tables import COLLECTIONS, by_table, model_tables, without_unplanned
from shardgym.torchrec.remarks import device_remarks, memory_remarks, refuse_remarks
from shardgym.torchrec.sharding_plan import DeviceType, to_torchrec
from shardgym.torchrec.tasks import Reserve, import_model, topology_from_torchrec

_logger = logging.getLogger("shardgym.torchrec")

#: What plans are compared with in the log: longest processing time first, the base of boards. It knows no constraints.
_SIMPLE = "lpt"

#: FBGEMM's optimisers that tasks know, by TorchRec's name for them.
_OPTIMIZERS: dict[Any, Optimizer] = {
    EmbOptimType.EXACT_SGD: "exact_sgd",
    EmbOptimType.EXACT_ROWWISE_ADAGRAD: "rowwise_adagrad",
    EmbOptimType.EXACT_ADAGRAD: "adagrad",
    EmbOptimType.ADAM: "adam",
}


@dataclass(frozen=True)
class PlannerSettings:
    """What TorchRec's planner has no argument for.

    Attributes:
        solver: a registered name, `module:Class`, or a solver. A name stands for a solver that gives each table one
            kernel and one cache load factor, as TorchRec does.
        cost: what the solver queries: a name, or a cost model. By default the modelled cost `gpu` where the topology's
            device is a card that it knows, else `roofline`; the log says which.
        seed: given to the solver.
        time_limit_s: given to a solver that takes one.
        optimizer: of the tables; by default that of the sharder's `fused_params`, or the attached one, or SGD.
        reserve: what a device needs besides tables; nothing by default, where TorchRec's planner keeps 15 % and more. A
            warning in the log says when tables take that.
        sample: ids by feature, in place of the constraints' pooling factors.
        carried_bytes: that devices carry already, of each or one number for all.
        pins: rank or ranks that may hold a table, by table, which TorchRec has no constraint for.
        strict: refuse to plan where a constraint or a pin is not followed, or the model embeds something besides that
            would stay whole on every rank; without it, warnings in the log say so.
    """

    solver: str | Solver = "neuroshard_plus"
    cost: str | CostModel | None = None
    seed: int = 0
    time_limit_s: float | None = None
    optimizer: Optimizer | None = None
    reserve: Reserve | None = None
    sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream | None = None
    carried_bytes: int | Sequence[int] = 0
    pins: Mapping[str, int | Sequence[int]] | None = None
    strict: bool = False


@dataclass(frozen=True)
class Planned:
    """What a planner made last.

    Attributes:
        task: of the model.
        plan: for it, ours.
        cost: what the planner's cost says of the plan.
    """

    task: ShardingTask
    plan: ShardingPlan
    cost: PlanCost


class ShardGymPlanner(ShardingPlanner):  # type: ignore[misc]  # a class of any type where TorchRec is not installed
    """Makes the plan of a `DistributedModelParallel` job with any solver and any cost.

    `DistributedModelParallel` takes the plan, not the planner:
    `DistributedModelParallel(model, plan=planner.collective_plan(model, sharders), sharders=sharders)`.

    Args:
        topology: TorchRec's, which `topology_from_torchrec` turns into ours, or ours. It says what the job runs on, and
            how many ranks a machine has.
        batch_size: samples of one rank, as TorchRec's planner takes it.
        constraints: TorchRec's, by table; `constraints.py` says what is done with each field. A warning in the log
            says what is not followed.
        settings: solver, cost, and what else is ours.

    Attributes:
        last: what the last call of `plan` made, None before; on the first rank alone in a collective plan.

    Raises:
        InputError: no such solver, cost or topology.
    """

    def __init__(
        self,
        topology: TorchRecTopology | Topology,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        settings: PlannerSettings = PlannerSettings(),
    ) -> None:
        check_instance("settings", settings, PlannerSettings)
        self._torchrec_topology = topology if isinstance(topology, TorchRecTopology) else None
        if isinstance(topology, TorchRecTopology):
            topology = topology_from_torchrec(topology)
        check_instance("topology", topology, Topology)
        self._topology: Topology = topology
        self._batch_size = check_int("batch_size", batch_size, 1)
        self._constraints = constraints
        self._settings = settings
        self._solver = _made_solver(settings.solver) if isinstance(settings.solver, str) else settings.solver
        cost = settings.cost
        if cost is None:
            cost = "gpu" if topology.device in CARDS else "roofline"
        self._cost = make_cost(cost) if isinstance(cost, str) else cost
        check_instance("cost", self._cost, CostModel)
        check_int("seed", settings.seed)
        self.last: Planned | None = None

    def plan(self, module: nn.Module, sharders: list[ModuleSharder] | None = None) -> TorchRecPlan:
        """Return a plan for a model, without any process group.

        Args:
            module: the model, on any device, "meta" included.
            sharders: those of the job; TorchRec's default ones when None.

        Raises:
            InputError: the model has modules that a sharder would shard and this planner cannot, or is refused by
                `import_model` or `to_torchrec`; or it is strict, and something is not followed.
            NoFeasiblePlanError: the tables do not fit.
        """
        settings = self._settings
        sharders = get_default_sharders() if sharders is None else sharders
        collections = _planned(module, sharders)
        tables = model_tables(module, collections)
        wanted, unplanned = without_unplanned("constraints", self._constraints or {}, module, collections)
        pinned, unpinned = without_unplanned("pins", settings.pins or {}, module, collections)
        imported = import_model(
            module,
            self._topology,
            self._batch_size * self._topology.num_devices,
            sample=settings.sample,
            constraints=wanted,
            optimizer=settings.optimizer,
            default_optimizer=_fused_optimizer(sharders, {type(module.get_submodule(t.path)) for t in tables}),
            reserve=settings.reserve,
            carried_bytes=settings.carried_bytes,
            dedup_ids=_dedups(sharders),
            collections=collections,
        )
        task = imported.task
        constraints = by_table("constraints", wanted, tables)
        pins = by_table("pins", pinned, tables)
        in_host = bool(task.topology.host_memory_bytes) and self._cost.host_memory
        rules, wishes = rules_of(task, constraints, pins, in_host=in_host)
        wishes += [wish for wish in imported.wishes if wish.why != NEEDS_PLAN]
        _logger.info(
            "%s places %d tables on %d devices by cost '%s' of '%s'",
            type(self._solver).__name__, task.num_tables, task.num_devices, self._cost.name, self._topology.device,
        )  # fmt: skip
        limit = settings.time_limit_s
        plan = solve_beside_host_tables(self._solver, task, self._cost, rules, settings.seed, limit)
        plan = follow(plan, task, self._cost, rules, settings.seed)
        theirs = self._torchrec_topology
        device_type: DeviceType = "cpu" if self._topology.device.startswith("cpu") else "cuda"
        sharding_plan = to_torchrec(plan, task, module, device_type=device_type, collections=collections)
        kinds = {table.name: plan.kind_of(table.name, task) for table in task.tables}
        wishes += apply_constraints(
            constraints, sharding_plan, kinds, device_type=device_type, output_fp16=task.precision == "fp16"
        )
        wishes += [
            Wish("pins", name, "no plan was found that keeps it there")
            for name, rule in rules.items()
            if rule.devices is not None and not {d for s in plan.of_table(name) for d in s.devices} <= rule.devices
        ]
        remarks = [f"{what} is not planned: it stays whole on every rank" for what in imported.left_out]
        wishes += [
            Wish(what, name, f"the table is not planned without {cls}Sharder() among the sharders")
            for what, without in (("constraints", unplanned), ("pins", unpinned))
            for name, cls in without.items()
        ]
        remarks += in_words(wishes)
        if settings.strict:
            refuse_remarks(remarks)
        if theirs is not None:
            remarks += device_remarks(theirs, self._topology.device, self._cost)
            if settings.reserve is None:
                remarks += memory_remarks(task, plan)
        for remark in remarks:
            _logger.warning(remark)
        self.last = Planned(task, plan, self._cost.evaluate(task, [plan])[0])
        if _logger.isEnabledFor(logging.INFO) and (gain := self._gain(self.last)):
            _logger.info(gain)
        return sharding_plan

    def _gain(self, planned: Planned) -> str:
        """Say what a plan takes beside that of a simple rule; "" where the rule fails, or the cost measures."""
        if self._cost.additive() is None or not planned.cost.feasible:
            return ""
        try:
            simple = call_solver(make_solver(_SIMPLE), planned.task, self._cost, self._settings.seed)
        except NO_PLAN:
            return ""
        cost = self._cost.evaluate(planned.task, [simple])[0]
        found = compare(planned.task, (simple, planned.plan), (cost, planned.cost))
        if found is None:
            return ""
        return (
            f"the plan takes {planned.cost.total_ms:.3f} ms by '{self._cost.name}', that of '{_SIMPLE}' "
            f"{cost.total_ms:.3f}: {found.sentence()}"
        )

    def collective_plan(
        self,
        module: nn.Module,
        sharders: list[ModuleSharder] | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> TorchRecPlan:
        """Plan on the first rank of a process group and return the plan on all; an error is raised on all, too.

        Planning may take longer than the timeout of the group, see `from_first_rank`.

        Args:
            module: see `plan`.
            sharders: see `plan`.
            pg: the process group, by default that of all processes.

        Raises:
            InputError: there is no process group, or it has another size than the topology, or as `plan`.
            ShardGymError: whatever else went wrong on the first rank, in the same words on every rank; or that rank
                ended.
        """
        group = dist.group.WORLD if pg is None else pg
        if group is None:
            raise InputError("collective_plan needs a process group: call init_process_group first, or plan()")
        size = dist.get_world_size(group)
        if size != self._topology.num_devices:
            raise InputError(f"the process group has {size} ranks, the topology {self._topology.num_devices} devices")
        plan: TorchRecPlan = from_first_rank(lambda: self.plan(module, sharders), group)
        return plan


def _made_solver(name: str) -> Solver:
    """Return a solver by its name; one that may give parts of a table different kernels is told not to."""
    solver = make_solver(name)
    return make_solver(name, row_cuts=False) if getattr(solver, "row_cuts", False) else solver


def _planned(module: nn.Module, sharders: list[ModuleSharder]) -> list[type[nn.Module]]:
    """Return the classes of collections that are planned: those with a sharder.

    Refuses modules that the job would shard and that the plan would not mention: TorchRec leaves these whole.
    """
    types = {sharder.module_type for sharder in sharders}
    planned = [cls for cls in COLLECTIONS if cls in types]
    if not planned:
        wanted = " or ".join(f"{cls.__name__}Sharder()" for cls in COLLECTIONS)
        raise InputError(f"sharders: expected {wanted} among them, they shard what is planned")
    inside: list[str] = []
    for path, part in module.named_modules():
        if type(part) in planned:
            inside.append(f"{path}." if path else "")
        elif type(part) in types and not any(path.startswith(prefix) for prefix in inside):
            raise InputError(
                f"'{path}', of class {type(part).__name__}, is a module which ShardGym does not plan: leave its "
                "sharder out of sharders= to keep it whole on every rank"
            )
    return planned


def _dedups(sharders: list[ModuleSharder]) -> bool:
    """Return whether a job sends ids of unpooled tables without repeats; its sharder keeps that to itself."""
    return any(getattr(s, "_use_index_dedup", False) for s in sharders if s.module_type is EmbeddingCollection)


def _fused_optimizer(sharders: list[ModuleSharder], collections: Collection[type[nn.Module]]) -> Optimizer | None:
    """Return the optimiser that sharders of some collections set in their `fused_params`, None without one.

    Raises:
        InputError: tasks do not know it, or sharders set several.
    """
    found: set[Optimizer | None] = set()
    for sharder in sharders:
        if sharder.module_type in collections:
            kind = (getattr(sharder, "fused_params", None) or {}).get("optimizer")
            if kind is not None and kind not in _OPTIMIZERS:
                known = ", ".join(optimizer.name for optimizer in _OPTIMIZERS)
                raise InputError(
                    f"fused_params: optimizer {kind} is none of {known}: give one that comes near in PlannerSettings"
                )
            found.add(None if kind is None else _OPTIMIZERS[kind])
    if len(found) > 1:
        raise InputError(
            "fused_params: sharders of the model's collections set different optimizers: give one in PlannerSettings, "
            "or attach one to each table with apply_optimizer_in_backward"
        )
    return next(iter(found), None)
