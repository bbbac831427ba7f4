"""The rules of the environments for N episodes at once: effects of actions, rewards, and ends of episodes."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.envs.additive_scoring import plan_scorer
from shardgym.envs.features import BYTES
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.observation import Layout, Observation, observe
from shardgym.envs.placements import Placements
from shardgym.envs.shard_catalog import NOTHING, ShardCatalog, SplitLimits
from shardgym.errors import InputError, UnknownNameError
from shardgym.tasks.task import ShardingTask

REWARDS = ("terminal", "dense", "relative")

#: Tasks after which those that were played are forgotten when all episodes start anew.
_TASKS_KEPT = 8192


@dataclass(frozen=True)
class Rules:
    """Settings of an environment that determine its episodes, besides the cost model.

    Raises:
        InputError: the penalty is not negative and finite.
        UnknownNameError: no such reward.
    """

    order: str  #: order of tables, one of `ORDERS`
    reward: str  #: one of `REWARDS`
    #: Return of an episode that ends without a cost, in ms, or in reference costs if rewards are relative.
    penalty: float
    #: Limits on halvings; None if tables are placed whole and halving is not an action.
    limits: SplitLimits | None = None
    plans: bool = True  #: whether the infos of complete episodes hold the plan and its `PlanCost`

    def __post_init__(self) -> None:
        if self.reward not in REWARDS:
            raise UnknownNameError("reward", self.reward, REWARDS)
        if not -math.inf < self.penalty < 0:
            raise InputError(f"penalty {self.penalty} is not a negative number")


class StepResult(NamedTuple):
    """The outcome of a step of N episodes."""

    rewards: Floats  #: shape (N,)
    ends: dict[int, dict[str, Any]]  #: the entries that the end of an episode adds to `info`, by row


class Game:
    """N episodes by the same rules, with N = `num_envs`. Methods take `rows`, numbers of episodes, shape (n,).

    Raises:
        InputError: dense rewards or times are required, but the cost is not additive.
        UnknownNameError: no such order.
    """

    catalog: ShardCatalog  #: tasks and shards by number
    placements: Placements  #: the state of the episodes

    def __init__(self, rules: Rules, cost: CostModel, layout: Layout, num_envs: int = 1) -> None:
        self.rules = rules
        self.cost = cost
        self.layout = layout
        #: Of the tasks, shape (N,).
        self.task_index = np.zeros(num_envs, dtype=np.int64)
        #: What rewards are divided by, the tasks' reference costs or 1 ms, shape (N,).
        self.unit_ms: Floats = np.ones(num_envs)
        #: Sums of rewards so far, in ms, shape (N,).
        self.earned: Floats = np.zeros(num_envs)
        #: `PlanCost` of complete plans where infos hold it, else None, shape (N,).
        self.cost_of: npt.NDArray[Any] = np.full(num_envs, None)
        #: Episodes whose first table fits nowhere; their first step ends them.
        self._stuck: Bools = np.zeros(num_envs, dtype=np.bool_)
        self._forget_tasks()

    def _forget_tasks(self) -> None:
        """Begin with an empty catalog."""
        layout = self.layout
        rules = self.rules
        self.catalog = ShardCatalog(rules.order, layout.max_devices, rules.limits, replicas=self.cost.replicas)
        num_envs = len(self.earned)
        self.placements = Placements(num_envs, layout.max_devices, self.catalog, rules.limits, layout.max_shards)
        self.scorer = plan_scorer(self.cost, self.placements, rules.reward, timed=layout.timed)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the episodes; the copy shares the cost model and the append-only figures of tasks."""
        memo |= {id(shared): shared for shared in (self.cost, self.catalog, *self.scorer.shared)}
        copied = memo[id(self)] = copy.copy(self)
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    @property
    def ended(self) -> Bools:
        """Whether an episode has ended, or never began, shape (N,)."""
        return ~self.placements.active

    def start(self, rows: Ints, drawn: Sequence[tuple[int, ShardingTask]]) -> dict[int, str]:
        """Start episodes of tasks, given with their indices; return by row why no first action is valid, if so.

        Raises:
            InputError: rewards are relative, and a task has no reference cost.
        """
        if len(rows) == len(self.earned) and len(self.catalog.tasks) > _TASKS_KEPT:
            self._forget_tasks()
        self.task_index[rows] = [index for index, _ in drawn]
        self.placements.start(rows, np.array([self.catalog.number(task) for _, task in drawn]))
        self.scorer.start(rows)
        if self.rules.reward == "relative":
            self.unit_ms[rows] = self.scorer.references_ms(rows)
        self.earned[rows] = 0.0
        self.cost_of[rows] = None
        self._stuck[rows] = stuck = ~self.placements.allowed[rows].any(axis=1)
        return {row: self._why_nothing_fits(row) for row in rows[stuck].tolist()}

    def masks(self) -> Bools:
        """Return the valid actions, shape (N, actions); none after the end.

        If the first table fits nowhere, the task's devices count as valid, because agents need some valid action.
        """
        masks = self.placements.allowed[:, :-1].copy()
        if np.count_nonzero(self._stuck):
            masks[self._stuck, : self.layout.max_devices] = self.placements.capacity[self._stuck] >= 0
        return masks

    def step(self, rows: Ints, actions: Ints) -> StepResult:
        """Take one action in each of these episodes.

        Args:
            rows: episodes that have not ended.
            actions: actions of all N episodes, shape (N,); an invalid one, which may be any number, ends its episode.
        """
        p = self.placements
        result = StepResult(np.zeros(len(self.earned)), {})
        # Actions out of range share the last column, which is never allowed. Unsigned, negative numbers are huge.
        chosen = np.minimum(actions[rows].view(np.uint64), self.layout.actions).view(np.int64)
        allowed = p.allowed[rows, chosen]
        if np.count_nonzero(allowed) < len(rows):
            for row in rows[~allowed].tolist():
                if self._stuck[row]:
                    self._end(result, row, "no_device_fits", reason=self._why_nothing_fits(row))
                else:
                    reason = f"action {actions[row]} is not valid for {self._next_shard(row)}: see the action mask"
                    self._end(result, row, "invalid_action", reason=reason)
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
                self._end(result, row, "no_device_fits", reason=self._why_nothing_fits(row))
        if self.rules.plans:
            if len(complete):
                plans, costs = self.scorer.finish(complete)
                for row, plan, cost in zip(complete.tolist(), plans, costs, strict=True):
                    self.cost_of[row] = cost
                    if cost.feasible:
                        self._end(result, row, "complete", cost.total_ms, plan=plan, cost=cost)
                    else:
                        self._end(result, row, "no_cost", reason=str(cost.reason), plan=plan, cost=cost)
            complete = complete[:0]
        paid = complete
        if self.scorer.partial:
            placing = placing[p.active[placing] & (p.next[placing] != NOTHING)]
            paid = np.concatenate([complete, placing])
        self._pay(result, paid, len(complete))
        if self.rules.reward == "relative":
            np.divide(result.rewards, self.unit_ms, out=result.rewards)
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
        if self.rules.reward == "relative":
            infos["reference_ms"] = self.unit_ms.copy()
        return infos

    def copy(self, row: int, rows: Ints) -> None:
        """Make other episodes copies of one."""
        self.placements.copy(row, rows)
        self.scorer.copy(row, rows)
        for array in (self.unit_ms, self.task_index, self.earned, self.cost_of, self._stuck):
            array[rows] = array[row]

    def _change_kinds(self, rows: Ints, actions: Ints) -> tuple[Ints, Ints]:
        """Apply actions that cut rows or replicate; return the rows that place their shard, and their devices."""
        p = self.placements
        cutting = actions == self.layout.max_devices + CUT_ROWS
        copying = actions == self.layout.max_devices + REPLICATE
        p.become(rows[cutting], "by_rows")
        p.become(rows[copying], "replica")
        # A replica begins with device 0.
        return rows[~cutting], np.where(copying, 0, actions)[~cutting]

    def _pay(self, result: StepResult, rows: Ints, complete: int) -> None:
        """End the first `complete` placements, and reward the others with minus the increase of their cost."""
        if not len(rows):
            return
        ms, reasons = self.scorer.totals_ms(rows, complete)
        for row, total_ms in zip(rows[:complete].tolist(), ms[:complete].tolist(), strict=True):
            if row in reasons:
                self._end(result, row, "no_cost", reason=reasons[row])
            else:
                self._end(result, row, "complete", total_ms)
        rows = rows[complete:]
        earned = -ms[complete:]
        result.rewards[rows] = earned - self.earned[rows]
        self.earned[rows] = earned

    def _end(self, result: StepResult, row: int, outcome: str, cost_ms: float = math.inf, **info: Any) -> None:
        """End an episode with a reward that makes its return the larger of minus the cost and the penalty."""
        earned = max(-cost_ms, self.rules.penalty * float(self.unit_ms[row]))
        result.rewards[row] = earned - self.earned[row]
        if self.rules.reward == "relative":
            info["ratio"] = cost_ms / float(self.unit_ms[row])
        is_success = float(outcome == "complete")
        result.ends[row] = {"outcome": outcome, "is_success": is_success, "cost_ms": cost_ms, **info}
        self.earned[row] = earned
        self._stuck[row] = False
        self.placements.end(row)

    def _why_nothing_fits(self, row: int) -> str:
        """Return why no action is valid: the largest room left, and whether the shard might have been cut."""
        p = self.placements
        room = p.capacity[row] - p.loads[row, :, BYTES]
        device = int(room.argmax())
        limits = self.rules.limits
        return (
            f"{self._next_shard(row)} of {int(self.catalog.shard['bytes'][p.next[row]])} bytes fits on no device: the "
            f"largest room left is {int(room[device])} bytes on device {device}"
            f"{', and it can be cut no further' if limits and limits != SplitLimits(0) else ''}"
        )

    def _next_shard(self, row: int) -> str:
        """Name the next shard, with its columns unless it has all of the table's."""
        p = self.placements
        name, width, share = (self.catalog.shard[of][p.next[row]] for of in ("name", "width", "width_share"))
        start = int(p.starts[row, p.placed[row]])
        return f"table '{name}'" if share == 1 else f"columns {start} to {start + int(width) - 1} of table '{name}'"
