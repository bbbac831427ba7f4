"""Milp: kinds, cuts and places of all tables by mixed-integer programs, with a proven gap."""

from __future__ import annotations

import contextlib
import math
from typing import NamedTuple

import numpy as np

from baselines.halving_lpt import LPT
from baselines.milp.choices import Choice, Exchanges, choices_of, exchanges_of, shards_of
from baselines.milp.packing import Packing
from baselines.milp.program import Answer, Program
from shardgym.arguments import check_int
from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS, SHARDS
from shardgym.costs.shard_keys import ShardKey
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan, check_possible
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask

#: Kicks of the packing between two looks at the gap.
_KICKS = 30
#: Of the gap that is asked for, the share that a program over groups of devices may leave open.
_PROGRAM_SHARE = 0.03
#: Of a cutoff, what a plan must be better by.
_BETTER = 1e-7
#: Programs over single devices are tried where they have at most so many places of tables.
_MOST_PLACES = 4000


class Milp:
    """Chooses between whole tables, equal column cuts, row cuts and replicas, and places them, by linear programs.

    A table is whole, in 2, 4 or 8 pieces of columns, cut by rows over all devices or over a fast domain, or replicated
    where the cost prices replicas. The step is linear in these choices: what shards compute alone adds up, and
    exchanges are maxima of lines. Three parts make the proof:

    - A program over groups of equal devices (`Program`) gives a lower bound, and kinds. There, 64 equal GPUs are one
      place, so that no time is lost on plans that differ in the numbers of devices alone. Plans with tables that single
      domains hold by rows, and without, are bounded apart.
    - Packing (`Packing`) places the pieces, and may still change how tables are cut.
    - Where the gap is larger than asked for and the task is small, a program over single devices closes it.

    HiGHS solves them, through SciPy. For 300 tables on 64 devices it solved the two programs over groups of devices in
    3 and 13 s; CP-SAT of OR-Tools, through its linear solver interface on one thread, had found no solution of either
    after 40 s. The plan never costs more than that of `lpt`. A cost whose compute does not add up (`gpu`, `simulator`)
    chooses among the plans that the linear estimate leads to: then there is no bound.

    Example:
        >>> solver = Milp(gap=0.02)                                        # doctest: +SKIP
        >>> plan = solver.solve(task, make_cost("roofline"))               # doctest: +SKIP
        >>> solver.lower_bound_ms, solver.gap, solver.proven               # doctest: +SKIP

    Args:
        target_gap: ends when no plan of these kinds is proven to take less by more than this share.
        nodes: of the search tree of each program at most, so that plans do not depend on the machine's speed.
        kicks: of each packing at most.

    Attributes:
        lower_bound_ms: of the last task, what no plan of these kinds takes less than by its cost; None where the cost
            is not linear, or nothing was solved.
        gap: cost of the last plan over this bound, minus 1; None likewise.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(self, target_gap: float = 0.02, nodes: int = 5000, kicks: int = 240) -> None:
        if isinstance(target_gap, bool) or not isinstance(target_gap, int | float) or not 0 <= target_gap < math.inf:
            raise InputError(f"target_gap must be a number from 0 on, got {target_gap!r}")
        self.target_gap = float(target_gap)
        self.nodes = check_int("nodes", nodes, 1)
        self.kicks = check_int("kicks", kicks)
        self.lower_bound_ms: float | None = None
        self.gap: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the last plan is proven to be within the gap asked for."""
        return self.gap is not None and self.gap <= self.target_gap + _BETTER

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` where the cost does not add up over shards."""
        if cost.additive() is None:
            raise InputError(
                f"milp needs a cost that adds up over shards, and '{cost.name}' does not: "
                "plan with 'roofline', 'gpu' or 'simulator', and score the plan with it"
            )

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        initial_plan: ShardingPlan | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return the best plan found; `proven`, `gap` and `lower_bound_ms` say how good it is.

        Raises:
            NoFeasiblePlanError: no plan was found that respects memory.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` does not add up or cannot price tasks of this
                kind; or an argument is of another kind.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        self.lower_bound_ms = self.gap = None
        check_possible(task)
        self.check_ready(cost)
        budget = Budget(time_limit_s)
        incumbent = Incumbent(task, cost, observer)
        if initial_plan is not None:
            initial_plan.validate(task)
            incumbent.offer(initial_plan)
        with contextlib.suppress(NoFeasiblePlanError):
            incumbent.offer(LPT().solve(task, cost, seed))
        search = _Search(self, task, cost, np.random.default_rng(seed), budget, incumbent)
        with contextlib.suppress(OutOfTime):
            search.run()
        if incumbent.cost_ms == math.inf:
            raise NoFeasiblePlanError(
                "no plan was found that respects memory: whole tables, up to 8 equal pieces of columns, cuts by rows "
                "over all devices or a domain, and replicas were allowed"
            )
        plan = incumbent.plan()
        if search.is_linear and search.bound_ms > 0:
            # Times are compared as quantized ones: a bound is never above the plan that reaches it.
            total_ms = cost.evaluate(task, [plan])[0].total_ms
            self.lower_bound_ms = min(search.bound_ms, total_ms)
            self.gap = total_ms / self.lower_bound_ms - 1
        return plan


