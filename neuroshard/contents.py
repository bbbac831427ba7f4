"""Contents: what devices hold, each priced once however often the search comes across it."""

from __future__ import annotations

import abc
from typing import Any

import numpy as np
import numpy.typing as npt

from neuroshard.arrays import Keys, comparable
from neuroshard.kinds import Kinds
from shardgym.arrays import Floats, Ints

#: The number of the content of an empty device.
EMPTY = 0
_FIRST_CAPACITY = 1024
#: Contents that may be kept between placements.
_KEPT = 200_000


class Contents(abc.ABC):
    """Device contents by number; 0 is nothing at all.

    A content is made by adding a shard to another. The published cache asks for the same shards in the same order; here
    the order does not matter. Contents are told apart by the sum of random 64-bit numbers of their shards.

    Args:
        kinds: the shards.

    Attributes:
        kinds: the shards.
        ms: forward plus backward compute of each content, shape (capacity,).
        compared_ms: the same, rounded for comparison.
    """

    def __init__(self, kinds: Kinds) -> None:
        self.kinds = kinds
        self._kind_keys = np.random.default_rng(0).integers(2**64, size=len(kinds), dtype=np.uint64)
        self._singles: Floats = np.full(len(kinds), np.nan)
        self.clear()

    def trim(self) -> None:
        """Forget all contents when there are many."""
        if self.count > _KEPT:
            self.clear()

    def clear(self) -> None:
        """Forget all contents."""
        self.count = 1
        self.ms: Floats = np.zeros(_FIRST_CAPACITY)
        self.compared_ms: Floats = np.zeros(_FIRST_CAPACITY)
        self._keys: Keys = np.zeros(_FIRST_CAPACITY, dtype=np.uint64)
        self._parents: Ints = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._added: Ints = np.zeros(_FIRST_CAPACITY, dtype=np.int64)
        self._known: dict[int, int] = {0: EMPTY}

    def add(self, contents: Ints, kinds: Ints) -> Ints:
        """Return the contents that adding one shard to each of some contents gives, pricing new ones; shape (n,)."""
        keys = (self._keys[contents] + self._kind_keys[kinds]).tolist()
        numbers = list(map(self._known.get, keys))
        new, following = [], self.count
        for n, number in enumerate(numbers):
            if number is None:
                numbers[n] = self._known.setdefault(keys[n], following)
                if numbers[n] == following:
                    new.append(n)
                    following += 1
        if new:
            self._append(contents[new], kinds[new])
        return np.array(numbers, dtype=np.int64)

    def singles(self, kinds: Ints) -> Floats:
        """Return what shards alone on a device compute in ms, rounded for comparison; shape (n,)."""
        new = np.unique(kinds[np.isnan(self._singles[kinds])])
        if new.size:
            numbers = self.add(np.zeros_like(new), new)
            self._singles[new] = self.compared_ms[numbers]
        return self._singles[kinds]

    def held(self, content: int) -> list[int]:
        """Return the kinds that a content consists of."""
        kinds = []
        while content != EMPTY:
            kinds.append(int(self._added[content]))
            content = int(self._parents[content])
        return kinds

    def least(self, contents: Ints) -> Floats:
        """Return what whole plans cost at least in ms; 0 where nothing is certain.

        Args:
            contents: of every device of every plan, shape (P, D).

        Returns:
            Rounded for comparison, shape (P,).
        """
        return np.zeros(len(contents), dtype=np.float64)

    @abc.abstractmethod
    def totals(self, contents: Ints) -> Floats:
        """Return what whole plans cost in ms.

        Args:
            contents: of every device of every plan, shape (P, D).

        Returns:
            Shape (P,).
        """

    @abc.abstractmethod
    def _price(self, numbers: Ints, contents: Ints, kinds: Ints) -> Floats:
        """Return ms of new contents `numbers`, made of `contents` and one of `kinds` each; shape (n,)."""

    def _append(self, contents: Ints, kinds: Ints) -> None:
        """Price new contents and number them consecutively."""
        numbers = np.arange(self.count, self.count + len(kinds))
        if numbers[-1] >= len(self.ms):
            self._reserve(2 * int(numbers[-1]))
        ms = self._price(numbers, contents, kinds)
        self.count += len(kinds)
        self.ms[numbers], self.compared_ms[numbers] = ms, comparable(ms)
        self._keys[numbers] = self._keys[contents] + self._kind_keys[kinds]
        self._parents[numbers], self._added[numbers] = contents, kinds

    def _reserve(self, capacity: int) -> None:
        """Make room for contents."""
        for name in ("ms", "compared_ms", "_keys", "_parents", "_added"):
            setattr(self, name, grown(getattr(self, name), capacity))


def grown(array: npt.NDArray[Any], capacity: int) -> npt.NDArray[Any]:
    """Return a copy with more rows."""
    more: npt.NDArray[Any] = np.zeros((capacity, *array.shape[1:]), dtype=array.dtype)
    more[: len(array)] = array
    return more
