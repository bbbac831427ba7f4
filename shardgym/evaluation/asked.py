"""What a run was asked for, checked before anything is made or opened."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shardgym.arguments import check_dict, check_int, check_list, check_name, describe
from shardgym.errors import InputError
from shardgym.evaluation.tasks import Tasks


def folder_of(out: str | Path) -> Path:
    """Return the folder of the records, independent of the current folder, which a solver may change."""
    return Path(check_name("out", out)).absolute()


def task_count(suite: Tasks, limit: int | None) -> int:
    """Return how many tasks a run has.

    Raises:
        InputError: the suite is none, or the limit is no whole number from 1 on.
    """
    if not isinstance(getattr(suite, "name", None), str) or not hasattr(suite, "__getitem__"):
        raise InputError(f"suite: expected tasks with a name, got {describe(suite)}; shardgym.load_suite reads a suite")
    return len(suite) if limit is None else min(check_int("limit", limit, 1), len(suite))


def seeds_of(seeds: Iterable[int]) -> tuple[int, ...]:
    """Return the seeds, each once; raises `InputError` when there is none or one is no whole number from 0 on."""
    found = [check_int("seed", seed) for seed in check_list("seeds", seeds, "whole numbers", ordered=False)]
    if not found:
        raise InputError("no seed was given: name at least one")
    return tuple(dict.fromkeys(found))


def check_time_limit(seconds: float | None) -> None:
    """Refuse a time limit that is not None, nor a number of seconds above 0."""
    number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if seconds is not None and not (number and math.isfinite(seconds) and seconds > 0):
        raise InputError(f"time_limit_s: expected a number of seconds above 0, got {describe(seconds)}")


def settings_of(name: str, settings: Mapping[str, Any] | None, cost_is_made: bool) -> dict[str, Any]:
    """Return settings of a cost model that is given by name; raises `InputError` when there are some for an object."""
    found = check_dict(name, settings)
    if found and cost_is_made:
        raise InputError(f"{name} are for a cost model given by name: make the object with them instead")
    return found
