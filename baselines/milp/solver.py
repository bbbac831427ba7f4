"""Milp: mixed-integer programs choose kinds, cuts and places of all tables, with a proven gap."""

import contextlib
import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from baselines.lpt import LPT
from baselines.milp.kinds import Exchanges, Kinds, Spread, exchanges_of, kinds_of, shards_of, spread_loads
from baselines.milp.program import Answer, Program
from baselines.queries import IncumbentSearch, SearchRun
from neuroshard.plus.nodes import packed
from neuroshard.plus.solver import NeuroShardPlus
from neuroshard.shard_table import ShardTable, plan_of_units
from shardgym.costs.base import CostModel, additive_costs
from shardgym.errors import NO_PLAN, InputError, NoFeasiblePlanError, check_int
from shardgym.evaluation.solver import OutOfTime, Solver, call_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: TorchRec's sharding types that programs have besides columns. Grids are not among them.
_TYPES = ("row_wise", "table_row_wise", "data_parallel")
#: Share of the target gap that a program over groups of devices may leave open.
_PROGRAM_SHARE = 0.03
#: Share of a cutoff by which a plan must be better.
_BETTER = 1e-7
#: Programs over single devices are tried where they have at most so many places of tables.
_MOST_PLACES = 120
#: Kicks of `neuroshard_plus`, which with a time limit would otherwise run until it finds nothing better.
_KICKS = 128

#: Nodes of the search tree of each program at most, so that plans do not depend on the machine's speed.
_NODES = 200

_logger = logging.getLogger("shardgym.solvers.milp")


