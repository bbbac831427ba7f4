"""Scoring: complete placements get their whole cost, communication included, unless they cannot matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuroshard.arrays import comparable
from neuroshard.contents import Contents
from neuroshard.cutoff import Cutoff
from shardgym.arrays import Floats, Ints

#: Devices scored in one call: few enough for a processor's cache.
_DEVICES_PER_CALL = 1024


class Placed(NamedTuple):
    """The best placement of each of C column plans.

    Attributes:
        costs: in ms, rounded for comparison, shape (C,); infinite without a placement, or when above the cutoff.
        held: gives the kinds on every device of a column plan's placement, until more is placed.
    """

    costs: Floats
    held: Callable[[int], list[list[int]]]


def best_placements(contents: Contents, rows: Ints, low: Ints, held: Ints, row_of: Ints, cutoff: Cutoff) -> Placed:
    """Keep the cheapest placement of each different column plan; ties go to the least value of the grid, as published.

    Placements are scored in the order of what they cost at least. Where that is above the cutoff, neither they nor
    what follows can be among the best column plans, and none of them is scored.

    Args:
        contents: prices placements.
        rows: which different column plan each placement is of, shape (P,).
        low: value of the grid of each, shape (P,).
        held: contents of the devices, shape (P, D).
        row_of: which different column plan each column plan is, shape (C,).
        cutoff: of the level.
    """
    costs, best = np.full(row_of.max() + 1, np.inf), np.full(row_of.max() + 1, -1)
    least = contents.least(held)
    order, size = np.lexsort((low, least)), max(_DEVICES_PER_CALL // held.shape[1], 1)
    for start in range(0, len(order), size):
        part = order[start : start + size]
        part = part[least[part] <= cutoff.above(costs)]
        if not part.size:
            break
        for n, total in zip(part.tolist(), comparable(contents.totals(held[part])).tolist(), strict=True):
            row = rows[n]
            if total < costs[row] or (total == costs[row] and low[n] < low[best[row]]):
                costs[row], best[row] = total, n

    def kinds(plan: int) -> list[list[int]]:
        return [contents.held(content) for content in held[best[row_of[plan]]].tolist()]

    return Placed(costs[row_of], kinds)
