"""Local search over the kinds of sharding: one table at a time becomes shared by devices, or stops being shared."""

from collections.abc import Callable, Sequence

import numpy as np

from neuroshard.plus.choices import least_busy
from neuroshard.plus.linear_model import LARGE
from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
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
        for units, shared in _changed(best, forms):
            other = search_beside(shared).descended([units])
            if other.value < best.value * (1 - _LEAST_GAIN):
                best = other
                improved = True
                break
    return best


def _changed(best: Allocation, forms: Sequence[Sequence[Form]]) -> list[tuple[Ints, Shared]]:
    """Return the results of the most promising changes: units of each table on each device, and shared tables."""
    pricing, shared, devices = best.pricing, best.pricing.shared, len(best.units)
    busy_ms = best.compute.sum(axis=1)
    room = pricing.room(best.units)
    slowest = {int(busy_ms.argmax()), int(best.units.sum(axis=1).argmax())}
    tables = np.flatnonzero(best.units[sorted(slowest)].any(axis=0)).tolist()
    # Of each change the table, its units on each device, its place if it is shared, sums of devices, and bytes.
    found: list[tuple[int, Ints, list[Place], Floats, float]] = []
    for table in [*tables, *list(shared.places)[: _MOST_BACK if best.units.size <= LARGE else _FEW_BACK]]:
        now = shared.places.get(table)
        nowhere = np.zeros_like(best.units[:, table])
        rows = pricing.shards.first[table] + best.units[:, table]
        left = best.sums - pricing.vectors[rows]
        more_room = room + pricing.shards.bytes[rows]
        if now is not None:
            left[now.devices] -= now.form.vectors
            more_room[now.devices] += now.form.bytes
        for form in forms[table]:
            place = least_busy(form, more_room, busy_ms)
            if place is None or (now is not None and now.form.way == form.way):
                continue
            sums = left.copy()
            sums[place.devices] += form.vectors
            found.append((table, nowhere, [place], sums, float(form.bytes.sum())))
        if now is None:
            continue
        left_ms = pricing.compute(np.maximum(left, 0.0)).sum(axis=1)
        for pieces in _PIECES:
            if pieces > min(devices, int(pricing.shards.units[table])):
                break
            placed = nowhere.copy()
            sums = left.copy()
            parts = np.full(pieces, pricing.shards.units[table] // pieces)
            parts[: int(pricing.shards.units[table]) % pieces] += 1
            for device, part in zip(left_ms.argsort(kind="stable").tolist(), parts.tolist(), strict=False):
                placed[device] = part
                sums[device] += pricing.vectors[pricing.shards.first[table] + part]
            if (pricing.shards.bytes[pricing.shards.first[table] + placed] <= more_room).all():
                found.append((table, placed, [], sums, float(pricing.row_bytes[pricing.shards.whole[table]])))
    if not found:
        return []
    values = []
    step = max(1, _NUMBERS_PER_CALL // best.sums.size)
    for start in range(0, len(found), step):
        sums = np.maximum(np.array([one[3] for one in found[start : start + step]]), 0.0)
        values.append(pricing.objective(pricing.compute(sums), sums[..., -LOADS:])[1])
    charged = np.concatenate(values) + pricing.byte_ms * np.array([one[4] for one in found]) / devices
    changed = []
    for n in charged.argsort(kind="stable")[:_TRIED].tolist():
        table, placed, places, *_ = found[n]
        units = best.units.copy()
        units[:, table] = placed
        changed.append((units, shared.changed([table], places)))
    return changed
