"""Types of NumPy arrays, whose shapes are in docstrings, and arrays that grow."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class GrowingArrays:
    """Named arrays of equal length to whose ends rows are added. Their memory doubles when it is full.

    Args:
        **kinds: shape of a row and type of its elements by name.
    """

    def __init__(self, **kinds: tuple[tuple[int, ...], npt.DTypeLike]) -> None:
        self._arrays = {name: np.empty((64, *shape), kind) for name, (shape, kind) in kinds.items()}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return all rows of an array; adding rows may leave this view behind."""
        return self._arrays[name][: self._count]

    def append(self, **rows: npt.NDArray[Any] | Sequence[Any]) -> int:
        """Add the same number of rows to every array, and return the number of the first."""
        first = self._count
        added = {len(values) for values in rows.values()}
        if rows.keys() != self._arrays.keys() or len(added) != 1:
            raise ValueError(f"expected the same number of rows for {', '.join(self._arrays)}")
        self._count += added.pop()
        for name, values in rows.items():
            array = self._arrays[name]
            if self._count > len(array):
                larger = np.empty((max(self._count, 2 * len(array)), *array.shape[1:]), array.dtype)
                larger[:first] = array[:first]
                self._arrays[name] = larger
            self._arrays[name][first : self._count] = values
        return first
