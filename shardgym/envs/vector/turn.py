"""Turn: what one step earns, and what infos say of the episodes that it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints
from shardgym.envs.vector.infos import Infos, objects


class Turn:
    """Collects what is said of ends until it is known where it has to be said.

    Args:
        num_envs: number of environments.

    Attributes:
        rewards: shape (N,).
    """

    def __init__(self, num_envs: int) -> None:
        self.rewards = np.zeros(num_envs)
        self._said: list[tuple[str, Ints, npt.NDArray[Any]]] = []

    def say(self, rows: Ints, **said: Sequence[Any] | npt.NDArray[Any]) -> None:
        """Say something of the ends in some environments by name, of each one thing."""
        self._said += [(name, rows, objects(values, len(rows))) for name, values in said.items()]

    def tell(self, infos: Infos) -> None:
        """Enter everything that was said."""
        for name, rows, said in self._said:
            infos.put(name, rows, said)
