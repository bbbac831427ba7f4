"""The rules of rows in tiers for N episodes at once: which cut points are valid, and what plans they make."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.envs.features import LOG_DIM, LOG_POOLING, LOG_ROWS
from shardgym.envs.game import Game, Rules, StepResult
from shardgym.envs.observation import Layout, Observation
from shardgym.envs.reference import references_ms
from shardgym.plan import ShardingPlan
from shardgym.row_tiers import Tiers, most_bytes, node_size, rows_of_shares, tier_plan
from shardgym.task import ShardingTask

#: Entries of `obs["table"]`, see `RowTiersEnv`.
TABLE_FEATURES = (
    "log_rows", "log_dim", "log_pooling", "bytes_share", "lookup_share", "unpooled", "second_step", "everywhere_share",
)  # fmt: skip
#: Entries of `obs["task"]`.
TASK_FEATURES = ("tables_cut", "free_share", "log_nodes", "log_node_size", "bandwidth_ratio")
#: Tasks whose levels are kept besides those of running episodes.
_TASKS_KEPT = 256


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
        earned: sum of rewards so far.
        ended: whether the episode has ended.
        cost: of the complete plan, else None.
    """

    task: ShardingTask
    task_index: int
    chosen: Ints
    turn: int
    second: bool
    earned: float
    ended: bool
    cost: PlanCost | None