class _Step(NamedTuple):
    """What programs and packings of a task are made of."""

    choices: list[Choice]
    exchanges: Exchanges
    fixed_ms: Floats


class _Search:
    """One call of `Milp.solve`."""

    def __init__(
        self, settings: Milp, task: ShardingTask, cost: CostModel, rng: np.random.Generator, budget: Budget,
        incumbent: Incumbent,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._task = task
        self._rng = rng
        self._budget = budget
        self._incumbent = incumbent
        self._costs = cost.additive()
        assert self._costs is not None
        self._replicas = cost.replicas
        self.is_linear = self._costs.linear
        self.bound_ms = 0.0

    def run(self) -> None:
        """Bound and pack; then close the gap on single devices.

        Raises:
            OutOfTime: the budget is spent.
        """
        assert self._costs is not None
        task = self._task
        step = _Step(
            choices_of(task, self._costs, replicas=self._replicas),
            exchanges_of(task, self._costs),
            _fixed_ms(task, self._costs),
        )
        if len({choice.table for choice in step.choices}) < task.num_tables:
            return  # a table fits nowhere, whichever way it is cut
        self._budget.check()
        groups = equal_devices(task, step.exchanges)
        program = Program(task, step.choices, step.exchanges, step.fixed_ms, groups)
        # Without tables of single domains first: then the others are often ruled out by what was found.
        bounds = []
        has_domains = any(choice.spread == "domain" for choice in step.choices)
        for domains in (False, True) if has_domains else (None,):
            self._budget.check()
            cutoff_ms = self._cutoff_ms(self._settings.target_gap * (1 - _PROGRAM_SHARE)) if domains else math.inf
            answer = self._solve(program, self._settings.target_gap * _PROGRAM_SHARE, domains, cutoff_ms)
            bounds.append(min(answer.bound_ms, cutoff_ms))
            if answer.chosen is not None:
                self._pack(step, answer, min(bounds))
        self.bound_ms = min(bounds)
        places = sum(choice.spread == "pieces" for choice in step.choices) * task.num_devices
        if self._gap(self.bound_ms) > self._settings.target_gap and places <= _MOST_PLACES:
            self._solve_on_devices(step)

    def _solve(self, program: Program, gap: float, domains: bool | None, cutoff_ms: float) -> Answer:
        limit_s = self._budget.left_s if self._budget.limited else math.inf
        return program.solve(
            gap=gap, domains=domains, cutoff_ms=cutoff_ms, nodes=self._settings.nodes, time_limit_s=limit_s
        )

    def _cutoff_ms(self, gap: float) -> float:
        """Return what plans must take less than to make the gap larger than this; no limit for an estimate."""
        return self._incumbent.cost_ms / (1 + gap) if self.is_linear else math.inf

    def _gap(self, bound_ms: float) -> float:
        """Return the gap of the best plan; infinite where there is no bound."""
        return self._incumbent.cost_ms / bound_ms - 1 if self.is_linear and bound_ms > 0 else math.inf

    def _pack(self, step: _Step, answer: Answer, bound_ms: float) -> None:
        """Place the kinds of an answer, and have the plans evaluated until the gap is closed."""
        assert answer.chosen is not None
        chosen = [step.choices[n] for n in answer.chosen]
        cuts: list[list[Choice]] = [[] for _ in self._task.tables]
        for choice in step.choices:
            if choice.spread == "pieces":
                cuts[choice.table].append(choice)
        packing = Packing(self._task, chosen, answer.places, cuts, step.exchanges, step.fixed_ms)
        packing.pack(self._budget)
        self._offer(packing.choices, [packing.places(n) for n in range(len(chosen))])
        for _ in range(0, self._settings.kicks, _KICKS):
            if self._gap(bound_ms) <= self._settings.target_gap:
                return
            self._budget.check()
            packing.kick(_KICKS, self._rng, self._budget)
            self._offer(packing.choices, [packing.places(n) for n in range(len(chosen))])

    def _offer(self, choices: list[Choice], places: list[list[int]]) -> None:
        shards = [
            shard
            for choice, of_choice in zip(choices, places, strict=True)
            for shard in shards_of(self._task, choice, of_choice)
        ]
        self._incumbent.offer(ShardingPlan.of(self._task, shards))

    def _solve_on_devices(self, step: _Step) -> None:
        """Solve the program over single devices, for plans that are better than the best one."""
        self._budget.check()
        devices = [[device] for device in range(self._task.num_devices)]
        program = Program(self._task, step.choices, step.exchanges, step.fixed_ms, devices)
        cutoff_ms = self._cutoff_ms(0.0) * (1 - _BETTER)
        answer = self._solve(program, self._settings.target_gap, None, cutoff_ms)
        self.bound_ms = max(self.bound_ms, min(answer.bound_ms, cutoff_ms))
        if answer.chosen is not None:
            self._offer([step.choices[n] for n in answer.chosen], answer.places)


def _fixed_ms(task: ShardingTask, costs: AdditiveCosts) -> Floats:
    """Return what an operator takes on a device besides its shards, forward and backward, shape (2,)."""
    table = task.tables[0]
    key = ShardKey(table.name, table.num_embeddings, table.embedding_dim)
    vectors = costs.vectors(costs.encode_keys(task, [key]))
    counts = np.rint(vectors[:, -LOADS:][:, SHARDS]).astype(np.int64)
    fixed: Floats = costs.operator_ms(vectors[:, :-LOADS], counts)[0]
    return fixed


def equal_devices(task: ShardingTask, exchanges: Exchanges) -> list[list[int]]:
    """Group devices that may be swapped, together with their domains: of equal memory and links, in domains alike."""
    links = exchanges.links
    alike = [
        (memory, *links.latency_ms[:, d].tolist(), *links.sent_ms[:, d].tolist(), *links.received_ms[:, d].tolist())
        for d, memory in enumerate(task.topology.memory_bytes)
    ]
    of_domain: dict[int, list[tuple[float, ...]]] = {}
    for device, kind in enumerate(alike):
        of_domain.setdefault(int(links.domains[device]), []).append(kind)
    groups: dict[tuple[object, ...], list[int]] = {}
    for device, kind in enumerate(alike):
        domain = tuple(sorted(of_domain[int(links.domains[device])]))
        groups.setdefault((kind, domain), []).append(device)
    return list(groups.values())
