"""One-step lookahead in the environments, a baseline for learned policies."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from baselines.greedy import devices_with_room
from baselines.lpt import halves
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel, additive_costs
from shardgym.costs.links import LOADS
from shardgym.costs.ties import quantized
from shardgym.envs.game import Game, Rules
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask

#: Halvings at most: those of the environments.
_MAX_SPLITS = 10
#: Return of an episode that ends without a plan; no plan takes as long.
_PENALTY_MS = -1e9
#: Rows of the game: the episode, copies of it in which a shard is halved and cut by rows, and copies in which each
#: placing is tried.
_EPISODE, _HALVED, _CUT, _TRIES = range(4)


class Lookahead:
    """Plays `ShardGym/TableWise-v0` by placing each table where the partial plan then costs least.

    Tables come in descending order of columns times pooling factor. Ties go to the device that computes least with the
    table, then to the lower number. A learned policy should beat this rule, which learns nothing and looks one action
    ahead. The oracle must be additive, such as "simulator" and "roofline"; it prices every device at every step.
    """

    name = "lookahead"

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; `seed` is ignored."""
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        return self._play(task, cost, additive_costs(cost, self.name))

    def _play(self, task: ShardingTask, cost: CostModel, costs: AdditiveCosts) -> ShardingPlan:  # noqa: ARG002
        placement = LookaheadPlacement(task, costs)
        for shard in placement.tables():
            placement.place(shard, placement.best(shard).device)
        return placement.plan()


class LookaheadColumns(Lookahead):
    """One-step lookahead in `ShardGym/ColumnWise-v0`, where shards may be halved.

    A halving alone changes no cost, so the rule prices it by placing both halves in turn. It halves a shard if that is
    cheaper than placing it, or if the shard fits nowhere; the halves then wait in the order of all shards. Costs below
    the task's even share count as equal to it, because the slowest device will reach that share anyway. The even share
    is the time of all tables on one device over the number of devices, plus the compute that halvings add, since both
    halves read all ids. If an episode gets stuck, it is played again with the largest tables first.
    """

    name = "lookahead_columns"

    def _play(self, task: ShardingTask, cost: CostModel, costs: AdditiveCosts) -> ShardingPlan:  # noqa: ARG002
        try:
            return self._play_in_order(LookaheadPlacement(task, costs))
        except NoFeasiblePlanError:
            return self._play_in_order(LookaheadPlacement(task, costs, largest_first=True))

    def _play_in_order(self, placement: LookaheadPlacement) -> ShardingPlan:
        queue = placement.tables()
        splits = 0
        least_ms = placement.even_share_ms()
        while queue:
            shard = queue.pop(0)
            parts = halves(shard) if shard.num_columns % (2 * COLUMN_UNIT) == 0 and splits < _MAX_SPLITS else ()
            try:
                whole = placement.best(shard)
            except NoFeasiblePlanError:
                if not parts:
                    raise
                whole = None
            added_ms = placement.added_share_ms(shard, parts) if parts else 0.0
            halved_ms = max(placement.total_ms_with(parts), least_ms + added_ms) if parts else np.inf
            if whole is None or halved_ms < max(whole.total_ms, least_ms):
                splits += 1
                least_ms += added_ms
                key = placement.key(parts[0])
                place = next((n for n, other in enumerate(queue) if placement.key(other) <= key), len(queue))
                queue[place:place] = parts
            else:
                assert whole is not None
                placement.place(shard, whole.device)
        return placement.plan()


class _Best(NamedTuple):
    """A device, and the slowest device's time in ms once the shard is there."""

    device: int
    total_ms: float


