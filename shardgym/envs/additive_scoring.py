"""AdditiveScorer: costs of placements whose cost is additive, so that one more shard takes one addition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.shard_keys import PlanBatch, ShardKey
from shardgym.envs.placements import Placements
from shardgym.envs.scoring import PlanScorer
from shardgym.envs.shard_catalog import NOTHING
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.shard import COLUMN_UNIT


class AdditiveScorer(PlanScorer):
    """Scores placements with a cost that is additive; all episodes are priced in one call.

    Args:
        cost: the cost model.
        placements: what is scored.
        costs: of `cost.additive()`.
        partial: whether partial costs or times of devices are needed.
    """

    def __init__(self, cost: CostModel, placements: Placements, costs: AdditiveCosts, *, partial: bool) -> None:
        self._costs = costs
        self._partial = partial
        super().__init__(cost, placements)
        num_envs, max_devices = placements.loads.shape[:2]
        #: Added vectors of every device.
        self._sums: Floats = np.zeros((num_envs, max_devices, self._vector_length if partial else 0))
        #: Whether a shard was placed whose width no kernel takes.
        self._odd: Bools = np.zeros(num_envs, dtype=np.bool_)

    def forget(self) -> None:
        """See `PlanScorer`."""
        super().forget()
        if self._costs.num_tasks:
            costs = self._cost.additive()
            assert costs is not None
            self._costs = costs
        # Tasks of a pool have the same tables in other company.
        self._costs.share_descriptions()
        self._vector_length = self._costs.vectors(np.zeros(0, dtype=np.int64)).shape[1]
        #: Numbers of the catalog's tasks and shards in the costs, -1 for those that are not encoded yet.
        self._task_numbers: Ints = np.zeros(0, dtype=np.int64)
        self._shard_numbers: Ints = np.zeros(0, dtype=np.int64)
        #: Even shares of the catalog's tasks in ms, not a number for those that were not asked for yet.
        self._shares: Floats = np.zeros(0)

    def start(self, rows: Ints) -> None:
        """See `PlanScorer`; a task of a kind that the cost does not know is an `InputError`."""
        if self._partial:
            self._encode(self._placements.task[rows])
            self._sums[rows] = 0.0
            self._odd[rows] = False

    def place(self, rows: Ints, devices: Ints) -> None:
        """See `PlanScorer`."""
        if self._partial:
            p = self._placements
            shards = p.next[rows]
            self._odd[rows] |= p.catalog.shard["width"][shards] % COLUMN_UNIT > 0
            if p.kinds is not None:
                several = p.catalog.kind["holders"][shards] > 1
                self._place_parts(rows[several], p.kinds.parts(shards[several], devices[several]))
                rows = rows[~several]
                shards = shards[~several]
                devices = devices[~several]
            self._sums[rows, devices] += self._costs.vectors(self._shard_numbers[shards])

    def costs(self, rows: Ints, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `PlanScorer`. Complete placements are feasible plans, so they are not validated again."""
        p = self._placements
        # In the order of plans sums are rounded as `CostModel.evaluate` rounds them.
        shards, _, devices = self._in_order(rows)
        # A width that no kernel takes makes a plan infeasible: `CostModel.evaluate` gives the reason.
        odd = (p.catalog.shard["width"][shards] % COLUMN_UNIT > 0).any(axis=1)
        num_devices = np.where(odd, 0, p.catalog.task["num_devices"][p.task[rows]])
        self._encode(p.task[rows[~odd]])
        costs: dict[int, PlanCost] = {}
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            if count:
                exists = shards[group] > 0
                batch = self._batch(count, exists, shards[group][exists], devices[group][exists])
                found = self._cost.plan_costs(self._costs, batch)
            else:
                found = super().costs(rows[group], [plans[n] for n in group.tolist()])
            costs |= zip(group.tolist(), found, strict=True)
        return [costs[n] for n in range(len(plans))]

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
            sums = self._sums[rows[group], :count]
            ms[group] = self._costs.total_ms(self._task_numbers[tasks[group]], sums)
        return ms, reasons

    def even_share_ms(self, rows: Ints) -> Floats:
        """See `PlanScorer`."""
        p = self._placements
        tasks = p.task[rows]
        for task in np.unique(tasks).tolist():
            first = p.catalog.task["first"][task]
            if (p.catalog.shard["width"][first : first + p.catalog.task["tables"][task]] % COLUMN_UNIT).any():
                return super().even_share_ms(rows)
        return self._shares_of(tasks)

    def time_shares(self) -> Floats:
        """See `PlanScorer`."""
        p = self._placements
        waiting = p.next != NOTHING
        added = np.zeros((len(waiting), 1, self._vector_length))
        added[waiting, 0] = self._costs.vectors(self._shard_numbers[p.next[waiting]])
        if p.kinds is not None:
            holders = p.catalog.kind["holders"][p.next]
            rows = np.flatnonzero(holders > 1)
            if len(rows):
                max_devices = p.capacity.shape[1]
                parts = p.kinds.part(p.next[rows, None], np.arange(max_devices) % holders[rows, None])
                added = np.repeat(added, max_devices, axis=1)
                vectors = self._costs.vectors(self._shard_numbers[parts.ravel()])
                added[rows] = vectors.reshape(*parts.shape, -1)
        sums = np.stack([self._sums, self._sums + added], axis=2)
        # Devices that a task does not have hold nothing.
        sums[p.capacity < 0] = 0.0
        compute_ms = self._costs.exact_compute_ms(sums).sum(axis=3)
        return np.asarray(compute_ms / self._shares_of(p.task)[:, None, None], dtype=np.float64)

    def save(self, row: int) -> Any:
        """See `PlanScorer`."""
        return self._sums[row].copy(), bool(self._odd[row])

    def load(self, row: int, saved: Any) -> None:
        """See `PlanScorer`."""
        self.start(np.array([row]))
        self._sums[row], self._odd[row] = saved

    def _place_parts(self, rows: Ints, parts: Ints) -> None:
        """Add up what each device holds of shards with several holders, shape (n, D), see `KindRules.parts`."""
        which, devices = np.nonzero(parts)
        self._sums[rows[which], devices] += self._costs.vectors(self._shard_numbers[parts[which, devices]])

    def _batch(self, num_devices: int, exists: Bools, shards: Ints, devices: Ints) -> PlanBatch:
        """Return complete placements as a batch.

        Args:
            num_devices: of each.
            exists: which of the most shards each placement has, shape (n, most shards).
            shards: those that exist, shape (H,).
            devices: their first holders, shape (H,).
        """
        if self._placements.kinds is None:
            return PlanBatch(num_devices, exists.sum(axis=1), self._shard_numbers[shards], devices)
        plans = np.nonzero(exists)[0]
        which, holders = np.nonzero(self._placements.kinds.parts(shards, devices))
        parts = self._placements.kinds.parts(shards, devices)[which, holders]
        counts = np.bincount(plans[which], minlength=len(exists))
        return PlanBatch(num_devices, counts, self._shard_numbers[parts], holders)

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
        return AdditiveScorer(cost, placements, costs, partial=partial or timed)
    if timed:
        raise InputError(
            f"observation='timed' needs a cost that prices devices one by one, such as 'simulator' or 'roofline': this "
            f"'{cost.name}' scores whole plans only; train with one of those, or use observation='compact'"
        )
    return PlanScorer(cost, placements)
