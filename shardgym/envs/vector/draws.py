"""Draws: a random generator of its own for every environment."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.utils import seeding

from shardgym.errors import InputError
from shardgym.records import short_repr


class Draws:
    """Random generators of N environments, seeded as Gymnasium's wrappers of single environments do.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._generators: list[np.random.Generator | None] = [None] * num_envs
        self._seeds: list[int | None] = [None] * num_envs

    @property
    def generators(self) -> tuple[np.random.Generator, ...]:
        """The generators; those that were not seeded get a random seed now."""
        return tuple(self.generator(row) for row in range(len(self._generators)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """What the generators were seeded with."""
        return tuple(seed for _, seed in zip(self.generators, self._seeds, strict=True) if seed is not None)

    def generator(self, row: int) -> np.random.Generator:
        """Return the generator of one environment."""
        generator = self._generators[row]
        return self._seed(row, None) if generator is None else generator

    def seed(self, rows: Sequence[int], seed: Any) -> None:
        """Seed some of the environments anew.

        Args:
            rows: their numbers.
            seed: None to go on with the generators, a whole number for environment 0, to which numbers are added for
                the others, or one number or None for every environment.

        Raises:
            InputError: neither.
        """
        if seed is None:
            return
        seeds = _one_each(seed, len(self._generators))
        for row in rows:
            if seeds[row] is not None:
                self._seed(row, seeds[row])

    def _seed(self, row: int, seed: int | None) -> np.random.Generator:
        generator, self._seeds[row] = seeding.np_random(seed)
        self._generators[row] = generator
        return generator


def _one_each(seed: Any, num_envs: int) -> Sequence[int | None]:
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        if len(seed) != num_envs:
            raise InputError(f"got {len(seed)} seeds for {num_envs} environments: expected one for each")
        return seed
    try:
        first = operator.index(seed)
    except TypeError:
        raise InputError(f"seed {short_repr(seed)} is neither a whole number nor a list of them") from None
    return range(first, first + num_envs)
