"""Standing: what the shards placed so far cost, for dense rewards."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.simulator.oracle_networks import ComputeNet
from shardgym.envs.partial_cost import PartialCost, partial_cost
from shardgym.envs.placement import Placement
from shardgym.envs.vector.encoded_kinds import EncodedKinds
from shardgym.envs.vector.placements import Placements
from shardgym.errors import MeasurementError


class Standing(Protocol):
    """`PartialCost` for N placements."""

    def begin(self, rows: Ints) -> None:
        """See that placements were begun."""

    def put(self, rows: Ints, devices: Ints) -> None:
        """See that the next shards of placements are about to be put on devices."""

    def ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """Return what slowest devices take in ms, shape (n,), infinite for the numbers that reasons are given of."""


def standing(cost: CostModel, placements: Placements, encoded: EncodedKinds | None) -> Standing:
    """Return what keeps count for dense rewards."""
    return EvaluatedStanding(cost, placements) if encoded is None else SimulatedStanding(encoded, placements)


class SimulatedStanding:
    """Adds latents, and has all placements with equally many devices predicted together.

    Args:
        encoded: shards, and the oracle.
        placements: what is scored.
    """

    def __init__(self, encoded: EncodedKinds, placements: Placements) -> None:
        self._encoded, self._placements = encoded, placements
        self._sums = np.zeros((*placements.used.shape, ComputeNet.LATENT))

    def begin(self, rows: Ints) -> None:
        """See `Standing`; encodes new tasks, so that those of an unknown kind are refused."""
        self._sums[rows] = 0.0
        self._encoded.numbers(self._placements.slot[rows], self._placements.queue.next[rows])

    def put(self, rows: Ints, devices: Ints) -> None:
        """See `Standing`."""
        p = self._placements
        numbers = self._encoded.numbers(p.slot[rows], p.queue.next[rows])
        self._sums[rows, devices] += self._encoded.predictor.latents(numbers)

    def ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """See `Standing`."""
        p, ms = self._placements, np.zeros(len(rows))
        devices = p.shards.tasks["devices"][p.slot[rows]]
        for count in np.unique(devices):
            group = devices == count
            here, slot = rows[group], p.slot[rows[group]]
            numbers = self._encoded.tasks(slot)
            widths = p.dims[here, :count].astype(np.float64)
            phases = self._encoded.predictor.per_device_ms(
                numbers, self._sums[here, :count], p.tables[here, :count], widths
            )
            ms[group] = phases.sum(axis=2).max(axis=1)
        return ms, {}


class EvaluatedStanding:
    """Asks the cost model about one placement after the other.

    Args:
        cost: any cost model.
        placements: what is scored.
    """

    def __init__(self, cost: CostModel, placements: Placements) -> None:
        self._cost, self._placements = cost, placements
        self._partial: dict[int, PartialCost] = {}

    def begin(self, rows: Ints) -> None:
        """See `Standing`."""
        p = self._placements
        for row in rows.tolist():
            self._partial[row] = partial_cost(self._cost, Placement(p.shards.figures[p.slot[row]], p.limits))

    def put(self, rows: Ints, devices: Ints) -> None:
        """See `Standing`."""
        p = self._placements
        shards = zip(p.queue.next[rows].tolist(), p.queue.next_start[rows].tolist(), devices.tolist(), strict=True)
        for row, shard in zip(rows.tolist(), shards, strict=True):
            self._partial[row].put(p.shards.kinds.shard(*shard))

    def ms(self, rows: Ints) -> tuple[Floats, dict[int, str]]:
        """See `Standing`."""
        ms, reasons = np.full(len(rows), math.inf), {}
        for n, row in enumerate(rows.tolist()):
            try:
                ms[n] = self._partial[row].per_device().sum(axis=1).max()
            except MeasurementError as error:
                reasons[row] = str(error)
        return ms, reasons
