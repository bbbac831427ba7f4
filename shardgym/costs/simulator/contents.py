"""Contents: what the devices of many plans hold, as arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints


class Contents(NamedTuple):
    """Shards of P plans, which may be of different tasks with the same number of devices.

    Attributes:
        num_devices: D of every plan.
        counts: shards of each plan, all at least 1, shape (P,).
        shards: numbers of shards, plan after plan, each plan's in the order of `ShardingPlan.shards`, shape (H,).
        devices: that hold them, shape (H,).
        batch: samples over all devices, shape (P,).
        element_bytes: of one value, shape (P,).
    """

    num_devices: int
    counts: Ints
    shards: Ints
    devices: Ints
    batch: Floats
    element_bytes: Floats

    @property
    def starts(self) -> Ints:
        """Where each plan starts in `shards`, shape (P,)."""
        return np.asarray(np.cumsum(self.counts) - self.counts, dtype=np.int64)

    def part(self, first: int, last: int) -> Contents:
        """Return plans `first` to `last - 1`."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        held = slice(ends[first], ends[last])
        return Contents(
            self.num_devices, self.counts[first:last], self.shards[held], self.devices[held], self.batch[first:last],
            self.element_bytes[first:last],
        )  # fmt: skip


class ByDevice(NamedTuple):
    """Contents, sorted by the devices that hold something.

    Attributes:
        shards: numbers, device after device, shape (H,).
        device: plan * D + device of each, ascending, shape (H,).
        owner: plan * D + device of the devices that hold anything, ascending, shape (G,).
        starts: where each of them starts in `shards`, shape (G,).
        first: where each plan starts in `owner`, shape (P,).
        busy: devices of each plan that hold anything, shape (P,).
    """

    shards: Ints
    device: Ints
    owner: Ints
    starts: Ints
    first: Ints
    busy: Ints


def by_device(contents: Contents) -> ByDevice:
    """Sort shards by plan and device; those of one device stay in order, which sums depend on."""
    plans, devices = len(contents.counts), contents.num_devices
    owner = np.repeat(np.arange(plans) * devices, contents.counts) + contents.devices
    held = np.bincount(owner, minlength=plans * devices)
    owners = np.flatnonzero(held)
    starts = np.cumsum(held)[owners] - held[owners]
    busy = (held.reshape(plans, devices) > 0).sum(axis=1)
    order = np.argsort(owner, kind="stable")
    return ByDevice(contents.shards[order], owner[order], owners, starts, np.cumsum(busy) - busy, busy)
