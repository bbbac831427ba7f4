"""ShardGymPlanner, which replaces TorchRec's planner with two changed lines of a training script."""

import contextlib
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist
from torch import nn
from torchrec.distributed.planner.constants import HBM_MEM_BW, INTRA_NODE_BANDWIDTH
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlanner
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.calibrated import CalibratedCost, Calibration
from shardgym.costs.comparison import compare
from shardgym.costs.gpu.cards import planning_cost
from shardgym.costs.gpu.cost import GpuCost
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.torchrec_steps import step_costs
from shardgym.errors import NO_PLAN, InputError, check_int, check_seconds
from shardgym.evaluation.solver import Solver, make_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.bags import Bags
from shardgym.tables.streams.stream import IdStream
from shardgym.tables.table import Optimizer
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology
from shardgym.torchrec.constraints import NEEDS_PLAN, Rules, Wish, apply_constraints, in_words, rules_of
from shardgym.torchrec.following import best_of, follow, solve_beside_host_tables
from shardgym.torchrec.model_tables import COLLECTIONS, by_table, model_tables, without_unplanned
from shardgym.torchrec.ranks import from_first_rank
from shardgym.torchrec.sharders import (
    Sharders,
    bytes_sent,
    codecs_not_followed,
    dedups,
    fused_optimizer,
    not_followed,
    with_sharders,
)
from shardgym.torchrec.sharding_plan import DeviceType, refuse_remarks, to_torchrec
from shardgym.torchrec.tasks import Reserve, import_model, topology_from_torchrec

_logger = logging.getLogger("shardgym.torchrec")

#: Solver that the log compares plans with: longest processing time first, the base of boards.
_SIMPLE = "lpt"

#: Share of a device that TorchRec's planner leaves free of tables unless it is told otherwise.
_TORCHREC_MARGIN = 0.15
#: Hardware of costs that take the kind of device from the task.
_BY_TASK = ("gpu-modelled", "roofline")
#: Figures of TorchRec's topology for its own rating, which no cost of ShardGym uses.
OF_RATING = (
    "ddr_mem_bw", "bwd_compute_multiplier",
    "weighted_feature_bwd_compute_multiplier", "uneven_sharding_perf_multiplier",
)  # fmt: skip


@dataclass(frozen=True)
class PlannerSettings:
    """How `ShardGymPlanner` plans: its solver and oracle, limits, pins and reserved memory."""

    #: A registered name, `module:Class`, or a solver. A solver given by name uses one kernel and one cache load factor
    #: per table, as TorchRec does.
    solver: str | Solver = "neuroshard_plus"
    #: The cost that the solver may query, a name or a cost model. By default, the modelled cost `gpu` if it knows the
    #: topology's device, else `roofline`; the log says which.
    oracle: str | CostModel | None = None
    #: A result of `shardgym compare`, which sets the level of the oracle, "gpu" or "roofline".
    calibration: str | Path | None = None
    seed: int = 0  #: seed of the solver
    time_limit_s: float | None = None  #: time limit of the solver, if it takes one
    #: Optimiser of the tables; by default the attached one, or that of the sharder's `fused_params`, or SGD.
    optimizer: Optimizer | None = None
    #: Memory of a device for everything but tables, by default none. TorchRec's planner keeps 15 % and more; a warning
    #: in the log says if tables use this memory.
    reserve: Reserve | None = None
    #: Ids by feature, instead of the constraints' pooling factors.
    sample: KeyedJaggedTensor | Mapping[str, Bags] | IdStream | None = None
    carried_bytes: int | Sequence[int] = 0  #: bytes in use on each device, or one number for all
    #: Rank or ranks that may hold a table, by table, for which TorchRec has no constraint.
    pins: Mapping[str, int | Sequence[int]] | None = None
    #: Raise an error if a constraint or a pin is not followed, or if the model has other embeddings, which would stay
    #: whole on every rank. Otherwise, the log warns of these.
    strict: bool = False


@dataclass(frozen=True)
class Planned:
    """The last result of a planner."""

    task: ShardingTask
    plan: ShardingPlan  #: plan of ShardGym for the task
    cost: PlanCost  #: cost of the plan by the oracle


