"""The rules of rows in tiers for N episodes at once: which cut points are valid, and what plans they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.envs.game import Game, Rules, StepResult
from shardgym.envs.observation import Layout, Observation
from shardgym.envs.reference import references_ms
from shardgym.envs.tier_catalog import NO_TABLE, TASK_FEATURES, TierCatalog
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Tasks that stay in the catalog; twice the number of episodes where that is more.
_TASKS_KEPT = 1024


@dataclass(frozen=True)
class TierLayout(Layout):
    """The limits that set the shapes of observations.

    Attributes:
        levels: of cut points, K.
    """

    levels: int = 11

    @property
    def actions(self) -> int:
        """One per level."""
        return self.levels


class TierState(NamedTuple):
    """A saved episode, independent of the game that it was saved from.

    Attributes:
        task: the task.
        task_index: of the task, -1 for a task given by option.
        chosen: levels of the tables in their order, shape (T, 2).
        turn: tables that are cut.
        second: whether the second step of the next table is due.
        used: bytes of the tables that are cut.
        earned: sum of rewards so far.
        ended: whether the episode has ended.
        cost: of the complete plan, else None.
    """

    task: ShardingTask
    task_index: int
    chosen: Ints
    turn: int
    second: bool
    used: float
    earned: float
    ended: bool
    cost: PlanCost | None


class Cuts:
    """How far N episodes are. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        num_envs: N.
        catalog: of tasks.
        levels: of cut points, K.

    Attributes:
        task: number of the task in the catalog, shape (N,).
        begun: whether there has been an episode, shape (N,).
        active: whether it has not ended, shape (N,).
        allowed: which actions are valid, with one more, always false, for those out of range, shape (N, K + 1).
        chosen: levels of tables, of the first cut point and the second, shape (N, T, 2); T grows with the tasks.
        turn: tables that are cut, shape (N,).
        second: whether the second step of the next table is due, shape (N,).
        used: bytes of the tables that are cut, shape (N,).
    """

    def __init__(self, num_envs: int, catalog: TierCatalog, levels: int) -> None:
        self._catalog = catalog
        self.begun, self.active, self.second = np.zeros((3, num_envs), dtype=np.bool_)
        self.task, self.turn = np.zeros((2, num_envs), dtype=np.int64)
        self.allowed: Bools = np.zeros((num_envs, levels + 1), dtype=np.bool_)
        self.chosen: Ints = np.zeros((num_envs, 1, 2), dtype=np.int64)
        self.used: Floats = np.zeros(num_envs)

    @property
    def next(self) -> Ints:
        """The table to cut now, `NO_TABLE` when none is left or no episode has begun, shape (N,)."""
        task = self._catalog.task
        if not len(task):
            return np.full(len(self.task), NO_TABLE)
        return np.where(self.turn < task["tables"][self.task], task["first"][self.task] + self.turn, NO_TABLE)

    @property
    def first_levels(self) -> Ints:
        """Level of the first cut point of the table to cut, 0 before it is chosen, shape (N,)."""
        turn = np.minimum(self.turn, self.chosen.shape[1] - 1)
        return np.where(self.second, self.chosen[np.arange(len(turn)), turn, 0], 0)

    def start(self, rows: Ints, tasks: Ints) -> None:
        """Begin with tasks, whose numbers are given, shape (n,)."""
        missing = int(self._catalog.task["tables"][tasks].max()) - self.chosen.shape[1]
        if missing > 0:
            self.chosen = np.pad(self.chosen, ((0, 0), (0, missing), (0, 0)))
        self.task[rows] = tasks
        self.chosen[rows] = 0
        self.turn[rows] = 0
        self.second[rows] = False
        self.used[rows] = 0.0
        self.begun[rows] = True
        self.active[rows] = True
        self.update()

    def choose(self, rows: Ints, levels: Ints) -> None:
        """Take levels that are valid, shape (n,); then `update`."""
        turn = self.turn[rows]
        self.chosen[rows, turn, self.second[rows].astype(np.int64)] = levels
        done = self.second[rows] | ~self._catalog.task["nodes"][self.task[rows]]
        self.second[rows] = ~done
        cut = rows[done]
        self.chosen[cut, turn[done], 1] = levels[done]
        first = self.chosen[cut, turn[done], 0]
        self.used[cut] += self._catalog.table["num_bytes"][self.next[cut], first, levels[done]]
        self.turn[cut] += 1

    def update(self) -> None:
        """Recompute which levels are valid."""
        table = self._catalog.table
        at = self.next
        needed = np.where(self.second[:, None], table["num_bytes"][at, self.first_levels], table["cheapest"][at])
        needed = needed + (self.used + table["after"][at])[:, None]
        self.allowed[:, :-1] = (needed <= self._catalog.task["room"][self.task][:, None]) & self.active[:, None]

    def end(self, row: int) -> None:
        """End an episode: no action is valid any more."""
        self.active[row] = False
        self.allowed[row] = False


class TierScores:
    """Reference costs of the tasks of episodes.

    Args:
        game: whose episodes.
    """

    def __init__(self, game: TierGame) -> None:
        self._game = game
        self._references: dict[str, float] = {}

    def references_ms(self, rows: Ints) -> Floats:
        """Return the reference costs of tasks, each priced once, shape (n,); see `shardgym.envs.reference`.

        Raises:
            InputError: the cost model has no time for one.
        """
        tasks = [self._game.task_of(row) for row in rows.tolist()]
        for task in tasks:
            if task.digest not in self._references:
                self._references[task.digest] = float(references_ms(self._game.cost, None, [task])[0])
        return np.array([self._references[task.digest] for task in tasks])


class TierGame(Game):
    """N episodes of `RowTiersEnv`. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        rules: of them rewards and penalties count.
        cost: scores plans.
        layout: of observations.
        num_envs: N.
    """

    def __init__(self, rules: Rules, cost: CostModel, layout: Layout, num_envs: int = 1) -> None:
        assert isinstance(layout, TierLayout)
        self.rules = rules
        self.cost = cost
        self.layout = layout
        self._levels = layout.levels
        self._tiers = TierCatalog(layout.levels)
        self._cuts = Cuts(num_envs, self._tiers, layout.levels)
        self.placements: Any = self._cuts
        self.scorer: Any = TierScores(self)
        self.task_index = np.zeros(num_envs, dtype=np.int64)
        self.earned = np.zeros(num_envs)
        self.penalty = np.full(num_envs, float(rules.penalty))
        self.cost_of = np.full(num_envs, None)
        self._stuck = np.zeros(num_envs, dtype=np.bool_)

    def task_of(self, row: int) -> ShardingTask:
        """Return the task of an episode that has begun."""
        return self._tiers.tasks[int(self._cuts.task[row])]

    def start(self, rows: Ints, drawn: Sequence[tuple[int, ShardingTask]]) -> dict[int, str]:
        """See `Game`."""
        if len(self._tiers.tasks) > max(_TASKS_KEPT, 2 * len(self.earned)):
            self._forget_tasks(rows)
        self.task_index[rows] = [index for index, _ in drawn]
        self.earned[rows] = 0.0
        self.cost_of[rows] = None
        self._cuts.start(rows, np.array([self._tiers.number(task) for _, task in drawn]))
        self._set_penalty(rows)
        self._stuck[rows] = stuck = ~self._cuts.allowed[rows].any(axis=1)
        return {row: self._why_nothing_fits(row) for row in rows[stuck].tolist()}

    def masks(self) -> Bools:
        """See `Game`."""
        masks: Bools = self._cuts.allowed[:, :-1].copy()
        masks[self._stuck] = True
        return masks

    def step(self, rows: Ints, actions: Ints, given: Sequence[Any]) -> StepResult:
        """See `Game`."""
        cuts = self._cuts
        result = StepResult(np.zeros(len(self.earned)), {})
        # Actions out of range share the last column, which is never allowed. Unsigned, negative numbers are huge.
        chosen = np.minimum(actions[rows].view(np.uint64), self._levels).view(np.int64)
        allowed = cuts.allowed[rows, chosen]
        for row in rows[~allowed].tolist():
            if self._stuck[row]:
                self._end(result, row, self.penalty[row], "no_device_fits", reason=self._why_nothing_fits(row))
            else:
                self._end(result, row, self.penalty[row], "invalid_action", reason=self._why_invalid(row, given[row]))
        rows = rows[allowed]
        if len(rows):
            before = cuts.turn[rows]
            cuts.choose(rows, chosen[allowed])
            cuts.update()
            complete = cuts.next[rows] == NO_TABLE
            self._score(result, rows[complete])
            if self.rules.reward == "dense":
                self._pay_cut(result, rows[~complete & (cuts.turn[rows] > before)])
        return result

    def observe(self) -> Observation:
        """See `Game`."""
        cuts = self._cuts
        table = self._tiers.table
        task = self._tiers.task
        at = cuts.next
        features = table["features"][at]
        first = cuts.first_levels
        features[:, 6] = cuts.second & (at != NO_TABLE)
        features[:, 7] = first / (self._levels - 1)
        num_bytes = table["num_bytes"][at]
        alone = np.where(at == NO_TABLE, 0.0, num_bytes[:, 0, 0])
        waiting = alone + table["after"][at]
        room = task["room"][cuts.task]
        free = room - cuts.used - waiting
        levels = np.zeros((len(at), self._levels, 3))
        levels[:, :, 0] = table["rows"][at] / np.maximum(table["rows"][at, -1], 1)[:, None]
        # Pairs that are no choice take more than all that is free.
        both = np.stack([num_bytes.diagonal(axis1=1, axis2=2), num_bytes[np.arange(len(at)), first]], axis=2)
        levels[:, :, 1:] = (both - alone[:, None, None]) / np.maximum(free, 1.0)[:, None, None]
        levels[at == NO_TABLE] = 0.0
        of_task = task["features"][cuts.task]
        of_task[:, TASK_FEATURES.index("tables_cut")] = cuts.turn / task["tables"][cuts.task]
        of_task[:, TASK_FEATURES.index("free_share")] = free / np.maximum(room - task["least"][cuts.task], 1.0)
        arrays = {"table": features, "levels": levels.reshape(len(at), -1), "task": of_task}
        found: Observation = {name: np.clip(values, 0.0, 1.0).astype(np.float32) for name, values in arrays.items()}
        return found | {"action_mask": self.masks().view(np.int8)}

    def infos(self) -> dict[str, npt.NDArray[Any]]:
        """See `Game`."""
        cuts = self._cuts
        task = self._tiers.task
        table = self._tiers.table
        at = cuts.next
        everywhere = np.where(cuts.second, table["rows"][at, cuts.first_levels], 0)
        return {
            "task_index": self.task_index.copy(), "task_hash": task["hash"][cuts.task],
            "task": task["name"][cuts.task], "table": table["name"][at], "placed": cuts.turn.copy(),
            "rows_everywhere": everywhere,
        }  # fmt: skip

    def save(self, row: int) -> TierState:  # type: ignore[override]
        """See `Game`."""
        cuts = self._cuts
        task = self.task_of(row)
        return TierState(
            task, int(self.task_index[row]), cuts.chosen[row, : task.num_tables].copy(), int(cuts.turn[row]),
            bool(cuts.second[row]), float(cuts.used[row]), float(self.earned[row]), not cuts.active[row],
            self.cost_of[row],
        )  # fmt: skip

    def load(self, row: int, state: TierState) -> None:  # type: ignore[override]
        """See `Game`."""
        cuts = self._cuts
        cuts.start(np.array([row]), np.array([self._tiers.number(state.task)]))
        cuts.chosen[row, : len(state.chosen)] = state.chosen
        cuts.turn[row] = state.turn
        cuts.second[row] = state.second
        cuts.used[row] = state.used
        cuts.active[row] = not state.ended
        cuts.update()
        self.task_index[row] = state.task_index
        self.earned[row] = state.earned
        self.cost_of[row] = state.cost
        self._set_penalty(np.array([row]))
        self._stuck[row] = not state.ended and not cuts.allowed[row].any()

    def partial_plan(self, row: int) -> tuple[ShardingTask, ShardingPlan | None]:
        """Return the tables of an episode that are cut as a task of their own with its plan; None where there are none.

        Of a complete plan that is the plan itself.
        """
        cuts = self._cuts
        task = self.task_of(row)
        done = int(cuts.turn[row])
        if done == task.num_tables:
            return task, self._tiers.plan(int(cuts.task[row]), cuts.chosen[row, :done])
        return self._tiers.part(int(cuts.task[row]), cuts.chosen[row, :done]) if done else (task, None)

    def _pay_cut(self, result: StepResult, rows: Ints) -> None:
        """Reward the cuts of incomplete plans: minus the increase of what the tables that are cut take by themselves.

        Those of one task and as many tables are priced together.
        """
        cuts = self._cuts
        for task, done in np.unique(np.stack([cuts.task[rows], cuts.turn[rows]], axis=1), axis=0).tolist():
            group = rows[(cuts.task[rows] == task) & (cuts.turn[rows] == done)].tolist()
            parts = [self._tiers.part(task, cuts.chosen[row, :done]) for row in group]
            costs = self.cost.evaluate(parts[0][0], [plan for _, plan in parts])
            for row, cost in zip(group, costs, strict=True):
                if cost.feasible:
                    result.rewards[row] = -cost.total_ms - self.earned[row]
                    self.earned[row] = -cost.total_ms
                else:
                    self._end(result, row, self.penalty[row], "no_cost", reason=str(cost.reason))

    def _score(self, result: StepResult, rows: Ints) -> None:
        """Score complete plans, those of one task together."""
        for task in np.unique(self._cuts.task[rows]).tolist():
            group = rows[self._cuts.task[rows] == task].tolist()
            tables = self._tiers.tasks[task].num_tables
            plans = [self._tiers.plan(task, self._cuts.chosen[row, :tables]) for row in group]
            costs = self.cost.evaluate(self._tiers.tasks[task], plans)
            for row, plan, cost in zip(group, plans, costs, strict=True):
                self.cost_of[row] = cost
                if cost.feasible:
                    self._end_complete(result, row, cost.total_ms, plan=plan, cost=cost)
                else:
                    reason = str(cost.reason)
                    self._end(result, row, self.penalty[row], "no_cost", reason=reason, plan=plan, cost=cost)

    def _forget_tasks(self, rows: Ints) -> None:
        """Clear the catalog of all tasks except those of the other episodes, which are saved and restored."""
        others = np.setdiff1d(np.flatnonzero(self._cuts.begun), rows).tolist()
        states = [self.save(row) for row in others]
        self._tiers.clear()
        self._cuts.task[:] = 0
        for row, state in zip(others, states, strict=True):
            self.load(row, state)

    def _why_nothing_fits(self, row: int) -> str:
        task = self._tiers.task
        number = self._cuts.task[row]
        return (
            f"tables cut by rows over all devices take up to {task['least'][number]:.0f} bytes on a device, and the "
            f"smallest has {task['room'][number]:.0f}"
        )

    def _why_invalid(self, row: int, given: Any) -> str:
        name = self._tiers.table["name"][self._cuts.next[row]]
        valid = ", ".join(map(str, np.flatnonzero(self._cuts.allowed[row]).tolist()))
        return f"level {given} of table '{name}' is not valid: expected one of {valid}"