class TierTask:
    """A task with the levels of its tables, in the order in which they come up.

    Args:
        task: the task.
        levels: their number K.

    Attributes:
        task: the task.
        order: positions of tables in the task, shape (T,).
        rows: of every level, shape (T, K).
        num_bytes: that a table takes at most on a device, by the levels of both cut points, infinite for pairs that are
            no choice, shape (T, K, K).
        new: whether a level has more rows than the one before, shape (T, K).
        features: of tables, without what depends on the episode, shape (T, 8); and of the task, shape (5,).
        has_nodes: whether there is a tier of nodes.
        room: bytes of the smallest device.
        least: bytes that tables from each on take without copies, shape (T + 1,).
    """

    def __init__(self, task: ShardingTask, levels: int) -> None:
        self.task = task
        sizes = [task.table_bytes(table) for table in task.tables]
        lookups = [table.embedding_dim * table.pooling_factor for table in task.tables]
        self.order = np.argsort(-np.array(sizes), kind="stable")
        tables = [task.tables[position] for position in self.order.tolist()]
        self.has_nodes = node_size(task) > 0
        shares = np.linspace(0, 1, levels).tolist()
        self.rows = np.array([[0, *rows_of_shares(table, shares[1:-1]), table.num_embeddings] for table in tables])
        self.new = np.diff(self.rows, axis=1, prepend=-1) > 0
        self.num_bytes: Floats = np.full((len(tables), levels, levels), np.inf)
        for number, table in enumerate(tables):
            for first in np.flatnonzero(self.new[number]).tolist():
                lasts = range(first, levels) if self.has_nodes else (first,)
                for last in (level for level in lasts if self.new[number, level]):
                    tiers = Tiers(int(self.rows[number, first]), int(self.rows[number, last]))
                    self.num_bytes[number, first, last] = most_bytes(task, table, tiers)
        self.room = float(min(task.capacity_bytes))
        alone = self.num_bytes[:, 0, 0]
        self.least = np.append(np.cumsum(alone[::-1])[::-1], 0.0)
        self.features = np.zeros((len(tables), len(TABLE_FEATURES)))
        self.features[:, 0] = [math.log2(table.num_embeddings) / LOG_ROWS for table in tables]
        self.features[:, 1] = [math.log2(table.embedding_dim) / LOG_DIM for table in tables]
        self.features[:, 2] = [math.log1p(table.pooling_factor) / LOG_POOLING for table in tables]
        self.features[:, 3] = np.array(sizes)[self.order] / sum(sizes)
        self.features[:, 4] = np.array(lookups)[self.order] / (sum(lookups) or 1.0)
        self.features[:, 5] = [not table.is_pooled for table in tables]
        topology = task.topology
        size = min(topology.fast_domain_size, task.num_devices)
        nodes = -(-task.num_devices // size)
        ratio = min(1.0, topology.inter_bandwidth / topology.intra_bandwidth)
        self.task_features = np.array([0.0, 0.0, math.log2(nodes) / 16, math.log2(size) / 16, ratio])

    def bytes_of(self, chosen: Ints, turn: int) -> float:
        """Return what the first `turn` tables take with these levels, shape of `chosen` (T, 2)."""
        return float(self.num_bytes[np.arange(turn), chosen[:turn, 0], chosen[:turn, 1]].sum())

    def plan(self, chosen: Ints) -> ShardingPlan:
        """Return the plan with these levels, shape (T, 2)."""
        tiers = [Tiers(0, 0)] * len(self.order)
        for number, position in enumerate(self.order.tolist()):
            tiers[position] = Tiers(*self.rows[number, chosen[number]].tolist())
        return tier_plan(self.task, tiers)


class Progress:
    """How far N episodes are.

    Args:
        num_envs: N.

    Attributes:
        active: whether the episode has begun and not ended, shape (N,).
        allowed: which actions are valid, with one more for those out of range, shape (N, K + 1).
        chosen: levels of tables, of the first cut point and the second, shape (N, T, 2); T grows with the tasks.
        turn: tables that are cut, shape (N,).
        second: whether the second step of the next table is due, shape (N,).
        used: bytes of the tables that are cut, shape (N,).
    """

    def __init__(self, num_envs: int, levels: int) -> None:
        self.active: Bools = np.zeros(num_envs, dtype=np.bool_)
        self.allowed: Bools = np.zeros((num_envs, levels + 1), dtype=np.bool_)
        self.chosen: Ints = np.zeros((num_envs, 0, 2), dtype=np.int64)
        self.turn: Ints = np.zeros(num_envs, dtype=np.int64)
        self.second: Bools = np.zeros(num_envs, dtype=np.bool_)
        self.used: Floats = np.zeros(num_envs)

    def make_room(self, tables: int) -> None:
        """Have entries for so many tables."""
        missing = tables - self.chosen.shape[1]
        if missing > 0:
            self.chosen = np.pad(self.chosen, ((0, 0), (0, missing), (0, 0)))

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
        found = []
        for row in rows.tolist():
            task = self._game.task_of(row)
            if task.digest not in self._references:
                self._references[task.digest] = float(references_ms(self._game.cost, None, [task])[0])
            found.append(self._references[task.digest])
        return np.array(found)


class TierGame(Game):
    """N episodes of `RowTiersEnv`. Methods take `rows`, numbers of episodes, shape (n,).

    Args:
        rules: of them the penalty counts.
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
        self._known: OrderedDict[tuple[str, str], TierTask] = OrderedDict()
        self._task_of: list[TierTask | None] = [None] * num_envs
        self.placements: Any = Progress(num_envs, layout.levels)
        self.scorer: Any = TierScores(self)
        self.task_index = np.zeros(num_envs, dtype=np.int64)
        self.earned = np.zeros(num_envs)
        self.penalty = np.full(num_envs, float(rules.penalty))
        self.cost_of = np.full(num_envs, None)
        self._stuck = np.zeros(num_envs, dtype=np.bool_)

    def task_of(self, row: int) -> ShardingTask:
        """Return the task of an episode that has begun."""
        return self._tiers(row).task

    def start(self, rows: Ints, drawn: Sequence[tuple[int, ShardingTask]]) -> dict[int, str]:
        """See `Game`."""
        p = self.placements
        reasons = {}
        for row, (index, task) in zip(rows.tolist(), drawn, strict=True):
            self._begin(row, index, task)
            p.active[row] = True
            self._update(row)
            self._stuck[row] = not p.allowed[row].any()
            if self._stuck[row]:
                reasons[row] = self._why_nothing_fits(row)
        return reasons

    def masks(self) -> Bools:
        """See `Game`."""
        masks: Bools = self.placements.allowed[:, :-1].copy()
        masks[self._stuck] = True
        return masks

    def step(self, rows: Ints, actions: Ints, given: Sequence[Any]) -> StepResult:
        """See `Game`."""
        p = self.placements
        result = StepResult(np.zeros(len(self.earned)), {})
        complete = []
        for row in rows.tolist():
            level = int(actions[row])
            if self._stuck[row]:
                self._end(result, row, self.penalty[row], "no_device_fits", reason=self._why_nothing_fits(row))
            elif not (0 <= level < self._levels and p.allowed[row, level]):
                self._end(result, row, self.penalty[row], "invalid_action", reason=self._why_invalid(row, given[row]))
            elif self._choose(row, level):
                complete.append(row)
            else:
                self._update(row)
        self._score(result, complete)
        return result

    def observe(self) -> Observation:
        """See `Game`."""
        p = self.placements
        count = len(self._task_of)
        table = np.zeros((count, len(TABLE_FEATURES)))
        levels = np.zeros((count, self._levels, 3))
        of_task = np.zeros((count, len(TASK_FEATURES)))
        for row, known in enumerate(self._task_of):
            if known is None:
                continue
            turn = int(p.turn[row])
            tables = len(known.order)
            of_task[row] = known.task_features
            of_task[row, 0] = turn / tables
            free = known.room - p.used[row] - known.least[turn]
            of_task[row, 1] = free / max(known.room - known.least[0], 1.0)
            if turn == tables:
                continue
            first = int(p.chosen[row, turn, 0]) if p.second[row] else 0
            table[row] = known.features[turn]
            table[row, 6:] = p.second[row], first / (self._levels - 1)
            alone = known.num_bytes[turn, 0, 0]
            levels[row, :, 0] = known.rows[turn] / known.rows[turn, -1]
            for column, num_bytes in ((1, known.num_bytes[turn].diagonal()), (2, known.num_bytes[turn, first])):
                # Pairs that are no choice take more than all that is free.
                levels[row, :, column] = np.clip((num_bytes - alone) / max(free, 1.0), 0.0, 1.0)
        arrays = {"table": table, "levels": levels.reshape(count, -1), "task": of_task}
        found: Observation = {name: np.clip(values, 0.0, 1.0).astype(np.float32) for name, values in arrays.items()}
        return found | {"action_mask": self.masks().view(np.int8)}

    def infos(self) -> dict[str, npt.NDArray[Any]]:
        """See `Game`."""
        p = self.placements
        count = len(self._task_of)
        labels = {name: np.full(count, "", dtype=np.object_) for name in ("task_hash", "task", "table")}
        everywhere = np.zeros(count, dtype=np.int64)
        for row, known in enumerate(self._task_of):
            if known is None:
                continue
            labels["task_hash"][row] = known.task.digest
            labels["task"][row] = known.task.name
            turn = int(p.turn[row])
            if turn < len(known.order):
                labels["table"][row] = known.task.tables[known.order[turn]].name
                if p.second[row]:
                    everywhere[row] = known.rows[turn, p.chosen[row, turn, 0]]
        return {
            "task_index": self.task_index.copy(), **labels, "placed": p.turn.copy(), "rows_everywhere": everywhere,
        }  # fmt: skip

    def save(self, row: int) -> TierState:  # type: ignore[override]
        """See `Game`."""
        p = self.placements
        known = self._tiers(row)
        return TierState(
            known.task, int(self.task_index[row]), p.chosen[row, : len(known.order)].copy(), int(p.turn[row]),
            bool(p.second[row]), float(self.earned[row]), not p.active[row], self.cost_of[row],
        )  # fmt: skip

    def load(self, row: int, state: TierState) -> None:  # type: ignore[override]
        """See `Game`."""
        p = self.placements
        self._begin(row, state.task_index, state.task)
        known = self._tiers(row)
        p.chosen[row, : len(known.order)] = state.chosen
        p.turn[row] = state.turn
        p.second[row] = state.second
        p.used[row] = known.bytes_of(state.chosen, state.turn)
        self.earned[row] = state.earned
        self.cost_of[row] = state.cost
        p.active[row] = not state.ended
        self._update(row)
        self._stuck[row] = not state.ended and not p.allowed[row].any()

    def _tiers(self, row: int) -> TierTask:
        known = self._task_of[row]
        assert known is not None, "an episode has begun"
        return known

    def _begin(self, row: int, index: int, task: ShardingTask) -> None:
        """Set an episode to its beginning."""
        key = task.digest, task.name
        if key not in self._known:
            self._known[key] = TierTask(task, self._levels)
            while len(self._known) > _TASKS_KEPT:
                self._known.popitem(last=False)
        self._task_of[row] = self._known[key]
        p = self.placements
        p.make_room(task.num_tables)
        p.chosen[row] = 0
        p.turn[row] = 0
        p.second[row] = False
        p.used[row] = 0.0
        self.task_index[row] = index
        self.earned[row] = 0.0
        self.cost_of[row] = None

    def _choose(self, row: int, level: int) -> bool:
        """Choose a level that is valid; return whether all tables are cut then."""
        p = self.placements
        known = self._tiers(row)
        turn = int(p.turn[row])
        p.chosen[row, turn, int(p.second[row])] = level
        if known.has_nodes and not p.second[row]:
            p.second[row] = True
            return False
        p.chosen[row, turn, 1] = level
        p.used[row] += known.num_bytes[turn, p.chosen[row, turn, 0], level]
        p.turn[row] = turn + 1
        p.second[row] = False
        return turn + 1 == len(known.order)

    def _update(self, row: int) -> None:
        """Say which levels are valid now."""
        p = self.placements
        p.allowed[row] = False
        known = self._tiers(row)
        turn = int(p.turn[row])
        if not p.active[row] or turn == len(known.order):
            return
        num_bytes = known.num_bytes[turn]
        needed = num_bytes[p.chosen[row, turn, 0]] if p.second[row] else num_bytes.min(axis=1)
        p.allowed[row, :-1] = p.used[row] + needed + known.least[turn + 1] <= known.room

    def _score(self, result: StepResult, rows: list[int]) -> None:
        """Score complete plans, those of one task together."""
        of_tasks: dict[str, list[int]] = {}
        for row in rows:
            of_tasks.setdefault(self.task_of(row).digest, []).append(row)
        for group in of_tasks.values():
            plans = [self._tiers(row).plan(self.placements.chosen[row]) for row in group]
            costs = self.cost.evaluate(self.task_of(group[0]), plans)
            for row, plan, cost in zip(group, plans, costs, strict=True):
                self.cost_of[row] = cost
                if cost.feasible:
                    earned = max(-cost.total_ms, self.penalty[row])
                    self._end(result, row, earned, "complete", plan=plan, cost=cost)
                else:
                    self._end(result, row, self.penalty[row], "no_cost", reason=str(cost.reason), plan=plan, cost=cost)

    def _why_nothing_fits(self, row: int) -> str:
        known = self._tiers(row)
        return (
            f"tables cut by rows over all devices take up to {known.least[0]:.0f} bytes on a device, and the smallest "
            f"has {known.room:.0f}"
        )

    def _why_invalid(self, row: int, given: Any) -> str:
        known = self._tiers(row)
        p = self.placements
        turn = int(p.turn[row])
        name = known.task.tables[known.order[turn]].name
        valid = np.flatnonzero(p.allowed[row]).tolist()
        return f"level {given} of table '{name}' is not valid: expected one of {', '.join(map(str, valid))}"
