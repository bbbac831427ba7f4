"""PlanScorer: costs of many complete placements in few calls of the cost model."""

import itertools
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PlanCost
from shardgym.envs.placements import Placements
from shardgym.envs.reference import references_ms
from shardgym.envs.shard_catalog import Placed
from shardgym.errors import InputError, MeasurementError, check_instance
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard

#: Placed shards whose `Shard` objects are kept for later plans.
_SHARDS_KEPT = 2**20


class OrderedShards(NamedTuple):
    """Shards of complete placements in the order of plans, see `PlanScorer.in_order`; each of shape (n, S)."""

    shards: Ints
    starts: Ints
    devices: Ints


class PlanScorer:
    """Scores complete placements with any cost model, and prices references with the additive `costs`.

    Methods take `rows`, numbers of episodes, shape (n,).
    """

    #: Whether incomplete placements have a price, see `AdditiveScorer`.
    partial = False

    def __init__(self, cost: CostModel, placements: Placements, costs: AdditiveCosts) -> None:
        self._cost = cost
        self._placements = placements
        # Tasks of a pool have the same tables in other company.
        costs.share_shards()
        self._costs = costs
        self._in_plans: dict[Placed, tuple[Shard, ...]] = {}
        #: Reference costs of the catalog's tasks in ms, not a number for those that were not asked for yet.
        self._references: Floats = np.zeros(0)

    @property
    def shared(self) -> tuple[Any, ...]:
        """Append-only objects that copies may share."""
        return self._costs, self._in_plans

    def start(self, rows: Ints) -> None:
        """Prepare prices of new placements; the default does nothing."""

    def place(self, rows: Ints, devices: Ints) -> None:
        """Update prices for the next shards before they are placed on these devices."""

    def copy(self, row: int, rows: Ints) -> None:
        """Copy the prices of one episode to others, which have its placement."""

    def finish(self, rows: Ints) -> tuple[list[ShardingPlan], list[PlanCost]]:
        """Return the plans of complete placements and their costs, infinite for failed measurements."""
        ordered = self.in_order(rows)
        plans = self._plans(rows, ordered)
        return plans, self._costs_of(rows, plans, ordered)

    def totals_ms(self, rows: Ints, complete: int) -> tuple[Floats, dict[int, str]]:
        """Return the costs of the first `complete` placements, and of incomplete ones if they have a price.

        Plans are made only if the cost model needs them. Also returns, by row, why a placement has no cost.
        """
        costs = self.finish(rows[:complete])[1] if complete else []
        reasons = {row: cost.reason for row, cost in zip(rows.tolist(), costs, strict=False) if cost.reason is not None}
        return np.array([cost.total_ms for cost in costs]), reasons

    def time_shares(self) -> Floats:
        """Return compute of all devices over the even share, now and with the next shard, shape (N, D, 2).

        0 for devices that do not exist. Requires an additive cost, see `AdditiveScorer`.
        """
        raise NotImplementedError

    def per_device(self, row: int) -> Floats | None:
        """Return the phases of every device for the placed shards, shape (D, 5); None if these have no price."""

    def references_ms(self, rows: Ints) -> Floats:
        """Return the reference costs of tasks, each priced once, shape (n,); see `reference.py`.

        Raises:
            InputError: a table has a width that no kernel supports.
        """
        tasks = self._placements.task[rows]
        missing = len(self._placements.catalog.tasks) - len(self._references)
        self._references = np.pad(self._references, (0, missing), constant_values=np.nan)
        unknown = np.unique(tasks[np.isnan(self._references[tasks])])
        if len(unknown):
            unknown_tasks = [self._placements.catalog.tasks[number] for number in unknown.tolist()]
            self._references[unknown] = references_ms(self._costs, unknown_tasks)
        return self._references[tasks]

    def in_order(self, rows: Ints) -> OrderedShards:
        """Return placed shards, padded with `NOTHING`, their first columns, and their devices, each (n, most shards).

        Shards are in the order of plans: by the table's name, then by columns.
        """
        p = self._placements
        shards, starts, devices = (array[rows, : p.placed[rows].max()] for array in (p.shards, p.starts, p.devices))
        # There are at most 2**16 columns.
        key = (p.catalog.shard["rank"][shards] << 17) + starts
        order = np.argsort(np.where(shards > 0, key, 2**62), axis=1)
        here = np.arange(len(rows))[:, None]
        return OrderedShards(shards[here, order], starts[here, order], devices[here, order])

    def _plans(self, rows: Ints, ordered: OrderedShards) -> list[ShardingPlan]:
        """Return the plans of complete placements without validation, which would take longer than a step."""
        p = self._placements
        if len(self._in_plans) > _SHARDS_KEPT:
            self._in_plans.clear()
        exists = ordered.shards > 0
        placed = p.catalog.placed(*(array[exists] for array in ordered))
        in_plans = [self._in_plans.get(shard) or self._kept(shard) for shard in placed]
        plans = []
        first = 0
        for task, count in zip(p.catalog.task["hash"][p.task[rows]].tolist(), exists.sum(axis=1).tolist(), strict=True):
            held = tuple(itertools.chain.from_iterable(in_plans[first : first + count]))
            if p.kinds is not None:
                # Column blocks that are cut by rows come in the order of rows.
                held = tuple(sorted(held, key=operator.attrgetter("table", "rows", "columns")))
            plans.append(ShardingPlan.unchecked(task_hash=task, shards=held))
            first += count
        return plans

    def _kept(self, placed: Placed) -> tuple[Shard, ...]:
        """Return the shards of a plan from a cache."""
        shards = self._in_plans[placed] = placed.in_plan()
        return shards

    def _costs_of(self, rows: Ints, plans: Sequence[ShardingPlan], ordered: OrderedShards) -> list[PlanCost]:  # noqa: ARG002
        """Return the costs of complete placements, given their plans, evaluating those of a task together."""
        p = self._placements
        costs: dict[int, PlanCost] = {}
        tasks = p.task[rows]
        for number in np.unique(tasks).tolist():
            group = np.flatnonzero(tasks == number).tolist()
            task = p.catalog.tasks[number]
            try:
                found = self._cost.evaluate(task, [plans[n] for n in group])
            except MeasurementError as error:
                found = [self._cost.no_cost(task, str(error))] * len(group)
            costs |= zip(group, found, strict=True)
        return [costs[n] for n in range(len(plans))]


def cost_model(cost: str | CostModel, settings: dict[str, Any] | None) -> tuple[CostModel, bool]:
    """Return the cost model given by name or as an object, and whether this function created it.

    Raises:
        InputError: settings are given for an object.
        UnknownNameError: no cost of this name.
    """
    if isinstance(cost, str):
        return make_cost(cost, **(settings or {})), True
    if settings:
        raise InputError("cost_settings need a cost given by name, got a cost model")
    check_instance("cost", cost, CostModel)
    return cost, False
