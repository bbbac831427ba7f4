"""Prefixes: sequences that begin alike go together until they part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from neuroshard.arrays import Ints


class Prefixes:
    """Sequences of one length as a tree.

    Args:
        sequences: shape (C, n); equal ones are one from the start to the end.

    Attributes:
        rows: the different sequences in lexicographic order, shape (U, n).
        row_of: row of each given sequence, shape (C,).
    """

    def __init__(self, sequences: Ints) -> None:
        self.rows, inverse = np.unique(sequences, axis=0, return_inverse=True)
        self.row_of: Ints = inverse.reshape(-1)
        parts_at = np.append(-1, (self.rows[1:] != self.rows[:-1]).argmax(axis=1))
        self._forks: dict[int, list[tuple[int, int]]] = {}
        for row in range(1, len(self.rows)):
            step = int(parts_at[row])
            stem = int(np.flatnonzero(parts_at[:row] < step)[-1])
            self._forks.setdefault(step, []).append((stem, row))

    def forks(self, step: int) -> Sequence[tuple[int, int]]:
        """Return (stem, row) for every row that goes its own way from this step on: until then it is the stem."""
        return self._forks.get(step, ())