class Milp(IncumbentSearch):
    """Chooses kinds, cuts and places of all tables by mixed-integer linear programs, and proves a gap.

    A table is cut into column pieces of any width, at most one per device; or evenly by rows over all devices or over a
    fast domain; or replicated if the cost prices replicas. The step is linear in these choices: compute of shards adds
    up, and exchanges are maxima of lines. Plan and proof come from four parts:

    - A program over groups of equal devices (`Program`) gives a lower bound, and kinds.
    - `neuroshard_plus` places column pieces beside the tables of other kinds.
    - Tables that single domains hold by rows are packed again (`neuroshard/plus/nodes.py`).
    - If the gap exceeds the target and the task is small, a program over single devices closes it.

    HiGHS solves the programs through SciPy. The plan never costs more than that of `lpt` and, without grids, that of
    `neuroshard_plus`. Compute by `gpu` may exceed the sum, which weakens the bound. With costs that have no bound
    (`AdditiveCosts.bounded`), the programs only estimate: they lead to plans but prove nothing.

    Args:
        target_gap: stop when no plan of these kinds can be cheaper by more than this share.
        kicks: kicks of `neuroshard_plus`.

    Attributes:
        lower_bound_ms: lower bound on the costs of plans of these kinds for the last task; None without a bound by this
            cost, or before the first task.
        gap: cost of the last plan over this bound, minus 1; None without a bound.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(self, target_gap: float = 0.02, kicks: int | None = None) -> None:
        if not (isinstance(target_gap, float | int) and 0 <= target_gap < 1):
            raise InputError(f"target_gap: expected a share from 0 to below 1, such as 0.05, got {target_gap!r}")
        self.target_gap = target_gap
        self.kicks = None if kicks is None else check_int("kicks", kicks)
        self.lower_bound_ms: float | None = None
        self.gap: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the last plan is proven to be within the target gap."""
        return self.gap is not None and self.gap <= self.target_gap + _BETTER

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` if the cost is not additive."""
        additive_costs(cost, "milp")

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Compile the search of `neuroshard_plus`."""
        NeuroShardPlus(self.kicks).warm_up(task, cost)

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """Search for the best plan, and set `proven`, `gap` and `lower_bound_ms`."""
        del start
        self.lower_bound_ms = self.gap = None
        incumbent = run.incumbent
        with contextlib.suppress(*NO_PLAN):
            incumbent.offer(LPT().solve(run.task, run.cost, run.seed))
        search = _Search(self, run)
        with contextlib.suppress(OutOfTime):
            search.run()
        if incumbent.cost_ms == math.inf:
            raise NoFeasiblePlanError(
                "no plan was found that fits into memory, although pieces of columns, cuts by rows over all devices or "
                "a domain, and replicas were allowed"
            )
        if search.bound_ms > 0:
            # Times are compared as quantized ones: a bound is never above the plan that reaches it.
            total_ms = run.cost.evaluate(run.task, [incumbent.plan()])[0].total_ms
            self.lower_bound_ms = min(search.bound_ms, total_ms)
            self.gap = total_ms / self.lower_bound_ms - 1
        elif not search.has_bound:
            pooled = all(table.is_pooled for table in run.task.tables)
            why = f"'{run.cost.name}' is not a bounded cost" if pooled else "some tables are unpooled"
            _logger.info("milp: no lower bound, as %s", why)


class _Search:
    """One call of `Milp.solve`; `bound_ms` is the lower bound so far, 0 at first."""

    def __init__(self, settings: Milp, run: SearchRun) -> None:
        self._settings = settings
        self._task = run.task
        self._cost = run.cost
        self._seed = run.seed
        self._budget = run.budget
        self._incumbent = run.incumbent
        self._costs = costs = additive_costs(run.cost, "milp")
        # Programs do not know rows of unpooled tables.
        self.has_bound = costs.bounded and all(table.is_pooled for table in run.task.tables)
        self.bound_ms = 0.0

    def run(self) -> None:
        """Bound and place; then close the gap on single devices. Raises `OutOfTime`."""
        task, gap = self._task, self._settings.target_gap
        exchanges = exchanges_of(task, self._costs)
        kinds = kinds_of(task, self._costs, exchanges, replicas=self._cost.replicas)
        spread = {spread.table for spread in kinds.spreads}
        if any(columns is None and n not in spread for n, columns in enumerate(kinds.columns)):
            return  # a table fits nowhere, whichever way it is cut
        self._place([])
        program = Program(task, kinds, exchanges, equal_devices(task, exchanges))
        # Without tables of single domains first: then the others are often ruled out by what was found.
        bounds = []
        has_domains = any(spread.devices == "domain" for spread in kinds.spreads)
        for domains in (False, True) if has_domains else (None,):
            cutoff_ms = self._cutoff_ms(gap * (1 - _PROGRAM_SHARE)) if domains else math.inf
            answer = self._solve(program, gap * _PROGRAM_SHARE, domains, cutoff_ms)
            bounds.append(min(answer.bound_ms, cutoff_ms))
            if answer.spreads:
                self._place([shard for n in answer.spreads for shard in shards_of(task, *n)])
        self._balance_domains(kinds, exchanges)
        if self.has_bound:
            self.bound_ms = min(bounds)
        is_near = self.bound_ms > 0 and self._incumbent.cost_ms / self.bound_ms - 1 <= gap
        if not is_near and task.num_tables * task.num_devices <= _MOST_PLACES:
            # For plans that are better than the best one.
            program = Program(task, kinds, exchanges, [[device] for device in range(task.num_devices)])
            cutoff_ms = self._cutoff_ms(0.0) * (1 - _BETTER)
            answer = self._solve(program, gap, None, cutoff_ms)
            if self.has_bound:
                self.bound_ms = max(self.bound_ms, min(answer.bound_ms, cutoff_ms))
            if answer.spreads is not None:
                shards = [shard for n in answer.spreads for shard in shards_of(task, *n)]
                pieces = plan_of_units(ShardTable(task), answer.units).shards
                self._incumbent.offer(ShardingPlan.of(task, [*shards, *pieces]))

    def _solve(self, program: Program, gap: float, domains: bool | None, cutoff_ms: float) -> Answer:
        self._budget.check()
        limit_s = self._budget.left_s if self._budget.limited else math.inf
        return program.solve(gap=gap, domains=domains, cutoff_ms=cutoff_ms, nodes=_NODES, time_limit_s=limit_s)

    def _cutoff_ms(self, gap: float) -> float:
        """Return the cost below which a plan would make the gap larger than this; infinite for an estimate."""
        return self._incumbent.cost_ms / (1 + gap) if self.has_bound else math.inf

    def _place(self, shards: list[Shard]) -> None:
        """Offer the best plan found with these shards, the other tables cut by columns; of any kind without shards."""
        self._budget.check()
        settings, options = self._settings, {}
        kicks = settings.kicks
        if self._budget.limited:
            kicks = _KICKS if kicks is None else kicks
            options["time_limit_s"] = self._budget.left_s
        # Beside given shards, the search does not know their load; without, it may choose what programs may.
        solver = NeuroShardPlus(kicks, sharding_types=[] if shards else _TYPES)
        plan = _beside(self._task, self._cost, shards, solver, self._seed, **options)
        if plan is not None:
            self._incumbent.offer(plan)

    def _balance_domains(self, kinds: Kinds, exchanges: Exchanges) -> None:
        """Offer the best plan with the tables that single domains hold by rows on other domains."""
        task = self._task
        if self._incumbent.cost_ms == math.inf:
            return
        plan = self._incumbent.plan()
        held: list[Spread] = []
        before: list[int] = []
        for spread in (spread for spread in kinds.spreads if spread.devices == "domain"):
            shards = {*plan.of_table(task.tables[spread.table].name)}
            domain = min(shard.devices[0] for shard in shards) // len(spread.ms)
            if shards == {*shards_of(task, spread, domain)}:
                held.append(spread)
                before.append(domain)
        if not held:
            return
        size = task.topology.fast_domain_size
        loads = spread_loads(held, exchanges)
        # What devices compute besides, the largest of each domain, and memory that is left.
        phases = self._cost.evaluate(task, [plan])[0].phases
        compute = np.stack([phases["forward_compute"], phases["backward_compute"]], axis=1) @ exchanges.compute.T
        base = np.zeros((task.num_devices // size, loads.shape[1]))
        base[:, :2] = compute.reshape(-1, size, 2).max(axis=1)
        left = np.array(task.capacity_bytes) - plan.bytes_per_device(task)
        room = left.reshape(-1, size).min(axis=1)
        sizes = np.array([int(spread.bytes.max()) for spread in held])
        for spread, domain in zip(held, before, strict=True):
            base[domain, :2] -= spread.ms.max(axis=0)
            room[domain] += spread.bytes.max()
        places = packed(loads, np.maximum(base, 0.0), sizes, room).tolist()
        names = {task.tables[spread.table].name for spread in held}
        moved = [
            shard for spread, domain in zip(held, places, strict=True) for shard in shards_of(task, spread, domain)
        ]
        others = [shard for shard in plan.shards if shard.table not in names]
        self._incumbent.offer(ShardingPlan.of(task, [*others, *moved]))


def equal_devices(task: ShardingTask, exchanges: Exchanges) -> list[list[int]]:
    """Group interchangeable devices: of equal memory and links, in domains of the same composition."""
    links = exchanges.links
    alike = [
        (memory, *links.latency_ms[:, d].tolist(), *links.sent_ms[:, d].tolist(), *links.received_ms[:, d].tolist())
        for d, memory in enumerate(task.capacity_bytes)
    ]
    of_domain: dict[int, list[tuple[float, ...]]] = {}
    for device, kind in enumerate(alike):
        of_domain.setdefault(int(links.domains[device]), []).append(kind)
    groups: dict[tuple[object, ...], list[int]] = {}
    for device, kind in enumerate(alike):
        domain = tuple(sorted(of_domain[int(links.domains[device])]))
        groups.setdefault((kind, domain), []).append(device)
    return list(groups.values())


def _beside(
    task: ShardingTask, cost: CostModel, shards: Sequence[Shard], solver: Solver, seed: int, **options: Any
) -> ShardingPlan | None:
    """Return a plan with these shards of whole tables, the others placed by a solver in what memory is left, if any."""
    room = list(task.capacity_bytes)
    for shard in shards:
        for device in shard.devices:
            room[device] -= shard.bytes(task)
    names = {shard.table for shard in shards}
    others = tuple(table for table in task.tables if table.name not in names)
    if min(room) < (1 if others else 0):
        return None
    placed = list(shards)
    if others:
        try:
            # Bounds hold for plans without host memory.
            part = task.part(room, others, task.topology.devices_alone)
            placed += call_solver(solver, part, cost, seed, **options).shards
        except NO_PLAN:
            return None
    return ShardingPlan.of(task, placed)
