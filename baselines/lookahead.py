"""One step of lookahead in the environments: what a policy has to beat before it has learned anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baselines.column_greedy import halves
from baselines.greedy import devices_with_room
from shardgym.arguments import check_int
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask


class Lookahead:
    """Places each table where the plan so far costs least with it; plays `ShardGym/TableWise-v0` by that rule.

    Tables come in descending order of columns times pooling factor. Of devices after which the slowest device takes
    equally long, the one that computes least with the table gets it, then the lower number. Nothing is learned, and
    nothing is looked at beyond the next action: a policy of that environment that does not beat this has learned
    nothing worth having. The oracle must be additive, as "simulator" and "roofline" are, and prices every device at
    every step.
    """

    name = "lookahead"

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the plan; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: a shard fits nowhere any more.
            InputError: an argument is of another kind, the cost is not additive, or cannot price tasks of this kind.
        """
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        costs = cost.additive()
        if costs is None:
            raise InputError(
                f"solver '{self.name}' needs a cost that prices devices one by one, such as 'simulator' or 'roofline': "
                f"this '{cost.name}' scores whole plans only"
            )
        return self._play(task, cost, costs)

    def _play(self, task: ShardingTask, cost: CostModel, costs: AdditiveCosts) -> ShardingPlan:  # noqa: ARG002
        placement = LookaheadPlacement(task, costs)
        for shard in placement.tables():
            placement.place(shard, placement.best(shard).device)
        return placement.plan()


class LookaheadColumns(Lookahead):
    """The same in `ShardGym/ColumnWise-v0`, where shards may be halved.

    A halving alone changes no cost, so it is judged by what the plan so far costs once both halves are placed, one
    after the other, by the same rule. A shard is halved where that is cheaper than placing it, or where it fits
    nowhere. The halves then wait in the order of all shards. What is cheaper than an even share of the task counts as
    that, as the slowest device will take so long in the end anyway: what all tables take on one device over the number
    of devices, and the compute that halvings add to that, as both halves need all ids. Where it gets stuck, it plays
    again with the largest tables first: small ones then fill what is left.

    Args:
        max_splits: halvings at most; by default those of the environment.

    Raises:
        InputError: `max_splits` is no whole number.
    """

    name = "lookahead_columns"

    def __init__(self, max_splits: int = 10) -> None:
        self.max_splits = check_int("max_splits", max_splits)

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
            parts = halves(shard) if shard.num_columns % (2 * COLUMN_UNIT) == 0 and splits < self.max_splits else ()
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
    """A device, and what the slowest one takes in ms once the shard is there."""

    device: int
    total_ms: float


class LookaheadPlacement:
    """Shards that are placed, and what devices take.

    Args:
        task: the task.
        costs: of the oracle.
        largest_first: whether tables come in descending order of bytes; else of columns times pooling factor.
    """

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
        """Return the whole tables in the order in which they come up."""
        return sorted((Shard.whole(table, 0) for table in self._task.tables), key=self.key, reverse=True)

    def key(self, shard: Shard) -> float:
        """Return what the order of shards goes by, descending."""
        if self._largest_first:
            return float(shard.bytes(self._task))
        return shard.num_columns * self._task.table(shard.table).pooling_factor

    def even_share_ms(self) -> float:
        """Return what all tables take on one device, over the number of devices."""
        sums = np.zeros((1, *self._sums.shape))
        sums[0, 0] = self._costs.vectors(self._costs.encode(self._task, self.tables())).sum(axis=0)
        total_ms = self._costs.slowest_ms(self._number, self._costs.compute_ms(sums), sums[..., -LOADS:])
        return float(total_ms[0]) / self._task.num_devices

    def added_share_ms(self, shard: Shard, parts: Sequence[Shard]) -> float:
        """Return by how much parts compute longer than the whole, each alone, over the number of devices."""
        vectors = self._costs.vectors(self._costs.encode(self._task, [shard, *parts]))
        alone_ms = self._costs.compute_ms(vectors).sum(axis=1)
        return float(alone_ms[1:].sum() - alone_ms[0]) / self._task.num_devices

    def alone_ms(self, shards: Sequence[Shard]) -> float:
        """Return what the slowest device takes with these shards of one table alone, where they say."""
        plan = ShardingPlan.unchecked(task_hash=self._task.digest, shards=tuple(shards))
        return float(quantized(self._costs.plans_ms(self._task, [plan])[0].sum(axis=1).max()))

    def best(self, shard: Shard) -> _Best:
        """Return the device after which the plan so far costs least.

        Raises:
            NoFeasiblePlanError: the shard fits nowhere.
        """
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
        """Return what the plan so far costs with these shards, placed one after the other; infinite if they do not fit.

        They are not there afterwards.
        """
        before = self._room.copy(), self._sums.copy(), self._compute_ms.copy(), len(self._placed)
        total_ms = np.inf
        try:
            for shard in shards:
                found = self.best(shard)
                total_ms = found.total_ms
                self.place(shard, found.device)
        except NoFeasiblePlanError:
            total_ms = np.inf
        self._room, self._sums, self._compute_ms, count = before
        del self._placed[count:]
        return float(total_ms)

    def place(self, shard: Shard, device: int) -> None:
        """Place a shard on a device that has room."""
        [self._compute_ms[device]], [self._sums[device]] = self._with(shard, np.array([device]))
        self._room[device] -= shard.bytes(self._task)
        self._placed.append(Shard(shard.table, shard.rows, shard.columns, (device,)))

    def plan(self) -> ShardingPlan:
        """Return the placed shards as a plan."""
        return ShardingPlan.of(self._task, self._placed)

    def _with(self, shard: Shard, devices: Ints) -> tuple[Floats, Floats]:
        """Return compute of devices and their sums once they hold a shard, too, shapes (n, 2) and (n, K + LOADS)."""
        sums = self._sums[devices] + self._costs.vectors(self._costs.encode(self._task, [shard]))
        return self._costs.compute_ms(sums), sums
