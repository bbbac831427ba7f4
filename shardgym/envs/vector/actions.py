"""Actions: what was asked for, as whole numbers."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.records import short_repr

#: Stands for an action that is no whole number. No environment has such an action.
NOT_WHOLE = -1
_LARGE = 2**62


def whole_numbers(actions: Any, num_envs: int) -> Ints:
    """Return one action for each environment, shape (N,), `NOT_WHOLE` where it is no whole number or negative.

    Raises:
        InputError: not one action for each environment.
    """
    try:
        given = np.asarray(actions)
    except ValueError:  # lists of several lengths
        raise InputError(
            f"got actions {short_repr(actions)}: expected one for each of {num_envs} environments"
        ) from None
    if given.shape != (num_envs,):
        raise InputError(f"got actions of shape {given.shape} for {num_envs} environments: expected one for each")
    if given.dtype.kind in "iu":
        return given.astype(np.int64)
    return np.array([_index(action) for action in actions], dtype=np.int64)


def _index(action: Any) -> int:
    try:
        return min(max(operator.index(action), NOT_WHOLE), _LARGE)
    except TypeError:
        return NOT_WHOLE
