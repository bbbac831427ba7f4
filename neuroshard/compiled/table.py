"""The table of contents, compiled: an open hash table by the sum of the shards' keys."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from neuroshard.arrays import DECIMALS, Keys
from neuroshard.compiled.head import Head, price
from neuroshard.compiled.jit import jit
from shardgym.arrays import Floats, Ints

#: A slot that no content has taken.
FREE = -1
#: What rounding for comparison multiplies by, as NumPy's rounding does.
_SCALE = 10.0**DECIMALS


class Table(NamedTuple):
    """Contents by number, see `Contents`, and how they are priced.

    Attributes:
        slots: number of the content in each slot or `FREE`; a power of 2 of them, twice the capacity at least.
        keys: of contents, shape (capacity,).
        parents: what each content is made of, shape (capacity,).
        added: and of which kind, shape (capacity,).
        sums: added latents, shape (capacity, 32).
        widths: columns, shape (capacity,).
        ms: forward plus backward compute, shape (capacity,).
        compared_ms: the same, rounded for comparison.
        kind_keys: of kinds, shape (S,).
        kind_latents: shape (S, 32).
        kind_widths: shape (S,).
        head: of the compute model.
    """

    slots: Ints
    keys: Keys
    parents: Ints
    added: Ints
    sums: Floats
    widths: Floats
    ms: Floats
    compared_ms: Floats
    kind_keys: Keys
    kind_latents: Floats
    kind_widths: Floats
    head: Head


def slots_of(keys: Keys, capacity: int) -> Ints:
    """Return slots for so many contents, those with the given keys in them."""
    slots: Ints = np.full(2 ** int(2 * capacity - 1).bit_length(), FREE)
    _fill(slots, keys)
    return slots


@jit
def _fill(slots: Ints, keys: Keys) -> None:
    for number in range(len(keys)):
        slot = np.int64(keys[number] & np.uint64(len(slots) - 1))
        while slots[slot] != FREE:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = number


@jit
def find_or_append(table: Table, count: int, content: int, kind: int) -> int:
    """Return the number of a content with one shard more: `count` when it is new, and then not priced yet."""
    key = table.keys[content] + table.kind_keys[kind]
    slot = np.int64(key & np.uint64(len(table.slots) - 1))
    while table.slots[slot] != FREE:
        number: int = table.slots[slot]
        if table.keys[number] == key:
            return number
        slot = (slot + 1) & (len(table.slots) - 1)
    table.slots[slot] = count
    table.keys[count] = key
    table.parents[count], table.added[count] = content, kind
    table.widths[count] = table.widths[content] + table.kind_widths[kind]
    for n in range(table.sums.shape[1]):
        table.sums[count, n] = table.sums[content, n] + table.kind_latents[kind, n]
    return count


@jit
def price_new(table: Table, first: int, count: int) -> None:
    """Price the contents from `first` on, all in one call of the head."""
    if count > first:
        ms = price(table.head, table.sums[first:count])
        table.ms[first:count] = ms
        table.compared_ms[first:count] = np.rint(ms * _SCALE) / _SCALE


@jit
def add_all(table: Table, count: int, contents: Ints, kinds: Ints) -> tuple[int, Ints]:
    """Add one shard to each of some contents; return how many contents there are then, and the numbers."""
    numbers, first = np.empty_like(contents), count
    for n in range(len(contents)):
        numbers[n] = find_or_append(table, count, contents[n], kinds[n])
        count = max(count, numbers[n] + 1)
    price_new(table, first, count)
    return count, numbers