class ShardGymPlanner(ShardingPlanner):  # type: ignore[misc]  # a class of any type where TorchRec is not installed
    """Makes the plan of a `DistributedModelParallel` job with any solver and any oracle.

    `DistributedModelParallel` takes the plan, not the planner:
    `DistributedModelParallel(model, plan=planner.collective_plan(model, sharders), sharders=sharders)`.

    Args:
        topology: devices of the job and ranks per machine, as a topology of ShardGym or of TorchRec, which
            `topology_from_torchrec` converts.
        batch_size: samples of one rank, as for TorchRec's planner.
        constraints: TorchRec's constraints by table; `constraints.py` describes the use of each field. The log warns of
            those that are not followed.
        settings: solver, oracle, and other settings of ShardGym.

    Attributes:
        last: result of the last call of `plan`, None before; in a collective plan, only on the first rank.

    Raises:
        InputError: unknown solver, oracle or topology.
    """

    def __init__(
        self,
        topology: TorchRecTopology | Topology,
        batch_size: int,
        constraints: Mapping[str, ParameterConstraints] | None = None,
        settings: PlannerSettings = PlannerSettings(),
    ) -> None:
        self._torchrec_topology = topology if isinstance(topology, TorchRecTopology) else None
        if isinstance(topology, TorchRecTopology):
            topology = topology_from_torchrec(topology)
        self._topology = topology
        self._batch_size = check_int("batch_size", batch_size, 1)
        self._constraints = constraints
        self._settings = settings
        solver = settings.solver
        self._solver = make_solver(solver) if isinstance(solver, str) else solver
        if isinstance(solver, str) and getattr(self._solver, "row_cuts", False):
            self._solver = make_solver(solver, row_cuts=False)  # which gives parts of a table different kernels
        oracle = settings.oracle
        if oracle is None:
            oracle = planning_cost(topology.device)
        self._oracle = make_cost(oracle) if isinstance(oracle, str) else oracle
        self._calibration = None if settings.calibration is None else Calibration.of_result(settings.calibration)
        check_int("seed", settings.seed)
        if settings.time_limit_s is not None:
            check_seconds("time_limit_s", settings.time_limit_s)
        self.last: Planned | None = None

    def plan(self, module: nn.Module, sharders: list[ModuleSharder] | None = None) -> TorchRecPlan:
        """Return a plan for a model, without a process group.

        Args:
            module: the model, on any device, including "meta".
            sharders: sharders of the job; TorchRec's defaults when None.

        Raises:
            InputError: a sharder would shard modules that this planner cannot plan, `import_model` or `to_torchrec`
                refuse the model, or the settings are strict and something is not followed.
            NoFeasiblePlanError: the tables do not fit.
        """
        settings = self._settings
        topology = self._topology
        sharders = get_default_sharders() if sharders is None else sharders
        collections = _planned(module, sharders)
        tables = model_tables(module, collections)
        classes = {table.name: type(module.get_submodule(table.path)) for table in tables}
        used = {s.module_type: s for s in sharders if s.module_type in classes.values()}
        device_type: DeviceType = "cpu" if topology.device.startswith("cpu") else "cuda"
        wanted, unplanned = without_unplanned(self._constraints or {}, module, collections)
        pinned, unpinned = without_unplanned(settings.pins or {}, module, collections)
        constraints, wishes = with_sharders(
            by_table("constraints", wanted, tables), {name: used[cls] for name, cls in classes.items()}, device_type
        )
        imported = import_model(
            module,
            topology,
            self._batch_size * topology.num_devices,
            sample=settings.sample,
            constraints=constraints,
            optimizer=settings.optimizer,
            default_optimizer=fused_optimizer(used),
            reserve=settings.reserve,
            carried_bytes=settings.carried_bytes,
            dedup_ids=dedups(used),
            collections=collections,
        )
        task = imported.task
        cost, of_codecs = self._priced_with(used, task)
        cost = self._calibrated(cost)
        plan, rules = self._solved(task, cost, constraints, by_table("pins", pinned, tables))
        wishes += rules.wishes + of_codecs + not_followed(used)
        wishes += [wish for wish in imported.wishes if wish.why != NEEDS_PLAN]
        sharding_plan = to_torchrec(plan, task, module, device_type=device_type, collections=collections)
        kinds = {table.name: plan.kind_of(table.name, task) for table in task.tables}
        wishes += apply_constraints(
            constraints, sharding_plan, kinds, device_type=device_type, output_fp16=task.precision == "fp16"
        )
        wishes += [
            Wish("pins", name, "no plan was found that keeps it there")
            for name, rule in rules.of_tables.items()
            if rule.devices is not None and not {d for s in plan.of_table(name) for d in s.devices} <= rule.devices
        ]
        if (theirs := self._torchrec_topology) is not None:
            wishes += _topology_wishes(theirs)
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
            remarks += _device_remarks(theirs, topology, self._oracle)
            if settings.reserve is None:
                remarks += _memory_remarks(task, plan)
        self.last = Planned(task, plan, step_costs(cost, task, [plan])[0])
        for remark in remarks:
            _logger.warning(remark)
        for note in self.last.cost.notes:
            _logger.info("note on the cost: %s", note)
        if in_host := list(dict.fromkeys(shard.table for shard in plan.shards if shard.memory == "host")):
            asked = {name for name, of in constraints.items() if any("uvm" in one for one in of.compute_kernels or ())}
            level = logging.INFO if asked.issuperset(in_host) else logging.WARNING
            room = min(topology.memory_bytes)
            _logger.log(level, "rows in the memory of hosts (devices have %d bytes): %s", room, ", ".join(in_host))
        if _logger.isEnabledFor(logging.INFO) and (gain := self._gain(self.last, cost, rules)):
            _logger.info(gain)
        return sharding_plan

    def plan_task(self, task: ShardingTask) -> ShardingPlan:
        """Return a plan for a task, as `plan` does for a model without constraints.

        The planner's solver, oracle, seed and time limit apply. A task may know more of its ids than constraints do.

        Args:
            task: task with table names of `task_from_model` or `model_from_task`.

        Raises:
            NoFeasiblePlanError: the tables do not fit.
        """
        return self._solved(task, self._calibrated(self._oracle), {}, {})[0]

    def _calibrated(self, cost: CostModel) -> CostModel:
        return cost if self._calibration is None else CalibratedCost(cost, self._calibration)

    def _solved(
        self,
        task: ShardingTask,
        cost: CostModel,
        constraints: Mapping[str, ParameterConstraints],
        pins: Mapping[str, int | Sequence[int]],
    ) -> tuple[ShardingPlan, Rules]:
        """Return a plan, and the rules behind it, which may cost a search more than they cost a simple rule."""
        _logger.info(
            "%s places %d tables on %d devices by cost '%s' of '%s'",
            type(self._solver).__name__, task.num_tables, task.num_devices, cost.name, task.topology.device,
        )  # fmt: skip
        rules = rules_of(task, constraints, pins, cost)
        plan = self._obedient(self._solver, task, cost, rules)
        if rules.of_tables and cost.additive() is not None and self._settings.solver == PlannerSettings.solver:
            with contextlib.suppress(*NO_PLAN):
                simple = self._obedient(make_solver(_SIMPLE), task, cost, rules)
                plan = best_of([plan, simple], task, cost, rules.of_tables, rules.by_rows)
        return plan, rules

    def _obedient(self, solver: Solver, task: ShardingTask, cost: CostModel, rules: Rules) -> ShardingPlan:
        """Return a solver's plan after making it follow rules."""
        seed = self._settings.seed
        plan = solve_beside_host_tables(solver, task, cost, rules.of_tables, seed, self._settings.time_limit_s)
        return follow(plan, task, cost, rules.of_tables, seed, rules.by_rows)

    def _gain(self, planned: Planned, cost: CostModel, rules: Rules) -> str:
        """Compare a plan with that of a simple rule, in words; "" if there is no comparison."""
        if cost.additive() is None or not planned.cost.feasible:
            return ""
        try:
            simple = self._obedient(make_solver(_SIMPLE), planned.task, cost, rules)
        except NO_PLAN:
            return ""
        answer = step_costs(cost, planned.task, [simple])[0]
        found = compare(planned.task, (simple, planned.plan), (answer, planned.cost))
        if found is None:
            return ""
        return (
            f"the plan takes {planned.cost.total_ms:.3f} ms by '{cost.name}', that of '{_SIMPLE}' under the same "
            f"constraints {answer.total_ms:.3f}. {found.sentence()}"
        )

    def _priced_with(self, sharders: Sharders, task: ShardingTask) -> tuple[CostModel, list[Wish]]:
        """Return the cost that prices the codecs of sharders, and wishes that it does not follow."""
        cost = self._oracle
        sizes = bytes_sent(sharders)
        if sizes == {4} or (sizes == {2} and task.precision == "fp16"):
            return cost, []
        if sizes == {2} and isinstance(cost, GpuCost):
            return GpuCost(**{**cost.settings(), "wire": "fp16"}), []
        why = f"cost '{cost.name}' prices exchanges of outputs as they are"
        if sizes != {2}:
            why = (
                "exchanges are priced as FP32, or as FP16 where codecs of all sharders send two bytes a value both ways"
            )
        return cost, codecs_not_followed(sharders, why)

    def collective_plan(
        self, module: nn.Module, sharders: list[ModuleSharder] | None = None, pg: dist.ProcessGroup | None = None
    ) -> TorchRecPlan:
        """Plan on the first rank of a process group, and return the plan, or raise the error, on all ranks.

        Planning may take longer than the timeout of the group.

        Args:
            module: see `plan`.
            sharders: see `plan`.
            pg: the process group, by default that of all processes.

        Raises:
            InputError: as `plan`; or there is no process group, or its size differs from the topology's.
            ShardGymError: any other error of the first rank, with the same text on every rank; or that rank ended.
        """
        group = dist.group.WORLD if pg is None else pg
        if group is None:
            raise InputError("collective_plan needs a process group: call init_process_group first, or plan()")
        size = dist.get_world_size(group)
        if size != self._topology.num_devices:
            raise InputError(f"expected {self._topology.num_devices} ranks, as the topology has, got {size}")
        plan: TorchRecPlan = from_first_rank(lambda: self.plan(module, sharders), group)
        return plan


