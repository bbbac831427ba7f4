"""AcrossTasks: costs of plans of many tasks in one call, each exactly what `SimulatorCost.evaluate` says of it alone.

Matrix products are stacked plan by plan instead of joined: the library that carries them out may round differently
when a matrix has more rows, so joining would change last bits. For matrices this small it is no slower.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.simulator import compute_net
from shardgym.costs.simulator.columns import Columns
from shardgym.costs.simulator.contents import ByDevice, Contents, by_device
from shardgym.costs.simulator.cost import SimulatorCost
from shardgym.costs.simulator.familiarity import outside
from shardgym.costs.simulator.features import DEVICE_RANGE_NAMES
from shardgym.costs.simulator.ops import NUMPY
from shardgym.costs.simulator.plan_notes import PlanNotes, bits
from shardgym.costs.simulator.predictors import OraclePredictor
from shardgym.costs.simulator.stacked_exchanges import StackedExchanges
from shardgym.errors import InputError
from shardgym.plan import Shard
from shardgym.task import ShardingTask

#: Shards of the plans that are predicted at once; more would leave the cache.
_SHARDS = 2048

_COLUMNS = DEVICE_RANGE_NAMES.index("columns per device")


class AcrossTasks:
    """Costs of feasible plans of many tasks. Memory, cover and widths are not checked here.

    Args:
        cost: an oracle.

    Raises:
        InputError: it is a judge or a simulator of compute alone, which serve plans of one task at a time.
    """

    def __init__(self, cost: SimulatorCost) -> None:
        predictor = cost._predictor
        if not isinstance(predictor, OraclePredictor):
            raise InputError("a judge scores plans of one task at a time: expected a simulator with role='oracle'")
        if not cost.predicts_exchanges:
            raise InputError("a simulator of compute alone scores plans of one task at a time")
        self._cost, self._predictor, self._weights = cost, predictor, cost._weights
        self._networks = self._weights.networks["compute"]
        self._exchanges = StackedExchanges(self._weights)
        self._notes = PlanNotes(self._weights)
        latents = len(self._networks["encoder.0.weight"]), compute_net.LATENT
        self._shards = Columns(
            latents=(latents, np.float64), outside=((), np.int64), parts=((len(DEVICE_RANGE_NAMES),), np.float64),
            links=((), np.int64),
        )  # fmt: skip
        self._link_notes: list[tuple[str, ...]] = [()]

    def add(self, task: ShardingTask, shards: Sequence[Shard]) -> int:
        """Encode shards, whatever devices they name, and return the number of the first; the others follow.

        Raises:
            InputError: the task is of a kind that the weights were not trained on.
        """
        known = self._cost._shards_of(task)
        at = known.positions(shards)
        out = bits(outside(self._weights, "shard", known.shard_ranges[at]), "shard")
        links = np.full(len(at), self._links_of(task))
        return self._shards.append(latents=known.encoded[at], outside=out, parts=known.device_parts[at], links=links)

    def latents(self, numbers: Ints) -> Floats:
        """Return what shards add to the sum over their device, shape (n, 32)."""
        latents: Floats = self._shards["latents"][numbers, 0]
        return latents

    def costs(self, contents: Contents) -> list[PlanCost]:
        """Return the cost of every plan.

        Args:
            contents: at least one plan, of shards that were added.
        """
        return [cost for first, last in _pieces(contents) for cost in self._piece(contents.part(first, last))]

    def placed_ms(self, sums: Floats, counts: Ints, widths: Floats, batch: Floats, element_bytes: Floats) -> Floats:
        """Return what slowest devices take of P placements, complete or not, as `PlacementState.total` does, in ms.

        Args:
            sums: added `latents` of every device, shape (P, D, 32).
            counts: shards of every device, shape (P, D).
            widths: columns of every device, shape (P, D).
            batch: samples over all devices, shape (P,).
            element_bytes: of one value, shape (P,).
        """
        ms, busy = np.zeros((*counts.shape, 2)), (counts > 0).sum(axis=1)
        for number in np.unique(busy[busy > 0]):
            plans, devices = np.nonzero((counts > 0) & (busy == number)[:, None])
            stacks = sums[plans, devices].reshape(-1, number, sums.shape[2])
            ms[plans, devices] = self._predictor.head_ms(stacks).reshape(-1, 2)
        times = self._exchanges.times(ms.sum(axis=2), widths, batch, element_bytes)
        phases = np.stack([ms[..., 0], times.forward_ms, times.backward_ms, ms[..., 1]], axis=-1)
        return np.asarray(phases.sum(axis=2).max(axis=1), dtype=np.float64)

    def _piece(self, contents: Contents) -> list[PlanCost]:
        held, shape = by_device(contents), (len(contents.counts), contents.num_devices)
        parts = self._shards["parts"][held.shards]
        sums: Floats = np.column_stack([np.bincount(held.device, part)[held.owner] for part in parts.T]).astype(float)
        ms, spread, widths = np.zeros((*shape, 2)), np.zeros(shape), np.zeros(shape)
        ms.reshape(-1, 2)[held.owner], spread.ravel()[held.owner] = self._compute(held)
        widths.ravel()[held.owner] = sums[:, _COLUMNS]
        times = self._exchanges.times(ms.sum(axis=2), widths, contents.batch, contents.element_bytes)
        per_device = np.stack([ms[..., 0], times.forward_ms, times.backward_ms, ms[..., 1]], axis=-1)
        by_device_bits = bits(outside(self._weights, "device", sums), "device")
        comm = self._exchanges.outside(times.offsets_ms, widths, contents.batch, contents.element_bytes)
        out = np.bitwise_or.reduceat(self._shards["outside"][contents.shards], contents.starts)
        out |= np.bitwise_or.reduceat(by_device_bits, held.first) | bits(comm, "comm")
        notes = self._notes.of(out, spread.max(axis=1))
        if len(self._link_notes) > 1:
            links = self._shards["links"][contents.shards[contents.starts]].tolist()
            notes = [own + self._link_notes[number] for own, number in zip(notes, links, strict=True)]
        return self._plan_costs(per_device, notes)

    def _links_of(self, task: ShardingTask) -> int:
        """Return the number of what is to be noted about a task's links; 0 for nothing."""
        notes = self._cost._link_notes(task)
        if notes not in self._link_notes:
            self._link_notes.append(notes)
        return self._link_notes.index(notes)

    def _plan_costs(self, per_device: Floats, notes: list[tuple[str, ...]]) -> list[PlanCost]:
        """Return costs; only the first is checked field by field, as the others differ in times and notes alone."""
        first = PlanCost(
            per_device[0], self._cost.name, self._cost.version, self._cost.hardware, compute="predicted",
            communication="predicted", notes=notes[0],
        )  # fmt: skip
        if not (np.isfinite(per_device) & (per_device >= 0)).all():
            return [dataclasses.replace(first, per_device=ms, notes=n) for ms, n in zip(per_device, notes, strict=True)]
        per_device.setflags(write=False)
        return [_with(first, ms, n) for ms, n in zip(per_device, notes, strict=True)]

    def _compute(self, held: ByDevice) -> tuple[Floats, Floats]:
        """Return ms, shape (G, 2), and disagreement, shape (G,), of devices that hold anything."""
        sums = np.add.reduceat(self._shards["latents"][held.shards], held.starts, axis=0)
        ms, spread = np.zeros((len(sums), 2)), np.zeros(len(sums))
        for busy in np.unique(held.busy):
            rows = held.first[held.busy == busy][:, None] + np.arange(busy)
            stacks = sums[rows]
            ms[rows] = self._predictor.head_ms(stacks[:, :, 0])
            members = compute_net.head(NUMPY, self._networks, np.swapaxes(stacks, 1, 2))
            spread[rows] = np.log(np.exp(members).sum(axis=-1)).std(axis=1)
        return ms, spread


def _pieces(contents: Contents) -> Iterator[tuple[int, int]]:
    """Cut plans into runs of about `_SHARDS` shards."""
    ends = np.cumsum(contents.counts)
    cuts = np.flatnonzero(np.diff(ends // _SHARDS)) + 1
    edges = [0, *cuts.tolist(), len(ends)]
    return itertools.pairwise(edges)


def _with(cost: PlanCost, per_device: Floats, notes: tuple[str, ...]) -> PlanCost:
    """Return a copy with other times, which are known to be finite and not negative, and other notes."""
    other = object.__new__(PlanCost)
    other.__dict__.update(cost.__dict__, per_device=per_device, notes=notes)
    return other
