"""Infos: what is said of some of the environments, in Gymnasium's form for vector environments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from shardgym.arrays import Ints


class Infos:
    """A dictionary of arrays over N environments; `_NAME` tells of which environments NAME is said.

    Args:
        num_envs: N.

    Attributes:
        values: the dictionary.
    """

    def __init__(self, num_envs: int) -> None:
        self._num_envs = num_envs
        self.values: dict[str, Any] = {}

    def put(self, name: str, rows: Ints, said: npt.NDArray[Any]) -> None:
        """Say something of some environments; nothing is entered where there are none.

        Args:
            name: key.
            rows: numbers of the environments, shape (n,).
            said: of each, shape (n,); numbers, or objects where others have None.
        """
        if not len(rows):
            return
        if name not in self.values:
            objects = said.dtype == np.object_
            self.values[name] = np.full(self._num_envs, None) if objects else np.zeros(self._num_envs, said.dtype)
            self.values[f"_{name}"] = np.zeros(self._num_envs, np.bool_)
        self.values[name][rows] = said
        self.values[f"_{name}"][rows] = True

    def nest(self, name: str, rows: Ints, inner: Infos) -> None:
        """Enter other infos of some environments under one name."""
        if len(rows):
            self.values[name] = inner.values
            self.values[f"_{name}"] = np.zeros(self._num_envs, np.bool_)
            self.values[f"_{name}"][rows] = True


def objects(values: Iterable[Any], count: int) -> npt.NDArray[Any]:
    """Return an array of objects, which are not looked into."""
    return np.fromiter(values, dtype=np.object_, count=count)
