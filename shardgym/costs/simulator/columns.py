"""Columns: named arrays of equal length to whose ends rows are added."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

_FIRST = 64

Rows = npt.NDArray[Any]


class Columns:
    """Arrays with one row per thing. Their memory doubles when it is full.

    Args:
        **kinds: shape of a row and type of its elements by name.
    """

    def __init__(self, **kinds: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        self._held: dict[str, Rows] = {name: np.empty((_FIRST, *shape), kind) for name, (shape, kind) in kinds.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> Rows:
        """Return all rows of an array; adding rows may leave this one behind."""
        return self._held[name][: self._count]

    def append(self, **rows: Rows | Sequence[Any]) -> int:
        """Add the same number of rows to every array, and return the number of the first."""
        first, added = self._count, {len(values) for values in rows.values()}
        if rows.keys() != self._held.keys() or len(added) != 1:
            raise ValueError(f"expected equally many rows of {', '.join(self._held)}")
        self._count += added.pop()
        for name, values in rows.items():
            if self._count > len(self._held[name]):
                self._held[name] = _larger(self._held[name], first, self._count)
            self._held[name][first : self._count] = values
        return first


def _larger(held: Rows, used: int, needed: int) -> Rows:
    larger = np.empty((max(needed, 2 * len(held)), *held.shape[1:]), held.dtype)
    larger[:used] = held[:used]
    return larger
