"""One step of lookahead in `ShardGym/AnyWise-v0`: shards may be halved, cut by rows, or replicated."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from baselines.column_greedy import halves
from baselines.lookahead import Lookahead, LookaheadColumns, LookaheadPlacement
from shardgym.arguments import check_int
from shardgym.arrays import Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.envs.game import Game, Rules
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: Return of an episode that ends without a plan; no plan takes as long.
_PENALTY_MS = -1e9
#: Rows of the game: the episode, copies of it in which a shard is halved and cut by rows, and copies in which each
#: placing is tried.
_EPISODE, _HALVED, _CUT, _TRIES = range(4)


class LookaheadAny(Lookahead):
    """The same in `ShardGym/AnyWise-v0`, where shards may also be cut by rows, and tables replicated.

    A cut by rows changes no cost before the shard is placed, so it is judged by what the plan so far costs once its
    holders are chosen; a halving by what it costs once both halves are placed, one after the other, by the same rule.
    As in `lookahead_columns`, what is cheaper than an even share of the task counts as that. A shard of several holders
    adds to that share what it takes alone on each of them, without its part of the share before. Of ways that are
    equally good the first one is taken: one device, a replica, a cut by rows over a fast domain, over all devices, a
    halving. Halves come up at once. Where it gets stuck, it plays again with the largest tables first, then as
    `lookahead_columns`.

    Args:
        max_splits: halvings at most; by default those of the environment.

    Raises:
        InputError: `max_splits` is no whole number.
    """

    name = "lookahead_any"

    def __init__(self, max_splits: int = 10) -> None:
        self.max_splits = check_int("max_splits", max_splits)

    def _play(self, task: ShardingTask, cost: CostModel, costs: AdditiveCosts) -> ShardingPlan:
        for largest_first in (False, True):
            placement = LookaheadPlacement(task, costs, largest_first=largest_first)
            with contextlib.suppress(NoFeasiblePlanError):
                return self._play_in_order(task, cost, placement)
        return LookaheadColumns(self.max_splits)._play(task, cost, costs)

    def _play_in_order(self, task: ShardingTask, cost: CostModel, prices: LookaheadPlacement) -> ShardingPlan:
        tables = tuple(task.table(shard.table) for shard in prices.tables())
        episode = _Episode(dataclasses.replace(task, tables=tables), cost, self.max_splits)
        least_ms = prices.even_share_ms()
        while episode.goes_on:
            whole = episode.next_shard()
            share_ms = prices.alone_ms([whole]) / task.num_devices
            choices = []
            for way in episode.placings():
                # What several devices hold is on all of them at once, so it adds to their share what it takes alone.
                alone_ms = prices.alone_ms(way.shards) if way.holders > 1 else 0.0
                added_ms = max(0.0, alone_ms * way.holders / task.num_devices - share_ms)
                choices.append((max(way.total_ms, least_ms + added_ms), added_ms, way.actions))
            halved_ms = episode.halved_ms()
            if halved_ms is not None:
                added_ms = prices.added_share_ms(whole, halves(whole))
                choices.append((max(halved_ms, least_ms + added_ms), added_ms, (episode.halve,)))
            if not choices:
                raise NoFeasiblePlanError(f"table '{whole.table}' fits on no device, however it is cut")
            _, added_ms, actions = min(choices, key=lambda choice: choice[0])
            least_ms += added_ms
            episode.play(actions)
        return ShardingPlan.of(task, episode.plan().shards)


class _Way(NamedTuple):
    """Actions that place the next shard, its shards in plans, and what the slowest device then takes in ms."""

    total_ms: float
    actions: tuple[int, ...]
    shards: tuple[Shard, ...]

    @property
    def holders(self) -> int:
        """How many devices have a part of it."""
        return sum(len(shard.devices) for shard in self.shards)


class _Episode:
    """An episode whose actions are tried in copies of it before one is taken."""

    def __init__(self, task: ShardingTask, cost: CostModel, max_splits: int) -> None:
        self._devices = task.num_devices
        self.halve = self._devices + HALVE
        limits = SplitLimits(max_splits, every_kind=True)
        rules = Rules("task", "dense", _PENALTY_MS, limits=limits, plans=False)
        layout = Layout(self._devices, max_splits, timed=True, every_kind=True)
        copies = _TRIES + self._devices
        self._game = Game(rules, cost, layout, copies)
        reasons = self._game.start(np.arange(copies), [(0, task)] * copies)
        self.why_stuck = reasons.get(_EPISODE, "")

    @property
    def goes_on(self) -> bool:
        """Whether there is a shard to place; where nothing can be done with it any more, `why_stuck` says why."""
        if self.why_stuck:
            raise NoFeasiblePlanError(self.why_stuck)
        return not self._game.ended[_EPISODE]

    def play(self, actions: tuple[int, ...], row: int = _EPISODE) -> None:
        """Take actions in the episode, or in another row."""
        for action in actions:
            self._step(np.array([row]), np.array([action]))

    def placings(self, row: int = _EPISODE) -> Iterator[_Way]:
        """Yield the best way for each kind of holders that the next shard may have: one, a domain, all, replicas."""
        cuts: tuple[int, ...] = ()
        while True:
            allowed = self._game.placements.allowed[row].copy()
            actions = np.flatnonzero(allowed[: self._devices])
            if len(actions) and (way := self._best(row, actions)) is not None:
                yield way._replace(actions=(*cuts, *way.actions))
            replica = self._devices + REPLICATE
            if allowed[replica] and (way := self._best(row, np.array([replica]))) is not None:
                yield way
            if not allowed[self._devices + CUT_ROWS]:
                return
            cuts = (*cuts, self._devices + CUT_ROWS)
            if row != _CUT:
                self._game.copy(row, np.array([_CUT]))
                row = _CUT
            self.play(cuts[-1:], row)

    def halved_ms(self) -> float | None:
        """Return what the slowest device takes once the next shard is halved and both halves are placed."""
        if not self._game.placements.allowed[_EPISODE, self.halve]:
            return None
        self._game.copy(_EPISODE, np.array([_HALVED]))
        self.play((self.halve,), _HALVED)
        total_ms = np.inf
        for _ in range(2):
            ways = list(self.placings(_HALVED))
            if not ways:
                return np.inf
            best = min(ways, key=lambda way: way.total_ms)
            self.play(best.actions, _HALVED)
            total_ms = best.total_ms
        return float(total_ms)

    def next_shard(self) -> Shard:
        """Return the shard to place, as if its columns were the first ones."""
        figures = self._game.catalog.shard
        number = self._game.placements.next[_EPISODE]
        rows, columns = int(figures["rows"][number]), int(figures["width"][number])
        return Shard(str(figures["name"][number]), (0, rows), (0, columns), (0,))

    def plan(self) -> ShardingPlan:
        """Return the plan of the episode, which is complete."""
        [plan], _ = self._game.scorer.finish(np.array([_EPISODE]))
        return plan

    def _best(self, row: int, actions: Ints) -> _Way | None:
        """Return the action after which the plan so far costs least, then its device computes least; None if none."""
        rows = np.arange(_TRIES, _TRIES + len(actions))
        self._game.copy(row, rows)
        self._step(rows, actions)
        total_ms = quantized(-self._game.earned[rows])
        compute = quantized(self._game.scorer.time_shares()[rows, np.minimum(actions, self._devices - 1), 0])
        least = int(np.lexsort((actions, compute, total_ms))[0])
        if total_ms[least] >= -_PENALTY_MS:
            return None
        best = rows[least]
        state_of = self._game.placements
        last = slice(state_of.placed[best] - 1, state_of.placed[best])
        placed = (array[best, last] for array in (state_of.shards, state_of.starts, state_of.devices))
        [shard] = self._game.catalog.placed(*placed)
        return _Way(float(total_ms[least]), (int(actions[least]),), shard.in_plan())

    def _step(self, rows: Ints, actions: Ints) -> None:
        """Take one action in each of these rows."""
        of_all = np.zeros(len(self._game.earned), dtype=np.int64)
        of_all[rows] = actions
        result = self._game.step(rows, of_all)
        if (end := result.ends.get(_EPISODE)) is not None:
            self.why_stuck = end.get("reason", "")
