"""Local search over the kinds of sharding: one table at a time becomes shared by devices, or stops being shared."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from neuroshard.plus.choices import least_busy
from neuroshard.plus.linear_model import LARGE
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.pricing import Pricing
from neuroshard.plus.sharing import Form, Place, Shared
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import LOADS

#: Numbers in the vectors of placements that are priced together.
_NUMBERS_PER_CALL = 2_000_000
#: A change must save more than this share of the time.
_LEAST_GAIN = 1e-4
#: Number of a plan's most promising changes that are tried.
_TRIED = 4
#: Shared tables that a round prices as columns, and those of large tasks.
_MOST_BACK = 64
_FEW_BACK = 8
#: Pieces into which the columns of a table that was shared are cut.
_PIECES = (1, 2, 4, 8)


def with_better_kinds(
    best: Allocation, forms: Sequence[Sequence[Form]], search_beside: Callable[[Shared], IteratedLocalSearch]
) -> Allocation:
    """Improve an allocation by changing the kind of one table at a time, each change followed by a descent.

    A table of the most loaded devices becomes shared, or a shared table gets another form or is placed by columns. The
    search tries the changes that look best by exact prices. `search_beside` returns the search over the columns of the
    tables that are not shared.
    """
    improved = True
    while improved:
        improved = False
        for units, shared in _promising(best, forms):
            other = search_beside(shared).descended([units])
            if other.value < best.value * (1 - _LEAST_GAIN):
                best = other
                improved = True
                break
    return best


class _Change(NamedTuple):
    """A table whose kind changes, and what the plan then is."""

    table: int
    units: Ints  #: of the table on each device, shape (D,)
    places: list[Place]  #: where it is shared, if it is
    sums: Floats  #: sums of devices' vectors, shape (D, V)
    bytes: float  #: device memory of the table


class _Removed(NamedTuple):
    """What devices have without a table."""

    sums: Floats  #: sums of their vectors, shape (D, V)
    room: Ints  #: free bytes, shape (D,)


def _promising(best: Allocation, forms: Sequence[Sequence[Form]]) -> list[tuple[Ints, Shared]]:
    """Return the results of the most promising changes: units of each table on each device, and shared tables."""
    pricing = best.pricing
    places = pricing.shared.places
    busy_ms = best.compute.sum(axis=1)
    room = pricing.room(best.units)
    slowest = {int(busy_ms.argmax()), int(best.units.sum(axis=1).argmax())}
    tables = np.flatnonzero(best.units[sorted(slowest)].any(axis=0)).tolist()
    changes: list[_Change] = []
    for table in [*tables, *list(places)[: _MOST_BACK if best.units.size <= LARGE else _FEW_BACK]]:
        rows = pricing.shards.first[table] + best.units[:, table]
        removed = _Removed(best.sums - pricing.vectors[rows], room + pricing.shards.bytes[rows])
        now = places.get(table)
        if now is not None:
            removed.sums[now.devices] -= now.form.vectors
            removed.room[now.devices] += now.form.bytes
        others = [form for form in forms[table] if now is None or now.form.way != form.way]
        changes += _to_forms(table, others, removed, busy_ms)
        if now is not None:
            changes += _to_columns(pricing, table, removed)
    order = _prices(pricing, changes).argsort(kind="stable")
    found = []
    for change in (changes[n] for n in order[:_TRIED].tolist()):
        units = best.units.copy()
        units[:, change.table] = change.units
        found.append((units, pricing.shared.changed([change.table], change.places)))
    return found


def _to_forms(table: int, forms: Sequence[Form], removed: _Removed, busy_ms: Floats) -> Iterator[_Change]:
    """Yield the changes that share a table in some forms, on the least busy devices with room."""
    for form in forms:
        place = least_busy(form, removed.room, busy_ms)
        if place is not None:
            sums = removed.sums.copy()
            sums[place.devices] += form.vectors
            yield _Change(table, np.zeros_like(removed.room), [place], sums, float(form.bytes.sum()))


def _to_columns(pricing: Pricing, table: int, removed: _Removed) -> Iterator[_Change]:
    """Yield the changes that cut a table evenly by columns, with pieces on the least busy devices."""
    shards = pricing.shards
    order = pricing.compute(np.maximum(removed.sums, 0.0)).sum(axis=1).argsort(kind="stable")
    units = int(shards.units[table])
    for pieces in _PIECES:
        if pieces > min(len(order), units):
            break
        placed = np.zeros_like(removed.room)
        placed[order[:pieces]] = units // pieces
        placed[order[: units % pieces]] += 1
        rows = shards.first[table] + placed
        if (shards.bytes[rows] <= removed.room).all():
            size = float(pricing.row_bytes[shards.whole[table]])
            yield _Change(table, placed, [], removed.sums + pricing.vectors[rows], size)


def _prices(pricing: Pricing, changes: Sequence[_Change]) -> Floats:
    """Return the objectives of plans after changes in ms, with the price of the tables' memory, shape (n,)."""
    found = [np.zeros(0)]
    step = max(1, _NUMBERS_PER_CALL // pricing.shared.sums.size)
    for start in range(0, len(changes), step):
        some = changes[start : start + step]
        sums = np.maximum(np.array([change.sums for change in some]), 0.0)
        charges = pricing.byte_ms * np.array([change.bytes for change in some]) / sums.shape[1]
        found.append(pricing.objective(pricing.compute(sums), sums[..., -LOADS:])[1] + charges)
    return np.concatenate(found)
