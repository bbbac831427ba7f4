"""AdditiveScorer: costs of placements whose cost is additive, so that one more shard takes one addition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.shard_keys import PlanBatch, ShardKey
from shardgym.envs.placements import Placements
from shardgym.envs.scoring import OrderedShards, PlanScorer
from shardgym.envs.shard_catalog import NOTHING
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT

#: Descriptions of shards that are kept when tasks are forgotten, for tasks with the same tables.
_DESCRIPTIONS_KEPT = 2**17


class AdditiveScorer(PlanScorer):
    """Scores placements with a cost that is additive; all episodes are priced in one call.

    A device is priced once for each shard that it holds: what it takes with the next shard, which observations may
    show, is what it takes once the shard is there.

    Args:
        cost: the cost model.
        placements: what is scored.
        costs: of `cost.additive()`.
        partial: whether partial costs are needed.
        timed: whether times of devices are needed.
    """

    def __init__(
        self, cost: CostModel, placements: Placements, costs: AdditiveCosts, *, partial: bool, timed: bool
    ) -> None:
        super().__init__(cost, placements)
        self._timed = timed
        self._partial = partial or timed
        # Tasks of a pool have the same tables in other company.
        costs.share_shards()
        self._costs = costs
        self._vector_length = costs.vectors(np.zeros(0, dtype=np.int64)).shape[1]
        #: Numbers of the catalog's tasks and shards in the costs, -1 for those that are not encoded yet.
        self._task_numbers: Ints = np.zeros(0, dtype=np.int64)
        self._shard_numbers: Ints = np.zeros(0, dtype=np.int64)
        #: Even shares of the catalog's tasks in ms, not a number for those that were not asked for yet.
        self._shares: Floats = np.zeros(0)
        num_envs, max_devices = placements.loads.shape[:2]
        #: Added vectors of every device.
        self._sums: Floats = np.zeros((num_envs, max_devices, self._vector_length if self._partial else 0))
        #: Forward and backward compute of every device in ms, and with the shard of this number, see `time_shares`.
        self._compute_ms: Floats = np.zeros((num_envs, max_devices, 2))
        self._with_next_ms: Floats = np.zeros((num_envs, max_devices, 2))
        self._priced: Ints = np.full(num_envs, NOTHING, dtype=np.int64)
        #: Even shares of the tasks in ms, where observations need them.
        self._share_of_row: Floats = np.ones(num_envs)
        #: Whether a shard was placed whose width no kernel takes.
        self._odd: Bools = np.zeros(num_envs, dtype=np.bool_)

    def keep(self, tasks: Ints, shards: Ints) -> None:
        """See `PlanScorer`."""
        super().keep(tasks, shards)
        known = tasks[tasks < len(self._task_numbers)]
        self._task_numbers = np.full(len(known), -1, dtype=np.int64)
        self._shares = self._shares[known]
        kept = shards[: len(self._shard_numbers)] != NOTHING
        kept[:1] = True  # that of `NOTHING`
        self._shard_numbers = self._shard_numbers[kept]
        self._priced = shards[self._priced]
        if self._costs.num_shards <= _DESCRIPTIONS_KEPT:
            self._costs.forget_tasks()
        else:
            costs = self._cost.additive()
            assert costs is not None
            costs.share_shards()
            self._costs = costs
        if self._partial:
            self._encode(np.arange(len(known)))

    def start(self, rows: Ints) -> None:
        """See `PlanScorer`; a task of a kind that the cost does not know is an `InputError`."""
        if self._partial:
            self._encode(self._placements.task[rows])
            self._sums[rows] = 0.0
            self._compute_ms[rows] = 0.0
            self._priced[rows] = NOTHING
            self._odd[rows] = False
            if self._timed:
                self._share_of_row[rows] = self._shares_of(self._placements.task[rows])

    def place(self, rows: Ints, devices: Ints) -> None:
        """See `PlanScorer`."""
        if self._partial:
            p = self._placements
            shards = p.next[rows]
            self._odd[rows] |= p.catalog.shard["width"][shards] % COLUMN_UNIT > 0
            placing = rows
            if p.kinds is not None and (several := p.catalog.kind["holders"][shards] > 1).any():
                parts = p.kinds.parts(shards[several], devices[several])
                which, holders = np.nonzero(parts)
                self._add(rows[several][which], holders, parts[which, holders], shards[several][which])
                rows = rows[~several]
                shards = shards[~several]
                devices = devices[~several]
            self._add(rows, devices, shards, shards)
            self._priced[placing] = NOTHING

    def _add(self, rows: Ints, devices: Ints, parts: Ints, shards: Ints) -> None:
        """Add parts of the next shards to devices; all of shape (n,), where rows may repeat, with other devices."""
        self._sums[rows, devices] += self._costs.vectors(self._shard_numbers[parts])
        known = self._priced[rows] == shards
        if known.all():
            self._compute_ms[rows, devices] = self._with_next_ms[rows, devices]
        else:
            self._compute_ms[rows, devices] = self._costs.exact_compute_ms(self._sums[rows, devices])

    def _costs_of(self, rows: Ints, plans: Sequence[ShardingPlan], ordered: OrderedShards) -> list[PlanCost]:
        """See `PlanScorer`. Complete placements are feasible plans, so they are not validated again."""
        p = self._placements
        # In the order of plans sums are rounded as `CostModel.evaluate` rounds them.
        shards, _, devices = ordered
        # A width that no kernel takes makes a plan infeasible: `CostModel.evaluate` gives the reason.
        odd = (p.catalog.shard["width"][shards] % COLUMN_UNIT > 0).any(axis=1)
        num_devices = np.where(odd, 0, p.catalog.task["num_devices"][p.task[rows]])
        self._encode(p.task[rows[~odd]])
        costs: dict[int, PlanCost] = {}
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            if count:
                exists = shards[group] > 0
                tasks = self._task_numbers[p.task[rows[group]]]
                batch = self._batch(count, tasks, exists, shards[group][exists], devices[group][exists])
                found = self._cost.plan_costs(self._costs, batch)
            else:
                found = super()._costs_of(rows[group], [plans[n] for n in group.tolist()], ordered)
            costs |= zip(group.tolist(), found, strict=True)
        return [costs[n] for n in range(len(plans))]

    def totals_ms(self, rows: Ints, complete: int) -> tuple[Floats, dict[int, str]]:
        """See `PlanScorer`: a complete placement is the last partial one, where sums are kept."""
        return self.partial_ms(rows) if self._partial else super().totals_ms(rows, complete)

    def partial_ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """See `PlanScorer`."""
        p = self._placements
        ms = np.zeros(len(rows))
        reasons: dict[int, str] = {}
        odd = self._odd[rows]
        if odd.any():
            # `CostModel.evaluate` says why there is no time.
            ms[odd], reasons = super().partial_ms(rows[odd])
        tasks = p.task[rows]
        num_devices = np.where(odd, 0, p.catalog.task["num_devices"][tasks])
        for count in np.unique(num_devices[~odd]).tolist():
            group = np.flatnonzero(num_devices == count)
            of_group = rows[group]
            loads = self._sums[of_group, :count, -LOADS:]
            numbers = self._task_numbers[tasks[group]]
            ms[group] = self._costs.exact_slowest_ms(numbers, self._compute_ms[of_group, :count], loads)
        return ms, reasons

    def _additive(self) -> AdditiveCosts:
        """See `PlanScorer`."""
        return self._costs

    def time_shares(self) -> Floats:
        """See `PlanScorer`."""
        p = self._placements
        self._price_next(np.flatnonzero((self._priced != p.next) & (p.next != NOTHING)))
        times = np.empty((*self._compute_ms.shape[:2], 2))
        times[:, :, 0] = self._compute_ms.sum(axis=2)
        times[:, :, 1] = np.where((p.next == NOTHING)[:, None], times[:, :, 0], self._with_next_ms.sum(axis=2))
        times /= self._share_of_row[:, None, None]
        return times

    def _price_next(self, rows: Ints) -> None:
        """Price the next shards of these episodes on each device."""
        if not len(rows):
            return
        p = self._placements
        shards = p.next[rows]
        max_devices = p.capacity.shape[1]
        sums = self._sums[rows]
        if p.kinds is None:
            sums += self._costs.vectors(self._shard_numbers[shards])[:, None]
        else:
            holders = p.catalog.kind["holders"][shards][:, None]
            parts = p.kinds.part(shards[:, None], np.arange(max_devices) % holders)
            sums += self._costs.vectors(self._shard_numbers[parts.ravel()]).reshape(sums.shape)
        # Devices that a task does not have hold nothing.
        sums[p.capacity[rows] < 0] = 0.0
        self._with_next_ms[rows] = self._costs.exact_compute_ms(sums)
        self._priced[rows] = shards

    def save(self, row: int) -> Any:
        """See `PlanScorer`."""
        is_priced = self._priced[row] == self._placements.next[row]
        times = self._compute_ms[row].copy(), self._with_next_ms[row].copy()
        return self._sums[row].copy(), *times, bool(is_priced), bool(self._odd[row])

    def load(self, row: int, saved: Any) -> None:
        """See `PlanScorer`."""
        self.start(np.array([row]))
        self._sums[row], self._compute_ms[row], self._with_next_ms[row], is_priced, self._odd[row] = saved
        self._priced[row] = self._placements.next[row] if is_priced else NOTHING

    def copy(self, row: int, rows: Ints) -> None:
        """See `PlanScorer`."""
        own = self._sums, self._compute_ms, self._with_next_ms, self._priced, self._share_of_row, self._odd
        for array in own:
            array[rows] = array[row]

    def _batch(self, num_devices: int, tasks: Ints, exists: Bools, shards: Ints, devices: Ints) -> PlanBatch:
        """Return complete placements as a batch.

        Args:
            num_devices: of each.
            tasks: numbers of their tasks in the costs, shape (n,).
            exists: which of the most shards each placement has, shape (n, most shards).
            shards: those that exist, shape (H,).
            devices: their first holders, shape (H,).
        """
        if self._placements.kinds is None:
            return PlanBatch(num_devices, exists.sum(axis=1), self._shard_numbers[shards], devices, tasks=tasks)
        plans = np.nonzero(exists)[0]
        which, holders = np.nonzero(self._placements.kinds.parts(shards, devices))
        parts = self._placements.kinds.parts(shards, devices)[which, holders]
        counts = np.bincount(plans[which], minlength=len(exists))
        return PlanBatch(num_devices, counts, self._shard_numbers[parts], holders, tasks=tasks)

    def _encode(self, tasks: Ints) -> None:
        """Encode all shards of the tasks that are new."""
        catalog = self._placements.catalog
        new = len(catalog.tasks) - len(self._task_numbers)
        if new:
            self._task_numbers = np.pad(self._task_numbers, (0, new), constant_values=-1)
            self._shares = np.pad(self._shares, (0, new), constant_values=np.nan)
            missing = len(catalog.shard) - len(self._shard_numbers)
            self._shard_numbers = np.pad(self._shard_numbers, (0, missing), constant_values=-1)
        unknown = tasks[self._task_numbers[tasks] < 0]
        for number in np.unique(unknown).tolist() if len(unknown) else ():
            task = catalog.tasks[number]
            shards = catalog.shards_of(number)
            fields = [catalog.shard[name][shards].tolist() for name in ("name", "rows", "width")]
            if self._placements.kinds is not None:
                replicated, in_domain = (catalog.kind[name][shards] for name in ("replicated", "in_domain"))
                fields += [replicated.astype(np.int64).tolist(), in_domain.tolist()]
                fields += [catalog.kind["first_row"][shards].tolist()]
            self._task_numbers[number] = self._costs.add_task(task)
            self._shard_numbers[shards] = self._costs.encode_keys(task, list(map(ShardKey, *fields)))

    def _shares_of(self, tasks: Ints) -> Floats:
        """Return even shares of tasks, shape (n,); those that are new are priced together."""
        self._encode(tasks)
        p = self._placements
        shares = self._shares[tasks]
        unknown = np.isnan(shares)
        if unknown.any():
            new = np.unique(tasks[unknown])
            num_devices = p.catalog.task["num_devices"][new]
            for count in np.unique(num_devices).tolist():
                group = new[num_devices == count]
                sums = np.zeros((len(group), count, self._vector_length))
                for place, task in enumerate(group.tolist()):
                    first = p.catalog.task["first"][task]
                    tables = self._shard_numbers[first : first + p.catalog.task["tables"][task]]
                    sums[place, 0] = self._costs.vectors(tables).sum(axis=0)
                self._shares[group] = self._costs.total_ms(self._task_numbers[group], sums) / count
            shares = self._shares[tasks]
        return shares


def plan_scorer(cost: CostModel, placements: Placements, *, partial: bool, timed: bool) -> PlanScorer:
    """Return the scorer for a cost model.

    Args:
        cost: the cost model.
        placements: what is scored.
        partial: whether partial costs are needed.
        timed: whether times of devices are needed.

    Raises:
        InputError: times are needed, and the cost is not additive.
    """
    costs = cost.additive()
    if costs is not None:
        return AdditiveScorer(cost, placements, costs, partial=partial, timed=timed)
    if timed:
        raise InputError(
            f"observation='timed' needs a cost that prices devices one by one, such as 'simulator' or 'roofline': this "
            f"'{cost.name}' scores whole plans only; train with one of those, or use observation='compact'"
        )
    return PlanScorer(cost, placements)
