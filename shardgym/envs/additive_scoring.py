"""AdditiveScorer: incremental costs of placements by an additive cost, one addition per shard."""

from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import LOADS
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.costs.roofline import RooflineCost
from shardgym.costs.shard_keys import PlanBatch, ShardKey
from shardgym.envs.placements import Placements
from shardgym.envs.scoring import OrderedShards, PlanScorer
from shardgym.envs.shard_catalog import NOTHING
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan


class AdditiveScorer(PlanScorer):
    """Scores placements with an additive cost, all episodes in one call.

    A device is priced once per shard: its time with the next shard, which observations may show, becomes its time once
    the shard is there. `partial` and `timed` say whether to keep prices of incomplete placements and times of devices.
    """

    def __init__(
        self, cost: CostModel, placements: Placements, costs: AdditiveCosts, *, partial: bool, timed: bool
    ) -> None:
        super().__init__(cost, placements, costs)
        self.partial = partial
        self._timed = timed
        #: Whether sums of devices are kept.
        self._adds_up = partial or timed
        self._vector_length = costs.vectors(np.zeros(0, dtype=np.int64)).shape[1]
        #: Numbers of the catalog's tasks and shards in the costs, -1 for those that are not encoded yet.
        self._task_numbers: Ints = np.zeros(0, dtype=np.int64)
        self._shard_numbers: Ints = np.zeros(0, dtype=np.int64)
        #: Even shares of the catalog's tasks in ms, not a number for those that were not asked for yet.
        self._shares: Floats = np.zeros(0)
        num_envs, max_devices = placements.loads.shape[:2]
        #: Added vectors of every device.
        self._sums: Floats = np.zeros((num_envs, max_devices, self._vector_length if self._adds_up else 0))
        #: Forward and backward compute of every device in ms, and with the shard of this number, see `time_shares`.
        self._compute_ms: Floats = np.zeros((num_envs, max_devices, 2))
        self._with_next_ms: Floats = np.zeros((num_envs, max_devices, 2))
        self._priced: Ints = np.full(num_envs, NOTHING, dtype=np.int64)
        #: Even shares of the tasks in ms, where observations need them.
        self._share_of_row: Floats = np.ones(num_envs)

    def start(self, rows: Ints) -> None:
        """See `PlanScorer`; raises `InputError` if the cost does not support the task."""
        if self._adds_up:
            self._encode(self._placements.task[rows])
            self._sums[rows] = 0.0
            self._compute_ms[rows] = 0.0
            self._priced[rows] = NOTHING
            if self._timed:
                self._share_of_row[rows] = self._shares_of(self._placements.task[rows])

    def place(self, rows: Ints, devices: Ints) -> None:
        """See `PlanScorer`."""
        if self._adds_up:
            p = self._placements
            shards = p.next[rows]
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
        """Add parts of the next shards to devices, all of shape (n,); rows may repeat with other devices."""
        self._sums[rows, devices] += self._costs.vectors(self._shard_numbers[parts])
        known = self._priced[rows] == shards
        if known.all():
            self._compute_ms[rows, devices] = self._with_next_ms[rows, devices]
        else:
            self._compute_ms[rows, devices] = self._costs.exact_compute_ms(self._sums[rows, devices])

    def totals_ms(self, rows: Ints, complete: int) -> tuple[Floats, dict[int, str]]:
        """See `PlanScorer`; if sums are kept, a complete placement is priced as the last partial one."""
        if not self._adds_up:
            return super().totals_ms(rows, complete)
        p = self._placements
        ms = np.zeros(len(rows))
        tasks = p.task[rows]
        num_devices = p.catalog.task["num_devices"][tasks]
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            of_group = rows[group]
            loads = self._sums[of_group, :count, -LOADS:]
            numbers = self._task_numbers[tasks[group]]
            ms[group] = self._costs.exact_slowest_ms(numbers, self._compute_ms[of_group, :count], loads)
        reasons: dict[int, str] = {}
        odd = np.flatnonzero(p.catalog.task["is_odd"][tasks[:complete]])
        if len(odd):
            ms[odd], reasons = super().totals_ms(rows[odd], len(odd))
        return ms, reasons

    def per_device(self, row: int) -> Floats:
        """See `PlanScorer`."""
        p = self._placements
        if not p.placed[row]:
            return np.zeros((p.catalog.tasks[p.task[row]].num_devices, len(PHASES)))
        rows = np.array([row])
        self._encode(p.task[rows])
        [cost] = self._priced_together(rows, self.in_order(rows))
        return cost.per_device

    def _costs_of(self, rows: Ints, plans: Sequence[ShardingPlan], ordered: OrderedShards) -> list[PlanCost]:
        """See `PlanScorer`; skips validation, because complete placements are feasible plans."""
        tasks = self._placements.task[rows]
        # A width that no kernel takes makes a plan infeasible: `CostModel.evaluate` gives the reason.
        is_odd = self._placements.catalog.task["is_odd"][tasks]
        num_devices = np.where(is_odd, 0, self._placements.catalog.task["num_devices"][tasks])
        self._encode(tasks[~is_odd])
        costs: dict[int, PlanCost] = {}
        for count in np.unique(num_devices).tolist():
            group = np.flatnonzero(num_devices == count)
            of_group = OrderedShards(*(array[group] for array in ordered))
            if count:
                found = self._priced_together(rows[group], of_group)
            else:
                found = super()._costs_of(rows[group], [plans[n] for n in group.tolist()], of_group)
            costs |= zip(group.tolist(), found, strict=True)
        return [costs[n] for n in range(len(plans))]

    def _priced_together(self, rows: Ints, ordered: OrderedShards) -> list[PlanCost]:
        """Return the costs of placements on equally many devices, rounding sums as `CostModel.evaluate` does."""
        p = self._placements
        shards, _, devices = ordered
        exists = shards > 0
        counts = exists.sum(axis=1)
        shards = shards[exists]
        devices = devices[exists]
        if p.kinds is not None:
            parts = p.kinds.parts(shards, devices)
            plans = np.nonzero(exists)[0]
            which, devices = np.nonzero(parts)
            counts = np.bincount(plans[which], minlength=len(exists))
            shards = parts[which, devices]
        tasks = p.task[rows]
        num_devices = int(p.catalog.task["num_devices"][tasks[0]])
        batch = PlanBatch(num_devices, counts, self._shard_numbers[shards], devices, tasks=self._task_numbers[tasks])
        return self._cost.plan_costs(self._costs, batch)

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

    def copy(self, row: int, rows: Ints) -> None:
        """See `PlanScorer`."""
        own = self._sums, self._compute_ms, self._with_next_ms, self._priced, self._share_of_row
        for array in own:
            array[rows] = array[row]

    def _encode(self, tasks: Ints) -> None:
        """Encode all shards of new tasks."""
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
        """Return even shares of tasks, shape (n,), pricing new tasks together."""
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


def plan_scorer(cost: CostModel, placements: Placements, reward: str, *, timed: bool) -> PlanScorer:
    """Return the scorer for a cost model and a reward of `REWARDS`; `timed` if times of devices are needed."""
    costs = cost.additive()
    if costs is not None:
        return AdditiveScorer(cost, placements, costs, partial=reward != "terminal", timed=timed)
    if timed or reward == "dense":
        asked = "observation='timed'" if timed else "reward='dense'"
        raise InputError(
            f"{asked} needs a cost that prices devices one by one, such as 'simulator' or 'roofline': this "
            f"'{cost.name}' scores whole plans only"
        )
    return PlanScorer(cost, placements, RooflineCost().additive())
