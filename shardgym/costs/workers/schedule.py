"""The order of measurements: rounds over everything, each in a random order of its own."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from typing import TypeVar

K = TypeVar("K")


def interleaved(keys: Sequence[K], rounds: int, rng: random.Random, failed: Container[K]) -> Iterator[K]:
    """Yield every key once per round, so that drift of the machine meets all of them alike.

    Args:
        keys: what to measure, distinct.
        rounds: how often.
        rng: shuffles every round.
        failed: keys that are in it when their turn comes are left out.
    """
    for _ in range(rounds):
        for key in rng.sample(keys, len(keys)):
            if key not in failed:
                yield key
