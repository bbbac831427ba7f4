"""Stream: random draws that are the same for ever and everywhere."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Stream:
    """An own stream of random draws per name. Only `random()` of Python is used: it is kept stable.

    Args:
        name: what the stream is for, e.g. a seed, a role and a number.
    """

    def __init__(self, *name: object) -> None:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        self._rng = random.Random(int.from_bytes(digest[:8], "big"))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self._rng.random()

    def chance(self, probability: float) -> bool:
        """Return True so often."""
        return self._rng.random() < probability

    def whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included."""
        return low + int(self._rng.random() * (high - low + 1))

    def log_whole(self, low: int, high: int) -> int:
        """Return a whole number from `low` to `high`, both included, log-uniform."""
        return min(high, int(low * ((high + 1) / low) ** self._rng.random()))

    def choice(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[int(self._rng.random() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` of `items` without replacement: the first steps of a Fisher-Yates shuffle."""
        rest = list(items)
        for i in range(count):
            j = self.whole(i, len(rest) - 1)
            rest[i], rest[j] = rest[j], rest[i]
        return rest[:count]
