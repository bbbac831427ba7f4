"""Pricing for any cost model: what shards take alone, added up, and the link model; corrected by evaluated plans."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from neuroshard.budget import Budget
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.links import transfer_ms
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.errors import MeasurementError
from shardgym.plan import Shard, ShardingPlan
from shardgym.task import ELEMENT_BYTES, ShardingTask

_COMPUTE = [PHASES.index("forward_compute"), PHASES.index("backward_compute")]
_BACKWARD_COMM = PHASES.index("backward_comm")
_MUCH_MEMORY = 2**60
#: How strongly a fit is drawn to the sum of what shards take alone; little, yet enough where there are too few devices.
_RIDGE = 1e-6


class AdditivePricing(Pricing):
    """A device takes `factor` x the sum of its shards' own times + `per_shard` x their number + `per_device`.

    Widths 4, 8, 16, ... and the whole table are priced, each shard alone on a device of a made-up task; widths between
    are interpolated. Communication follows the link model of the task's topology, times `comm_factor`.

    Args:
        shelf: the shards.
        cost: any cost model.
        budget: of time.

    Raises:
        OutOfTime: the budget is spent before all shards are priced.
        MeasurementError: the cost model has no time for some shard.
    """

    def __init__(self, shelf: Shelf, cost: CostModel, budget: Budget) -> None:
        vectors = np.zeros((len(shelf), 2))
        vectors[:, 0] = _single_ms(shelf, cost, budget)
        vectors[:, 1] = shelf.columns > 0
        super().__init__(shelf, vectors)
        self._terms: Floats = np.array([1.0, 0.0, 0.0])
        self._comm_factor = 1.0
        self._rows: list[Floats] = []
        self._seen: list[float] = []
        self._ratios: list[float] = []

    def compute(self, sums: Floats) -> Floats:
        """See `Pricing`."""
        ms: Floats = np.maximum(sums @ self._terms[:2] + self._terms[2], 0.0)
        return ms

    def totals(self, compute: Floats, columns: Ints) -> Floats:
        """See `Pricing`."""
        transfer = self._comm_factor * np.array([self._transfer(widths) for widths in columns])
        # In the forward exchange all wait for the last to enter, so that only the transfer differs.
        return np.asarray((compute + transfer).max(axis=1) + transfer.max(axis=1), dtype=np.float64)

    def learn(self, units: Sequence[Ints], costs: Sequence[PlanCost]) -> None:
        """Fit all terms to what plans turned out to cost, plans learned from before included.

        Args:
            units: of each table on each device, each of shape (D, T).
            costs: of the plans; infeasible ones are left out.
        """
        for held, cost in zip(units, costs, strict=True):
            if cost.feasible:
                self._remember(held, cost)
        if not self._seen:
            return
        rows, seen, prior = np.array(self._rows), np.array(self._seen), np.array([1.0, 0.0, 0.0])
        scale = np.maximum(np.abs(rows).max(axis=0), 1e-12)
        pulled = np.vstack([rows / scale, np.sqrt(_RIDGE * len(rows)) * np.eye(3)])
        missing = np.append(seen - rows @ prior, np.zeros(3))
        self._terms = prior + np.linalg.lstsq(pulled, missing, rcond=None)[0] / scale
        if self._ratios:
            self._comm_factor = float(np.median(self._ratios))

    def _remember(self, units: Ints, cost: PlanCost) -> None:
        sums = self.vectors[self.shelf.first + units].sum(axis=1)
        columns = self.shelf.columns[self.shelf.first + units].sum(axis=1)
        held = columns > 0
        self._rows += list(np.column_stack([sums, np.ones(len(sums))])[held])
        self._seen += cost.per_device[held][:, _COMPUTE].sum(axis=1).tolist()
        expected = float(self._transfer(columns).max())
        if expected > 0:
            self._ratios.append(float(cost.per_device[:, _BACKWARD_COMM].max()) / expected)

    def _transfer(self, columns: Ints) -> Floats:
        task = self.shelf.task
        return transfer_ms(task.topology, columns, task.batch_size, ELEMENT_BYTES[task.precision])


def _single_ms(shelf: Shelf, cost: CostModel, budget: Budget) -> Floats:
    """Return the compute of every row of the shelf alone on a device; 0 for empty rows, shape (R,)."""
    priced: Ints = np.flatnonzero(np.isin(shelf.columns, 4 * 2 ** np.arange(40)))
    priced = np.union1d(priced, shelf.first + shelf.units)
    ms: Floats = np.zeros(len(shelf))
    for rows in _batches(priced, budget):
        budget.check()
        task, plan = _one_device_each(shelf, rows)
        (answer,) = cost.evaluate(task, [plan])
        if not answer.feasible:
            raise MeasurementError(f"cost '{cost.name}' has no time for single shards: {answer.reason}")
        ms[rows] = answer.per_device[:, _COMPUTE].sum(axis=1)
    for first, units in zip(shelf.first.tolist(), shelf.units.tolist(), strict=True):
        known = priced[(priced >= first) & (priced <= first + units)]
        rows = np.arange(first + 1, first + units + 1)
        ms[rows] = np.interp(rows, known, ms[known])
    return ms


def _batches(rows: Ints, budget: Budget) -> Iterator[Ints]:
    """Yield many at once, or few where a limit has to be kept."""
    step = 16 if budget.limited else 4096
    for start in range(0, len(rows), step):
        yield rows[start : start + step]


def _one_device_each(shelf: Shelf, rows: Ints) -> tuple[ShardingTask, ShardingPlan]:
    """Return a task whose tables are the given shards, and the plan that gives each a device of its own."""
    tables = [
        dataclasses.replace(
            shelf.task.tables[shelf.tables[row]], name=f"shard {row}", embedding_dim=int(shelf.columns[row])
        )
        for row in rows.tolist()
    ]
    memory = (_MUCH_MEMORY,) * len(tables)
    topology = dataclasses.replace(
        shelf.task.topology, num_devices=len(tables), memory_bytes=memory, fast_domain_size=len(tables)
    )
    task = dataclasses.replace(shelf.task, tables=tuple(tables), topology=topology, name="")
    return task, ShardingPlan.of(task, (Shard.whole(table, device) for device, table in enumerate(tables)))
