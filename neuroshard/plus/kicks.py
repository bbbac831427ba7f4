"""Kicks: random moves that carry a placement out of the neighbourhood of a local optimum."""

from __future__ import annotations

import numpy as np

from neuroshard.plus.shelf import Shelf
from shardgym.arrays import Ints

#: Draws per move before a kick goes without it, which happens where memory is full or there is one device.
_DRAWS = 20


def kicked(shelf: Shelf, units: Ints, moves: int, rng: np.random.Generator) -> Ints:
    """Return units after random moves and swaps of shards and parts of them that memory allows.

    Args:
        shelf: of the task.
        units: of each table on each device, shape (D, T).
        moves: how many.
        rng: of the draws.
    """
    memory = np.array(shelf.task.topology.memory_bytes, dtype=np.int64)
    units = units.copy()
    used = shelf.bytes[shelf.first + units].sum(axis=1)
    for _ in range(moves):
        for _ in range(_DRAWS):
            after = _moved(units, rng)
            pair = (after != units).any(axis=1)
            needed = shelf.bytes[shelf.first + after[pair]].sum(axis=1)
            if pair.any() and (needed <= memory[pair]).all():
                units, used[pair] = after, needed
                break
    return units


def _moved(units: Ints, rng: np.random.Generator) -> Ints:
    """Give a random shard or a part of it to a random device, which two times in three returns one of its own."""
    devices, tables = np.nonzero(units)
    one, target = int(rng.integers(len(devices))), int(rng.integers(len(units)))
    source, after = int(devices[one]), units.copy()
    if target == source:
        return after
    pairs = [(source, target, int(tables[one]))]
    others = tables[devices == target]
    if others.size and rng.integers(3):
        pairs.append((target, source, int(rng.choice(others))))
    for giver, taker, table in pairs:
        held = int(units[giver, table])
        given = held if rng.integers(2) else int(rng.integers(1, held + 1))
        after[taker, table] += given
        after[giver, table] -= given
    return after
