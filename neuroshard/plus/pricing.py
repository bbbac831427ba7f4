"""Pricing: times of devices and whole plans from added vectors of their shards, and what the search minimises."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from neuroshard.plus.moving import Moving, plan_near
from neuroshard.plus.sharing import Shared, nothing_shared, shards_of
from neuroshard.shard_table import ShardTable, plan_of_units
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.costs.links import COLUMNS, IDS, LOADS, SHARDS, transfer_ms
from shardgym.costs.plan_cost import COMPUTE_COLUMNS, PHASES, PlanCost
from shardgym.costs.shard_keys import ShardKey, shard_loads
from shardgym.costs.ties import quantized, quantized_fit
from shardgym.errors import MeasurementError
from shardgym.evaluation.incumbent import Budget
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ELEMENT_BYTES

_IDS, _BACKWARD_COMM = PHASES.index("ids"), PHASES.index("backward_comm")
#: How strongly a fit is drawn to the sum of what shards take alone; little, yet enough where there are too few devices.
_RIDGE = 1e-6
#: Likewise for latents, of which there are many.
_LATENT_RIDGE = 1e-5
#: What a shard adds is at least this share of what it takes alone.
_LEAST_SHARE = 0.05
#: Shards priced in one query, without a time limit and with one.
_SHARDS_PER_QUERY = 4096
_SHARDS_IN_HURRY = 16
#: Plans x devices whose communication is predicted together; larger batches leave the processor's cache.
_DEVICES_PER_CALL = 512


class Pricing(abc.ABC):
    """A cost model as sums of vectors, one per shard, and functions of these sums; and what the search minimises.

    That is the predicted cost of a step, plus by how much a soft maximum over devices' compute is above the hard one.
    With the hard maximum alone, nothing that happens on other devices than the slowest would count.

    Args:
        shards: of the task.
        vectors: one per row of `shards` that ends in its loads, see `AdditiveCosts.vectors`, and zeros for empty rows,
            shape (R, V). So the last entry of a sum is the number of shards.
        softness: width of the soft maximum, as a share of mean compute; 0 for the hard one.

    Attributes:
        shards: of the task.
        vectors: as given.
        softness: as given.
        shared: tables that devices hold besides; none, until `beside` says something else.
        byte_ms: what a byte of a device's memory saves, where rows may be in the memory of hosts; else 0.
        row_bytes: that each row is expected to take of a device's memory, shape (R,).
        moving: what moving from the plan in use adds to what is minimised; None where nothing is moved.
    """

    byte_ms = 0.0
    moving: Moving | None = None

    def __init__(self, shards: ShardTable, vectors: Floats, softness: float) -> None:
        self.shards = shards
        self.vectors = vectors
        self.softness = softness
        self.shared = nothing_shared(shards.task, vectors.shape[1])
        self.row_bytes: Ints = shards.bytes

    def beside(self, shared: Shared) -> Self:
        """Return the pricing of the other tables' columns, where devices hold these besides."""
        other = copy.copy(self)
        other.shared = shared
        return other

    @property
    def memory(self) -> Ints:
        """Bytes that columns may take on each device, shape (D,)."""
        return np.array(self.shards.task.capacity_bytes, dtype=np.int64) - self.shared.bytes

    @property
    def units(self) -> Ints:
        """Units of each table that are to be placed, shape (T,)."""
        return np.where(self.shared.tables(len(self.shards.units)), 0, self.shards.units)

    @abc.abstractmethod
    def compute(self, sums: Floats) -> Floats:
        """Return forward and backward ms of devices, 0 for empty ones, quantized, (..., V) to (..., 2)."""

    @abc.abstractmethod
    def totals(self, compute: Floats, loads: Floats) -> Floats:
        """Return what whole plans take in ms, communication included and quantized.

        Args:
            compute: forward and backward of every device in ms, shape (P, D, 2).
            loads: of every device, shape (P, D, 3).

        Returns:
            Shape (P,).
        """

    @abc.abstractmethod
    def row_prices(self, examples: Sequence[Ints]) -> tuple[Floats, float]:
        """Return what each row adds to the compute of a device, shape (R,), and what a device takes besides, in ms.

        Both are of forward plus backward compute, and quantized.

        Args:
            examples: units of each table on each device, each of shape (D, T), whose devices should come out right.
        """

    def sums(self, units: Ints) -> Floats:
        """Return the added vectors of devices, (D, T) to (D, V)."""
        sums = self.shared.sums.copy()
        devices, tables = np.nonzero(units)
        if not len(devices):
            return sums
        busy = np.flatnonzero(np.diff(devices, prepend=-1))
        vectors = self.vectors[self.shards.first[tables] + units[devices, tables]]
        sums[devices[busy]] += np.add.reduceat(vectors, busy, axis=0)
        return sums

    def sums_after(self, units: Ints, sums: Floats, moves: Ints) -> Floats:
        """Return the added vectors of giver and taker after each of some moves, shape (M, 2, V).

        Args:
            units: before, shape (D, T).
            sums: likewise, shape (D, V).
            moves: of a `Shortlist`, shape (M, 6).
        """
        givers, takers, tables, given, backs, back_units = moves.T
        number = np.arange(len(moves))
        pairs = np.stack([givers, takers], axis=1)
        after_moves = sums[pairs]
        swapped = backs >= 0
        for moved, more, which in ((tables, given, number), (backs, -back_units, number[swapped])):
            for side, sign in ((0, -1), (1, 1)):
                before = self.shards.first[moved[which]] + units[pairs[which, side], moved[which]]
                after = before + sign * more[which]
                after_moves[which, side] += self.vectors[after] - self.vectors[before]
        # What is left of a device that gave everything away is rounding.
        return np.where(after_moves[..., -1:] > 0.5, after_moves, 0.0)

    def charge_ms(self, num_bytes: Ints) -> Floats:
        """Return what so much of a device's memory is worth, quantized."""
        return quantized(np.asarray(self.byte_ms * num_bytes, dtype=np.float64))

    def has_room(self, units: Ints) -> bool:  # noqa: ARG002
        """Say whether hosts have room for what devices with such units, shape (D, T), do not hold."""
        return True

    def plan(self, units: Ints) -> ShardingPlan:
        """Return the plan of units of each table on each device, shape (D, T), and of the tables that devices share."""
        if self.moving is not None:
            return plan_near(self.shards, units, self.shared_shards(), self.moving.plan)
        return plan_of_units(self.shards, units, self.shared_shards())

    def shared_shards(self) -> list[Shard]:
        """Return the shards of the tables that devices share."""
        return [shard for place in self.shared.places.values() for shard in shards_of(self.shards.task, place)]

    def objective(self, compute: Floats, loads: Floats) -> tuple[Floats, Floats]:
        """Return what plans take in ms, and what is minimised; arguments as `totals`, to (P,) each, P at least 1."""
        step = max(_DEVICES_PER_CALL // compute.shape[1], 1)
        starts = range(0, len(compute), step)
        totals = np.concatenate([self.totals(compute[n : n + step], loads[n : n + step]) for n in starts])
        return totals, totals + quantized(self.excess(compute[..., 0] + compute[..., 1]))

    def moving_ms(self, units: Ints) -> float:
        """Return what moving to units of each table on each device adds to what is minimised, (D, T)."""
        return 0.0 if self.moving is None else float(quantized(self.moving.ms(units, self.shared)))

    def excess(self, compute: Floats) -> Floats:
        """Return by how much the soft maximum of devices' compute is above the hard one; (P, D) to (P,)."""
        if not self.softness:
            return np.zeros(len(compute))
        width = self.softness * compute.mean(axis=1, keepdims=True)
        above = (compute - compute.max(axis=1, keepdims=True)) / np.maximum(width, 1e-12)
        excess: Floats = width[:, 0] * np.log(np.exp(above).sum(axis=1))
        return excess


class ExactPricing(Pricing):
    """Pricing by an additive cost model, exact up to rounding; all shards are described at once, here and never again.

    Args:
        shards: of the task.
        costs: of the cost model.
        softness: see `Pricing`.

    Attributes:
        costs: as given.

    Raises:
        InputError: `costs` knows no tasks of this kind.
    """

    def __init__(self, shards: ShardTable, costs: AdditiveCosts, softness: float) -> None:
        self.costs = costs
        self._task = costs.add_task(shards.task)
        super().__init__(shards, shards.vectors(costs, np.flatnonzero(shards.columns)), softness)

    def compute(self, sums: Floats) -> Floats:
        """See `Pricing`."""
        return self.costs.compute_ms(sums)

    def totals(self, compute: Floats, loads: Floats) -> Floats:
        """See `Pricing`."""
        return self.costs.slowest_ms(self._task, compute, loads)

    def row_prices(self, examples: Sequence[Ints]) -> tuple[Floats, float]:
        """Fit a line to what the devices of examples compute, weighing relative errors; see `Pricing`.

        What a device takes is a line in what its shards take alone, their number, and their latents. Of
        a cost that is no sum, as fused kernels take less than one by one, this is the line that is nearest where the
        search is. It is about what columns add to that which devices hold besides.
        """
        rows = np.flatnonzero(self.shards.columns)
        alone = np.zeros(len(self.shards))
        alone[rows] = self.compute(self.vectors[rows]).sum(axis=1)
        all_sums = np.concatenate([self.sums(units) for units in examples])
        singles = np.concatenate([alone[self.shards.first + units].sum(axis=1) for units in examples])
        sums = all_sums - np.tile(self.shared.sums, (len(examples), 1))
        busy = sums[:, -1] > 0
        terms = np.column_stack([singles, np.ones(len(singles)), sums[:, -1], sums[:, :-LOADS]])[busy]
        besides = np.tile(self.compute(self.shared.sums).sum(axis=1), len(examples))[busy]
        ms = np.maximum(self.compute(all_sums[busy]).sum(axis=1) - besides, 1e-12)
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-12)
        prior = np.eye(terms.shape[1])[0]
        # Latents explain what the first three terms do not.
        ridge = np.where(np.arange(len(prior)) < 3, 1e-5, 1.0) * _LATENT_RIDGE * len(ms)
        weighted = np.vstack([terms / scale / ms[:, None], np.diag(np.sqrt(ridge))])
        missing = np.append(1 - singles[busy] / ms, np.zeros(len(prior)))
        fitted = quantized_fit(prior + np.linalg.lstsq(weighted, missing, rcond=None)[0] / scale)
        per_load = np.zeros(LOADS)
        per_load[SHARDS] = fitted[2]
        row_ms = fitted[0] * alone + self.vectors @ np.concatenate([fitted[3:], per_load])
        # No shard is for nothing, whatever the line says beyond the examples.
        return quantized(np.maximum(row_ms, _LEAST_SHARE * alone)), max(float(quantized(fitted[1])), 0.0)


