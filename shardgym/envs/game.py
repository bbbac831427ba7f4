"""The rules of the environments for N episodes at once: the effect of actions, rewards, and how episodes end."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.envs.additive_scoring import plan_scorer
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.observation import Layout, Observation, observe
from shardgym.envs.placements import Placements
from shardgym.envs.reasons import why_invalid, why_nothing_fits
from shardgym.envs.shard_catalog import NOTHING, ShardCatalog, SplitLimits
from shardgym.errors import InputError, UnknownNameError
from shardgym.records import short_repr
from shardgym.tasks.task import ShardingTask

REWARDS = ("terminal", "dense")

#: Tasks that stay in the catalog; twice the number of episodes where that is more.
_TASKS_KEPT = 8192


@dataclass(frozen=True)
class Rules:
    """The settings of an environment that its episodes depend on, besides the cost model.

    Attributes:
        order: in which tables come up, one of `ORDERS`.
        reward: one of `REWARDS`.
        penalty: return of an episode that ends without a cost, in ms.
        relative_penalty: the same in reference costs of the task, instead of `penalty`; None to use that.
        plans: whether the infos of complete episodes hold the plan and its `PlanCost`.
        limits: how often shards may be halved; None where tables are placed whole and halving is not an action.

    Raises:
        InputError: penalties that are not negative and finite.
        UnknownNameError: no such reward.
    """

    order: str
    reward: str
    penalty: float
    relative_penalty: float | None = None
    limits: SplitLimits | None = None
    plans: bool = True

    def __post_init__(self) -> None:
        if self.reward not in REWARDS:
            raise UnknownNameError("reward", self.reward, REWARDS)
        _check_negative("penalty", self.penalty)
        if self.relative_penalty is not None:
            _check_negative("relative_penalty", self.relative_penalty)


def _check_negative(name: str, value: Any) -> None:
    if not (isinstance(value, numbers.Real) and math.isfinite(value) and value < 0):
        raise InputError(f"{name} {short_repr(value)} is not a negative number")


class StepResult(NamedTuple):
    """The outcome of a step of N episodes.

    Attributes:
        rewards: shape (N,).
        ends: the entries that the end of an episode adds to `info`, by row.
    """

    rewards: Floats
    ends: dict[int, dict[str, Any]]


class EpisodeState(NamedTuple):
    """A saved episode, independent of the game that it was saved from.

    Attributes:
        task: the task.
        task_index: of the task, -1 for a task given by option.
        placement: see `Placements.save`.
        partial: see `PlanScorer.save`.
        earned: sum of rewards so far.
        ended: whether the episode has ended.
        cost: of the complete plan, else None.
    """

    task: ShardingTask
    task_index: int
    placement: dict[str, npt.NDArray[Any]]
    partial: Any
    earned: float
    ended: bool
    cost: PlanCost | None


class Game:
    """N episodes by the same rules. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        rules: the rules.
        cost: scores plans.
        layout: of observations.
        num_envs: N.

    Attributes:
        placements: the state of the episodes.
        scorer: scores placements.
        task_index: of the tasks, shape (N,).
        earned: sums of rewards so far, shape (N,).
        penalty: returns of episodes that end without a cost, shape (N,).
        cost_of: `PlanCost` of complete plans where infos hold it, else None, shape (N,).
    """

    def __init__(self, rules: Rules, cost: CostModel, layout: Layout, num_envs: int = 1) -> None:
        self.rules = rules
        self.cost = cost
        self.layout = layout
        self.catalog = ShardCatalog(rules.order, layout.max_devices, rules.limits, replicas=cost.replicas)
        self.placements = Placements(num_envs, layout.max_devices, self.catalog, rules.limits, layout.max_shards)
        self.scorer = plan_scorer(cost, self.placements, partial=rules.reward == "dense", timed=layout.timed)
        self.task_index = np.zeros(num_envs, dtype=np.int64)
        self.earned: Floats = np.zeros(num_envs)
        self.penalty: Floats = np.full(num_envs, float(rules.penalty))
        self.cost_of: npt.NDArray[Any] = np.full(num_envs, None)
        #: Episodes whose first table fits nowhere; their first step ends them.
        self._stuck: Bools = np.zeros(num_envs, dtype=np.bool_)

    @property
    def ended(self) -> Bools:
        """Whether an episode has ended, or never began, shape (N,)."""
        return ~self.placements.active

    def start(self, rows: Ints, drawn: Sequence[tuple[int, ShardingTask]]) -> dict[int, str]:
        """Start episodes of tasks, given with their indices.

        Returns:
            The reason, by row, for each episode in which no action is valid from the beginning.
        """
        if len(self.catalog.tasks) > max(_TASKS_KEPT, 2 * len(self.earned)):
            self._forget_tasks(rows)
        self.task_index[rows] = [index for index, _ in drawn]
        self.placements.start(rows, np.array([self.catalog.number(task) for _, task in drawn]))
        self.scorer.start(rows)
        self._set_penalty(rows)
        self.earned[rows] = 0.0
        self.cost_of[rows] = None
        self._stuck[rows] = stuck = ~self.placements.allowed[rows].any(axis=1)
        return {row: why_nothing_fits(self.placements, self.rules.limits, row) for row in rows[stuck].tolist()}

    def masks(self) -> Bools:
        """Return which actions are valid, shape (N, actions); none after the end.

        If the first table fits nowhere, the devices are valid all the same, as an agent has to choose something.
        """
        masks = self.placements.allowed[:, :-1].copy()
        if np.count_nonzero(self._stuck):
            masks[self._stuck, : self.layout.max_devices] = self.placements.capacity[self._stuck] >= 0
        return masks

    def step(self, rows: Ints, actions: Ints, given: Sequence[Any]) -> StepResult:
        """Take one action in each of these episodes.

        Args:
            rows: episodes that have not ended.
            actions: of all N episodes, shape (N,); invalid ones may be any number.
            given: the same as the caller passed them, for messages.
        """
        p = self.placements
        result = StepResult(np.zeros(len(self.earned)), {})
        # Actions out of range share the last column, which is never allowed. Unsigned, negative numbers are huge.
        chosen = np.minimum(actions[rows].view(np.uint64), self.layout.actions).view(np.int64)
        allowed = p.allowed[rows, chosen]
        if np.count_nonzero(allowed) < len(rows):
            for row in rows[~allowed].tolist():
                stuck = bool(self._stuck[row])
                outcome = "no_device_fits" if stuck else "invalid_action"
                limits = self.rules.limits
                reason = why_nothing_fits(p, limits, row) if stuck else why_invalid(p, limits, row, given[row])
                self._end(result, row, self.penalty[row], outcome, reason=reason)
            rows = rows[allowed]
            chosen = chosen[allowed]
        placing = rows
        devices = chosen
        if self.rules.limits is not None:
            halving = chosen == self.layout.max_devices + HALVE
            if np.count_nonzero(halving):
                p.halve(rows[halving])
                placing = rows[~halving]
                devices = chosen[~halving]
            if self.rules.limits.every_kind:
                placing, devices = self._change_kinds(placing, devices)
        if len(placing):
            self.scorer.place(placing, devices)
            if len(placing) == 1:
                p.place(placing[0], devices[0])
            else:
                p.place(placing, devices)
        p.update()
        going = np.logical_or.reduce(p.allowed[rows], axis=1)
        complete = rows[:0]
        if np.count_nonzero(going) < len(rows):
            halted = rows[~going]
            is_complete = p.next[halted] == NOTHING
            complete = halted[is_complete]
            for row in halted[~is_complete].tolist():
                reason = why_nothing_fits(p, self.rules.limits, row)
                self._end(result, row, self.penalty[row], "no_device_fits", reason=reason)
        if self.rules.plans:
            self._finish(result, complete)
            complete = complete[:0]
        paid = complete
        if self.rules.reward == "dense":
            placing = placing[p.active[placing] & (p.next[placing] != NOTHING)]
            paid = np.concatenate([complete, placing])
        self._pay(result, paid, len(complete))
        return result

    def observe(self) -> Observation:
        """Return the observations of all episodes."""
        time_shares = self.scorer.time_shares() if self.layout.timed else None
        return observe(self.placements, self.layout, self.masks(), time_shares)

    def infos(self) -> dict[str, npt.NDArray[Any]]:
        """Return the entries of `info` at every step, each of shape (N,)."""
        p = self.placements
        task = self.catalog.task
        shard = self.catalog.shard
        infos = {
            "task_index": self.task_index.copy(), "task_hash": task["hash"][p.task], "task": task["name"][p.task],
            "table": shard["name"][p.next], "placed": p.placed.copy(),
        }  # fmt: skip
        if self.rules.limits is not None:
            infos |= {"width": shard["width"][p.next], "splits": p.splits.copy()}
        if p.kinds is not None:
            holders = np.where(p.next == NOTHING, 0, self.catalog.kind["holders"][p.next])
            infos |= {"rows": shard["rows"][p.next], "holders": holders}
        return infos

    def save(self, row: int) -> EpisodeState:
        """Save an episode."""
        p = self.placements
        return EpisodeState(
            self.catalog.tasks[p.task[row]], int(self.task_index[row]), p.save(row), self.scorer.save(row),
            float(self.earned[row]), not p.active[row], self.cost_of[row],
        )  # fmt: skip

    def load(self, row: int, state: EpisodeState) -> None:
        """Restore an episode."""
        self.placements.load(row, self.catalog.number(state.task), state.placement, active=not state.ended)
        self.placements.update()
        self.scorer.load(row, state.partial)
        self._set_penalty(np.array([row]))
        self.task_index[row] = state.task_index
        self.earned[row] = state.earned
        self.cost_of[row] = state.cost
        self._stuck[row] = not state.ended and not self.placements.allowed[row].any()

    def copy(self, row: int, rows: Ints) -> None:
        """Make other episodes copies of one."""
        self.placements.copy(row, rows)
        self.scorer.copy(row, rows)
        for array in (self.penalty, self.task_index, self.earned, self.cost_of, self._stuck):
            array[rows] = array[row]

    def _set_penalty(self, rows: Ints) -> None:
        if self.rules.relative_penalty is not None:
            self.penalty[rows] = self.rules.relative_penalty * self.scorer.references_ms(rows)

    def _change_kinds(self, rows: Ints, actions: Ints) -> tuple[Ints, Ints]:
        """Cut rows and replicate where these are the actions; return the rows that place their shard, and devices."""
        p = self.placements
        cutting = actions == self.layout.max_devices + CUT_ROWS
        copying = actions == self.layout.max_devices + REPLICATE
        p.become(rows[cutting], "by_rows")
        p.become(rows[copying], "replica")
        # A replica begins with device 0.
        return rows[~cutting], np.where(copying, 0, actions)[~cutting]

    def _finish(self, result: StepResult, rows: Ints) -> None:
        """Score complete plans."""
        if not len(rows):
            return
        plans, costs = self.scorer.finish(rows)
        for row, plan, cost in zip(rows.tolist(), plans, costs, strict=True):
            self.cost_of[row] = cost
            if cost.feasible:
                self._end_complete(result, row, cost.total_ms, plan=plan, cost=cost)
            else:
                self._end(result, row, self.penalty[row], "no_cost", reason=str(cost.reason), plan=plan, cost=cost)

    def _pay(self, result: StepResult, rows: Ints, complete: int) -> None:
        """End complete placements, the first ones of these, and reward the others: minus the increase of their cost."""
        if not len(rows):
            return
        ms, reasons = self.scorer.totals_ms(rows, complete)
        for row, reason in reasons.items():
            self._end(result, row, self.penalty[row], "no_cost", reason=reason)
        known = np.isfinite(ms)
        for row, total_ms in zip(rows[:complete].tolist(), ms[:complete].tolist(), strict=True):
            if row not in reasons:
                self._end_complete(result, row, total_ms)
        known[:complete] = False
        rows = rows[known]
        earned = -ms[known]
        result.rewards[rows] = earned - self.earned[rows]
        self.earned[rows] = earned

    def _end_complete(self, result: StepResult, row: int, cost_ms: float, **info: Any) -> None:
        """End an episode whose plan has a cost."""
        self._end(result, row, max(-cost_ms, self.penalty[row]), "complete", cost_ms=cost_ms, **info)

    def _end(
        self, result: StepResult, row: int, earned: float, outcome: str, cost_ms: float = math.inf, **info: Any
    ) -> None:
        """End an episode with the reward that makes its return `earned`."""
        result.rewards[row] = earned - self.earned[row]
        is_success = float(outcome == "complete")
        result.ends[row] = {"outcome": outcome, "is_success": is_success, "cost_ms": cost_ms, **info}
        self.earned[row] = earned
        self._stuck[row] = False
        self.placements.end(row)

    def _forget_tasks(self, rows: Ints) -> None:
        """Clear the catalog of all tasks except those of the other episodes."""
        kept = np.unique(np.delete(self.placements.task, rows))
        numbers = np.zeros(len(self.catalog.tasks), dtype=np.int64)
        numbers[kept] = np.arange(len(kept))
        shards = self.catalog.keep(kept)
        self.placements.renumber(numbers, shards)
        self.scorer.keep(kept, shards)
