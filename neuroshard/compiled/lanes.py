"""Placements under way, compiled, and where their next shards go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.compiled.jit import jit
from shardgym.arrays import Floats, Ints


class Lanes(NamedTuple):
    """Room for placements; each stands for consecutive values of the grid that did not differ so far.

    Attributes:
        rows: which sequence each is of, shape (L,).
        low: first value of the grid, shape (L,).
        high: last value of the grid, shape (L,); less than `low` for a lane that is given up.
        contents: of every device, shape (L, D).
        ms: compute of every device, rounded for comparison, shape (L, D).
        bytes: used of every device, shape (L, D).
        columns: of every device, shape (L, D).
        device: where the shard of this step goes, shape (L,).
    """

    rows: Ints
    low: Ints
    high: Ints
    contents: Ints
    ms: Floats
    bytes: Ints
    columns: Ints
    device: Ints


class Limits(NamedTuple):
    """What rules devices out.

    Attributes:
        caps: largest columns of a device, one per value of the grid, ascending, shape (M,).
        memory: bytes of every device, shape (D,).
        kind_columns: width of each kind, shape (S,).
        kind_bytes: of each kind, shape (S,).
    """

    caps: Floats
    memory: Ints
    kind_columns: Ints
    kind_bytes: Ints


def lanes_for(capacity: int, devices: int, values: int) -> Lanes:
    """Return room for so many lanes; the first is of the first sequence with all devices empty."""
    flat, grid = (np.zeros(capacity, dtype=np.int64) for _ in range(4)), np.zeros((capacity, devices), dtype=np.int64)
    rows, low, high, device = flat
    high[0] = values - 1
    return Lanes(rows, low, high, grid, np.zeros(grid.shape), grid.copy(), grid.copy(), device)


@jit
def copy(lanes: Lanes, source: int, target: int) -> None:
    """Make one lane like another."""
    lanes.rows[target], lanes.device[target] = lanes.rows[source], lanes.device[source]
    lanes.low[target], lanes.high[target] = lanes.low[source], lanes.high[source]
    lanes.contents[target], lanes.ms[target] = lanes.contents[source], lanes.ms[source]
    lanes.bytes[target], lanes.columns[target] = lanes.bytes[source], lanes.columns[source]


@jit
def choose(lanes: Lanes, used: int, limits: Limits, kinds: Ints) -> int:
    """Set the device of each lane, splitting lanes whose values of the grid lead to different devices.

    The largest value of a lane allows the most devices. Values that are too small for the device it leads to are a lane
    of their own that looks again, and so on. Lanes without a device are given up. Returns how many lanes there are.
    """
    lane = 0
    while lane < used:
        kind = kinds[lanes.rows[lane]]
        device = cheapest(lanes, lane, limits, kind)
        if device < 0:
            used -= 1
            if lane < used:
                copy(lanes, used, lane)
            continue
        lanes.device[lane] = device
        least = np.searchsorted(limits.caps, lanes.columns[lane, device] + limits.kind_columns[kind])
        if least > lanes.low[lane]:
            copy(lanes, lane, used)
            lanes.high[used] = least - 1
            used += 1
            lanes.low[lane] = least
        lane += 1
    return used


@jit
def cheapest(lanes: Lanes, lane: int, limits: Limits, kind: int) -> int:
    """Return the allowed device with the least compute (ties: fewer bytes, lower number); -1 for none."""
    best, least_ms, least_bytes = -1, np.inf, 0
    cap, columns, size = limits.caps[lanes.high[lane]], limits.kind_columns[kind], limits.kind_bytes[kind]
    for device in range(len(limits.memory)):
        ms, used = lanes.ms[lane, device], lanes.bytes[lane, device]
        better = ms < least_ms or (ms == least_ms and used < least_bytes)
        if better and used + size <= limits.memory[device] and lanes.columns[lane, device] + columns <= cap:
            best, least_ms, least_bytes = device, ms, used
    return best