def _planned(module: nn.Module, sharders: list[ModuleSharder]) -> list[type[nn.Module]]:
    """Return the classes of collections with a sharder; raises `InputError` for other modules with a sharder."""
    types = {sharder.module_type for sharder in sharders}
    planned = [cls for cls in COLLECTIONS if cls in types]
    if not planned:
        wanted = " or ".join(f"{cls.__name__}Sharder()" for cls in COLLECTIONS)
        raise InputError(f"sharders: expected {wanted} among them, because only their modules are planned")
    inside: list[str] = []
    for path, part in module.named_modules():
        if type(part) in planned:
            inside.append(f"{path}." if path else "")
        elif type(part) in types and not any(path.startswith(prefix) for prefix in inside):
            raise InputError(
                f"'{path}' ({type(part).__name__}) is a module that ShardGym does not plan: leave its sharder out "
                "of sharders= to keep it whole on every rank"
            )
    return planned


def _topology_wishes(theirs: TorchRecTopology) -> list[Wish]:
    """Return wishes for non-default values in TorchRec's topology that no cost of ShardGym uses."""
    usual = inspect.signature(TorchRecTopology).parameters
    wishes = [
        Wish(name, "Topology", "only TorchRec's own rating uses it")
        for name in OF_RATING
        if name in usual and getattr(theirs, name) != usual[name].default
    ]
    if type(getattr(theirs, "comms_bandwidths", None)).__name__ not in ("NoneType", "BasicCommsBandwidths"):
        why = "only its intra_host_bw and inter_host_bw are used"
        wishes.append(Wish("generalized_comms_bandwidths", "Topology", why))
    return wishes


