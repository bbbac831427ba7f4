"""Pricing: times of devices and whole plans from sums of their shards' vectors, and the search's objective."""

import copy
from collections.abc import Sequence
from typing import Self

import numpy as np

from neuroshard.plus.sharing import Shared, shards_of, shared
from neuroshard.shard_table import ShardTable, plan_of_units
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import LOADS, SHARDS
from shardgym.costs.ties import quantized, rounded
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard

#: Width of the soft maximum over devices' compute, as a share of their mean.
SOFTNESS = 0.005
#: How strongly a fit is drawn to no latents, of which there are many.
_LATENT_RIDGE = 1e-5
#: What a shard adds is at least this share of what it takes alone.
_LEAST_SHARE = 0.05
#: Plans x devices whose communication is predicted together; larger batches leave the processor's cache.
_DEVICES_PER_CALL = 512


class Pricing:
    """An additive cost as functions of sums of vectors, one per shard; and the search's objective.

    The objective is the predicted cost of a step, plus the excess of a soft maximum over devices' compute above the
    hard one. With the hard maximum alone, only the slowest device would count.

    Args:
        shards: shards of the task.
        costs: additive costs of the cost model.
        vectors: a vector per row of `shards`, ending in its loads, see `AdditiveCosts.vectors`, zeros for empty rows,
            shape (R, V). The last entry of a sum is the number of shards. Computed from `costs` when None.
    """

    byte_ms = 0.0  #: saving of a byte of device memory, if rows may be in host memory

    def __init__(self, shards: ShardTable, costs: AdditiveCosts, vectors: Floats | None = None) -> None:
        self.shards = shards
        self.costs = costs
        self._task = costs.add_task(shards.task)
        self.vectors = shards.vectors(costs, np.flatnonzero(shards.columns)) if vectors is None else vectors
        #: Shared tables beside the columns.
        self.shared = shared([], (shards.task.num_devices, self.vectors.shape[1]))
        self.row_bytes: Ints = shards.bytes  #: expected device memory of each row, shape (R,)

    def beside(self, shared: Shared) -> Self:
        """Return the pricing of the other tables' columns beside these shared tables."""
        other = copy.copy(self)
        other.shared = shared
        return other

    @property
    def memory(self) -> Ints:
        """Bytes for columns on each device, shape (D,)."""
        return np.array(self.shards.task.capacity_bytes, dtype=np.int64) - self.shared.bytes

    def room(self, units: Ints) -> Ints:
        """Return the free bytes of each device, shape (D,), given units of each table on each device, (D, T)."""
        used: Ints = self.shards.bytes[self.shards.first + units].sum(axis=1)
        return self.memory - used

    @property
    def units(self) -> Ints:
        """Units of each table to place, shape (T,)."""
        units = self.shards.units.copy()
        units[list(self.shared.places)] = 0
        return units

    def compute(self, sums: Floats) -> Floats:
        """Return forward and backward ms of devices, 0 for empty ones, quantized, (..., V) to (..., 2)."""
        return self.costs.compute_ms(sums)

    def totals(self, compute: Floats, loads: Floats) -> Floats:
        """Return plans' costs in ms, quantized, from devices' compute, (P, D, 2), and loads, (P, D, LOADS)."""
        return self.costs.slowest_ms(self._task, compute, loads)

    def row_prices(self, examples: Sequence[Ints]) -> tuple[Floats, float]:
        """Return the compute that each row adds to a device, shape (R,), and a device's fixed compute, in ms.

        Both are forward plus backward compute, quantized, from a ridge regression on relative errors of example
        devices. The fit is linear in the shards' compute alone, their number, and their latents. If compute is not a
        sum, because fused kernels take less, the fit is accurate near the examples. It covers only what columns add to
        the devices' shared tables.
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
        # A fit multiplies rounding errors by how badly its problem is conditioned: fewer bits are the same everywhere.
        fitted = rounded(prior + np.linalg.lstsq(weighted, missing, rcond=None)[0] / scale, bits=20)
        per_load = np.zeros(LOADS)
        per_load[SHARDS] = fitted[2]
        row_ms = fitted[0] * alone + self.vectors @ np.concatenate([fitted[3:], per_load])
        # No shard is for nothing, whatever the line says beyond the examples.
        return quantized(np.maximum(row_ms, _LEAST_SHARE * alone)), max(float(quantized(fitted[1])), 0.0)

    def sums(self, units: Ints) -> Floats:
        """Return the devices' sums of vectors, (D, T) to (D, V)."""
        sums = self.shared.sums.copy()
        devices, tables = np.nonzero(units)
        if len(devices):
            busy = np.flatnonzero(np.diff(devices, prepend=-1))
            sums[devices[busy]] += np.add.reduceat(self.vectors_of(units, devices, tables), busy, axis=0)
        return sums

    def vectors_of(self, units: Ints, devices: Ints, tables: Ints) -> Floats:
        """Return the vectors of the units, shape (D, T), of some tables on some devices, (n,) each to (n, V)."""
        vectors: Floats = self.vectors[self.shards.first[tables] + units[devices, tables]]
        return vectors

    def sums_after(self, units: Ints, sums: Floats, moves: Ints) -> Floats:
        """Return the sums of vectors of giver and taker after each of some moves, (M, 6) to (M, 2, V).

        `units` and `sums` are those before the move; for moves see `moves.GIVER`.
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
        """Return the price of so many bytes of a device's memory in ms, quantized."""
        return quantized(np.asarray(self.byte_ms * num_bytes, dtype=np.float64))

    def has_room(self, units: Ints) -> bool:  # noqa: ARG002
        """Say whether hosts have room for the rows that devices with these units, shape (D, T), do not hold."""
        return True

    def plan(self, units: Ints) -> ShardingPlan:
        """Return the plan of units of each table on each device, shape (D, T), and of the shared tables."""
        return plan_of_units(self.shards, units, self.shared_shards())

    def shared_shards(self) -> list[Shard]:
        """Return the shards of the shared tables."""
        return [shard for place in self.shared.places.values() for shard in shards_of(self.shards.task, place)]

    def objective(self, compute: Floats, loads: Floats) -> tuple[Floats, Floats]:
        """Return costs and objectives of plans in ms, (P,) each with P at least 1; arguments as in `totals`."""
        step = max(_DEVICES_PER_CALL // compute.shape[1], 1)
        starts = range(0, len(compute), step)
        totals = np.concatenate([self.totals(compute[n : n + step], loads[n : n + step]) for n in starts])
        return totals, totals + quantized(excess(compute[..., 0] + compute[..., 1]))


def excess(compute: Floats) -> Floats:
    """Return the excess of the soft maximum of devices' compute over the hard one, (P, D) to (P,)."""
    width = SOFTNESS * compute.mean(axis=1, keepdims=True)
    above = (compute - compute.max(axis=1, keepdims=True)) / np.maximum(width, 1e-12)
    excess: Floats = width[:, 0] * np.log(np.exp(above).sum(axis=1))
    return excess