class EstimatedPricing(Pricing):
    """Pricing for any cost model: what shards take alone, added up, and the link model; corrected by evaluated plans.

    A pass of a device takes `factor` x the sum of its shards' own times + `per_shard` x their number + `per_device`;
    forward and backward have three such terms each. Widths 4, 8, 16, ... and the whole table are priced, each shard
    alone on a device of a made-up task; widths between are interpolated. Communication follows the link model of the
    task's topology, times a factor. A step adds up as `shardgym.costs.links.exchange_times` says. Where ids are not
    hidden, ids count as part of the forward pass, as both come before the forward exchange. Costs that are not additive
    count as those that do not hide them.

    Args:
        shards: of the task.
        cost: any cost model.
        softness: see `Pricing`.
        budget: of time.

    Attributes:
        ids_hidden: how a step adds up.
        comm_factor: exchanges of the cost model over those of the link model.

    Raises:
        OutOfTime: the budget is spent before all shards are priced.
        MeasurementError: the cost model has no time for some shard.
    """

    def __init__(self, shards: ShardTable, cost: CostModel, softness: float, budget: Budget) -> None:
        costs = cost.additive()
        self.ids_hidden = costs is not None and costs.ids_hidden(shards.task)
        vectors = np.zeros((len(shards), 2 + LOADS))
        vectors[:, :2] = _single_ms(shards, cost, budget)
        vectors[:, -LOADS:] = _loads(shards)
        super().__init__(shards, vectors, softness)
        #: Factor, per shard and per device, of both passes.
        self._terms: Floats = np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
        self.comm_factor = 1.0
        # What was learned from: terms and ms of devices by pass, and measured / modelled exchanges of plans.
        self._device_terms: tuple[list[Floats], list[Floats]] = ([], [])
        self._device_ms: tuple[list[float], list[float]] = ([], [])
        self._comm_ratios: list[float] = []

    def compute(self, sums: Floats) -> Floats:
        """See `Pricing`."""
        ms = np.maximum(self._added_ms(sums) + self._terms[:, 2], 0.0)
        return quantized(np.where(sums[..., -1:] > 0, ms, 0.0))

    @property
    def row_ms(self) -> Floats:
        """What each row adds to the forward and backward compute of a device, shape (R, 2)."""
        return quantized(self._added_ms(self.vectors))

    def row_prices(self, examples: Sequence[Ints]) -> tuple[Floats, float]:
        """Return what was learned; see `Pricing`. The examples make no difference."""
        del examples
        return np.maximum(self.row_ms.sum(axis=1), 0.0), max(float(quantized(self._terms[:, 2].sum())), 0.0)

    def totals(self, compute: Floats, loads: Floats) -> Floats:
        """See `Pricing`."""
        transfer = self.comm_factor * self._transfer(loads[..., COLUMNS])
        # In the forward exchange all wait for the last to enter, so that only the transfer differs.
        if self.ids_hidden:
            return quantized((compute.sum(axis=2) + transfer).max(axis=1) + transfer.max(axis=1))
        return quantized(compute[..., 0].max(axis=1) + (2 * transfer + compute[..., 1]).max(axis=1))

    def learn(self, units: Sequence[Ints], costs: Sequence[PlanCost]) -> None:
        """Fit all terms to what plans turned out to cost, plans learned from before included.

        Args:
            units: of each table on each device, each of shape (D, T).
            costs: of the plans; infeasible ones are left out.
        """
        for plan_units, cost in zip(units, costs, strict=True):
            if not cost.feasible:
                continue
            sums = self.vectors[self.shards.first + plan_units].sum(axis=1)
            busy = sums[:, -1] > 0
            passes_ms = cost.per_device[:, COMPUTE_COLUMNS]
            if not self.ids_hidden:
                passes_ms[:, 0] += cost.per_device[:, _IDS]
            for number in range(2):
                terms = np.column_stack([sums[:, number], sums[:, -1], np.ones(len(sums))])
                self._device_terms[number].extend(terms[busy])
                self._device_ms[number].extend(passes_ms[busy, number].tolist())
            expected = float(self._transfer(sums[:, -LOADS + COLUMNS]).max())
            if expected > 0:
                self._comm_ratios.append(float(cost.per_device[:, _BACKWARD_COMM].max()) / expected)
        if not self._device_ms[0]:
            return
        self._terms = np.stack([self._fitted(number) for number in range(2)])
        if self._comm_ratios:
            self.comm_factor = float(np.median(self._comm_ratios))

    def _added_ms(self, sums: Floats) -> Floats:
        """Return what shards add to both passes, (..., V) to (..., 2)."""
        return sums[..., :2] * self._terms[:, 0] + sums[..., -1:] * self._terms[:, 1]

    def _fitted(self, number: int) -> Floats:
        """Return the terms of a pass by what was learned, shape (3,)."""
        terms = np.array(self._device_terms[number])
        prior = np.array([1.0, 0.0, 0.0])
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-12)
        regularised = np.vstack([terms / scale, np.sqrt(_RIDGE * len(terms)) * np.eye(3)])
        missing = np.append(np.array(self._device_ms[number]) - terms @ prior, np.zeros(3))
        return quantized_fit(prior + np.linalg.lstsq(regularised, missing, rcond=None)[0] / scale)

    def _transfer(self, columns: Floats) -> Floats:
        task = self.shards.task
        return transfer_ms(task.topology, columns, task.batch_size, ELEMENT_BYTES[task.precision])