def _device_remarks(theirs: TorchRecTopology, topology: Topology, cost: CostModel) -> list[str]:
    """Say which devices were assumed if TorchRec's topology has its default bandwidths."""
    if cost.hardware not in _BY_TASK:
        return []
    if theirs.compute_device == "cpu":
        if theirs.intra_host_bw != INTRA_NODE_BANDWIDTH or topology.fast_domain_size == 1:
            return []
        return [
            f"the plan is for CPUs with links of {topology.intra_bandwidth / 1e9:.0f} GB/s, because TorchRec's "
            "topology has NVLink's default; give intra_host_bw of your links in bytes per ms, or a topology such as "
            f"shardgym.Topology.preset('cpu', {topology.num_devices})"
        ]
    if theirs.hbm_mem_bw != HBM_MEM_BW:
        return []
    return [
        f"the plan is for GPUs like '{topology.device}', because TorchRec's topology has its default bandwidth; give "
        "hbm_mem_bw and intra_host_bw of your GPUs in bytes per ms, or a topology such as "
        "shardgym.Topology.preset('dgx-h100', 8)"
    ]


def _memory_remarks(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Say which device is fuller than TorchRec's planner would allow, if nothing was reserved."""
    shares = [used / limit for used, limit in zip(plan.bytes_per_device(task), task.capacity_bytes, strict=True)]
    if (fullest := max(shares)) <= 1 - _TORCHREC_MARGIN:
        return []
    return [
        f"tables take {100 * fullest:.1f} % of the memory of device {shares.index(fullest)}, and nothing is reserved "
        "for dense parameters, input buffers and activations; PlannerSettings(reserve=Reserve()) keeps TorchRec's"
    ]
