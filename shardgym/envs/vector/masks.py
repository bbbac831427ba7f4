"""Which environments a reset is for."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.arguments import check_dict
from shardgym.arrays import Ints
from shardgym.errors import InputError


def reset_rows(options: dict[str, Any] | None, num_envs: int) -> tuple[Ints, dict[str, Any]]:
    """Return the numbers of the environments that `options["reset_mask"]` asks for, all without it, and other options.

    Raises:
        InputError: options that are no dictionary; a mask that is not an array of one boolean for each environment, or
            none of them is true.
    """
    rest = check_dict("options", options)
    mask = rest.pop("reset_mask", None)
    if mask is None:
        return np.arange(num_envs), rest
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise InputError(f"reset_mask is not an array of {num_envs} booleans of which at least one is true")
    return np.flatnonzero(mask), rest
