"""Pricing: times of devices and of whole plans from added vectors of their shards."""

from __future__ import annotations

import abc

import numpy as np

from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Floats, Ints


class Pricing(abc.ABC):
    """A cost model as sums of vectors, one per shard, and functions of these sums.

    Args:
        shelf: the shards.
        vectors: one per row of the shelf, zeros for empty rows, shape (R, V).

    Attributes:
        shelf: the shards.
        vectors: as given.
        ms_per_column: about how much longer a step takes per column of the widest device.
    """

    def __init__(self, shelf: Shelf, vectors: Floats) -> None:
        self.shelf, self.vectors = shelf, vectors
        self.ms_per_column = 0.0

    @abc.abstractmethod
    def compute(self, sums: Floats) -> Floats:
        """Return forward plus backward ms of devices that hold something, (G, V) to (G,)."""

    @abc.abstractmethod
    def totals(self, compute: Floats, columns: Ints) -> Floats:
        """Return what whole plans take in ms, communication included.

        Args:
            compute: of every device in ms, shape (P, D).
            columns: of every device, shape (P, D).

        Returns:
            Shape (P,).
        """

    def busy(self, sums: Floats, columns: Ints) -> Floats:
        """Return compute of devices, 0 for empty ones; `sums` of shape (..., V), `columns` of shape (...)."""
        held = columns > 0
        if held.all():
            return self.compute(sums.reshape(-1, sums.shape[-1])).reshape(columns.shape)
        ms = np.zeros(columns.shape)
        if held.any():
            ms[held] = self.compute(sums[held])
        return ms

    def learn_slope(self) -> None:
        """Set `ms_per_column` from what a plan with everything spread evenly takes, and one with a wider device."""
        rows, devices = self.shelf.first + self.shelf.units, self.shelf.task.num_devices
        even = max(int(self.shelf.columns[rows].sum()) // devices, 4)
        columns = np.full((2, devices), even)
        columns[1, 0] += max(even // 4, 4)
        compute = np.full(columns.shape, float(self.compute(self.vectors[rows]).sum()) / devices)
        before, after = self.totals(compute, columns)
        self.ms_per_column = max(float(after - before) / float(columns[1, 0] - even), 0.0)