def _loads(shards: ShardTable) -> Floats:
    """Return the loads of every row, see `shardgym.costs.links`; zeros for empty rows, shape (R, LOADS)."""
    alone = [shard_loads(shards.task, ShardKey(table.name, table.num_embeddings, 1)) for table in shards.task.tables]
    of_rows: Floats = np.array(alone)[shards.tables]
    loads: Floats = np.zeros((len(shards), LOADS))
    loads[:, COLUMNS] = shards.columns * of_rows[:, COLUMNS]
    loads[:, [IDS, SHARDS]] = (shards.columns > 0)[:, None] * of_rows[:, [IDS, SHARDS]]
    return loads


def _single_ms(shards: ShardTable, cost: CostModel, budget: Budget) -> Floats:
    """Return forward and backward compute of every row alone on a device; 0 for empty rows, shape (R, 2)."""
    powers = COLUMN_UNIT * 2 ** np.arange(40)
    priced: Ints = np.union1d(np.flatnonzero(np.isin(shards.columns, powers)), shards.whole)
    ms: Floats = np.zeros((len(shards), 2))
    step = min(_SHARDS_IN_HURRY if budget.limited else _SHARDS_PER_QUERY, cost.max_devices or _SHARDS_PER_QUERY)
    for start in range(0, len(priced), step):
        budget.check()
        rows = priced[start : start + step]
        task, plan = shards.with_own_tables(rows[:, None].tolist())
        (answer,) = cost.evaluate(task, [plan])
        if not answer.feasible:
            raise MeasurementError(f"cost '{cost.name}' has no time for single shards: {answer.reason}")
        ms[rows] = quantized(answer.per_device[:, COMPUTE_COLUMNS])
    for first, whole in zip(shards.first.tolist(), shards.whole.tolist(), strict=True):
        known = priced[(priced >= first) & (priced <= whole)]
        rows = np.arange(first + 1, whole + 1)
        for number in range(2):
            ms[rows, number] = np.interp(rows, known, ms[known, number])
    return ms