class LookaheadPlacement:
    """Placed shards and the devices' times; shards come up by columns times pooling factor, or the largest first."""

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, *, largest_first: bool = False) -> None:
        self._task = task
        self._largest_first = largest_first
        self._costs = costs
        self._number = costs.add_task(task)
        self._placed: list[Shard] = []
        self._room = np.array(task.capacity_bytes, dtype=np.int64)
        vector_length = costs.vectors(np.zeros(0, dtype=np.int64)).shape[1]
        self._sums: Floats = np.zeros((task.num_devices, vector_length))
        self._compute_ms: Floats = np.zeros((task.num_devices, 2))

    def tables(self) -> list[Shard]:
        """Return the whole tables in the order of placing."""
        return sorted((Shard.whole(table, 0) for table in self._task.tables), key=self.key, reverse=True)

    def key(self, shard: Shard) -> float:
        """Return the key of the descending order of shards."""
        if self._largest_first:
            return float(shard.bytes(self._task))
        return shard.num_columns * self._task.table(shard.table).pooling_factor

    def even_share_ms(self) -> float:
        """Return the time of all tables on one device over the number of devices."""
        sums = np.zeros((1, *self._sums.shape))
        sums[0, 0] = self._costs.vectors(self._costs.encode(self._task, self.tables())).sum(axis=0)
        total_ms = self._costs.slowest_ms(self._number, self._costs.compute_ms(sums), sums[..., -LOADS:])
        return float(total_ms[0]) / self._task.num_devices

    def added_share_ms(self, shard: Shard, parts: Sequence[Shard]) -> float:
        """Return the compute that parts add to that of the whole shard, over the number of devices."""
        vectors = self._costs.vectors(self._costs.encode(self._task, [shard, *parts]))
        alone_ms = self._costs.compute_ms(vectors).sum(axis=1)
        return float(alone_ms[1:].sum() - alone_ms[0]) / self._task.num_devices

    def alone_ms(self, shards: Sequence[Shard]) -> float:
        """Return the slowest device's time with nothing but these shards of one table."""
        plan = ShardingPlan.unchecked(task_hash=self._task.digest, shards=tuple(shards))
        return float(quantized(self._costs.plans_ms(self._task, [plan])[0].sum(axis=1).max()))

    def best(self, shard: Shard) -> _Best:
        """Return the device with which the partial plan costs least; raises `NoFeasiblePlanError` if none has room."""
        devices = devices_with_room(self._task, shard, self._room)
        with_it_ms, sums = self._with(shard, devices)
        here = np.arange(len(devices))
        compute_ms = np.tile(self._compute_ms, (len(devices), 1, 1))
        compute_ms[here, devices] = with_it_ms
        loads = np.tile(self._sums[:, -LOADS:], (len(devices), 1, 1))
        loads[here, devices] = sums[:, -LOADS:]
        total_ms = self._costs.slowest_ms(self._number, compute_ms, loads)
        least = int(np.lexsort((devices, with_it_ms.sum(axis=1), total_ms))[0])
        return _Best(int(devices[least]), float(total_ms[least]))

    def total_ms_with(self, shards: Sequence[Shard]) -> float:
        """Return the partial plan's cost after placing these shards in turn; infinite if they do not fit."""
        before = self._room.copy(), self._sums.copy(), self._compute_ms.copy(), self._placed.copy()
        total_ms = 0.0
        try:
            for shard in shards:
                device, total_ms = self.best(shard)
                self.place(shard, device)
        except NoFeasiblePlanError:
            total_ms = np.inf
        self._room, self._sums, self._compute_ms, self._placed = before
        return total_ms

    def place(self, shard: Shard, device: int) -> None:
        """Place a shard on a device that has room."""
        [self._compute_ms[device]], [self._sums[device]] = self._with(shard, np.array([device]))
        self._room[device] -= shard.bytes(self._task)
        self._placed.append(Shard(shard.table, shard.rows, shard.columns, (device,)))

    def plan(self) -> ShardingPlan:
        """Return the placed shards as a plan."""
        return ShardingPlan.of(self._task, self._placed)

    def _with(self, shard: Shard, devices: Ints) -> tuple[Floats, Floats]:
        """Return devices' compute, (n, 2), and sums, (n, K + LOADS), after adding a shard to each."""
        sums = self._sums[devices] + self._costs.vectors(self._costs.encode(self._task, [shard]))
        return self._costs.compute_ms(sums), sums


