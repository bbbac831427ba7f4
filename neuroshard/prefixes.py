"""Prefixes: sequences that begin alike go together until they part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Ints


class Prefixes:
    """Sequences of one length as a tree.

    Args:
        sequences: shape (C, n); equal ones are one from the start to the end.

    Attributes:
        rows: the different sequences in lexicographic order, shape (U, n).
        row_of: row of each given sequence, shape (C,).
    """

    def __init__(self, sequences: Ints) -> None:
        order = np.lexsort(sequences.T[::-1])
        ordered = sequences[order]
        differs = ordered[1:] != ordered[:-1]
        new = np.append(True, differs.any(axis=1))
        self.rows: Ints = ordered[new]
        self.row_of: Ints = np.empty(len(sequences), dtype=np.int64)
        self.row_of[order] = new.cumsum() - 1
        parts_at = np.append(-1, differs.argmax(axis=1)[new[1:]])
        self._forks: dict[int, list[tuple[int, int]]] = {}
        for row in range(1, len(self.rows)):
            step = int(parts_at[row])
            stem = int(np.flatnonzero(parts_at[:row] < step)[-1])
            self._forks.setdefault(step, []).append((stem, row))

    def forks(self, step: int) -> Sequence[tuple[int, int]]:
        """Return (stem, row) for every row that goes its own way from this step on: until then it is the stem."""
        return self._forks.get(step, ())

    def fork_table(self) -> Ints:
        """Return step, stem and row of all forks in order of steps, shape (F, 3)."""
        table = [(step, stem, row) for step in sorted(self._forks) for stem, row in self._forks[step]]
        return np.array(table, dtype=np.int64).reshape(-1, 3)