class LookaheadAny(Lookahead):
    """One-step lookahead in `ShardGym/AnyWise-v0`, where shards may also be cut by rows, and tables replicated.

    The rule prices a cut by rows with its holders chosen, and a halving with both halves placed in turn. As in
    `lookahead_columns`, costs below the task's even share count as equal to it. A shard with several holders raises the
    share by its time alone on each of them, minus its part of the share before. Ties go to the first of: one device, a
    replica, a cut by rows over a fast domain, a cut by rows over all devices, a halving. Halves come up at once. If an
    episode gets stuck, it is played again with the largest tables first, then as `lookahead_columns`.
    """

    name = "lookahead_any"

    def _play(self, task: ShardingTask, cost: CostModel, costs: AdditiveCosts) -> ShardingPlan:
        for largest_first in (False, True):
            placement = LookaheadPlacement(task, costs, largest_first=largest_first)
            with contextlib.suppress(NoFeasiblePlanError):
                return self._play_in_order(task, cost, placement)
        return LookaheadColumns()._play(task, cost, costs)

    def _play_in_order(self, task: ShardingTask, cost: CostModel, prices: LookaheadPlacement) -> ShardingPlan:
        tables = tuple(task.table(shard.table) for shard in prices.tables())
        episode = _Episode(dataclasses.replace(task, tables=tables), cost)
        least_ms = prices.even_share_ms()
        while episode.goes_on:
            whole = episode.next_shard()
            share_ms = prices.alone_ms([whole]) / task.num_devices
            choices = []
            for way in episode.placings():
                # A shard with several holders is on all of them, so it adds its time alone to their share.
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
    """Actions that place the next shard, its shards in plans, and the slowest device's time afterwards in ms."""

    total_ms: float
    actions: tuple[int, ...]
    shards: tuple[Shard, ...]

    @property
    def holders(self) -> int:
        """Number of devices that hold a part."""
        return sum(len(shard.devices) for shard in self.shards)


class _Episode:
    """An episode that tries actions in copies of itself before it takes one."""

    def __init__(self, task: ShardingTask, cost: CostModel) -> None:
        self._devices = task.num_devices
        self.halve = self._devices + HALVE
        limits = SplitLimits(_MAX_SPLITS, every_kind=True)
        rules = Rules("task", "dense", _PENALTY_MS, limits=limits, plans=False)
        layout = Layout(self._devices, _MAX_SPLITS, timed=True, every_kind=True)
        copies = _TRIES + self._devices
        self._game = Game(rules, cost, layout, copies)
        reasons = self._game.start(np.arange(copies), [(0, task)] * copies)
        self.why_stuck = reasons.get(_EPISODE, "")

    @property
    def goes_on(self) -> bool:
        """Whether there is a shard to place; `why_stuck` gives the reason if no action is valid."""
        if self.why_stuck:
            raise NoFeasiblePlanError(self.why_stuck)
        return not self._game.ended[_EPISODE]

    def play(self, actions: tuple[int, ...], row: int = _EPISODE) -> None:
        """Take actions in the episode, or in another row."""
        for action in actions:
            self._step(np.array([row]), np.array([action]))

    def placings(self, row: int = _EPISODE) -> Iterator[_Way]:
        """Yield the best way for each kind of holders of the next shard: one, a domain, all, replicas."""
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
        """Return the slowest device's time with the next shard halved and both halves placed."""
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
        """Return the shard to place, with columns counted from 0."""
        figures = self._game.catalog.shard
        number = self._game.placements.next[_EPISODE]
        rows = int(figures["rows"][number])
        columns = int(figures["width"][number])
        return Shard(str(figures["name"][number]), (0, rows), (0, columns), (0,))

    def plan(self) -> ShardingPlan:
        """Return the plan of the complete episode."""
        [plan], _ = self._game.scorer.finish(np.array([_EPISODE]))
        return plan

    def _best(self, row: int, actions: Ints) -> _Way | None:
        """Return the action with the least cost of the partial plan, then with the least compute of its device."""
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
        of_all = np.zeros(len(self._game.earned), dtype=np.int64)
        of_all[rows] = actions
        result = self._game.step(rows, of_all)
        if (end := result.ends.get(_EPISODE)) is not None:
            self.why_stuck = end.get("reason", "")
