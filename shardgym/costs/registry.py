"""Cost models by name (entry-point group `shardgym.costs`)."""

from __future__ import annotations

from typing import Any

from shardgym.costs.base import CostModel
from shardgym.registry import construct, find_class, registered

GROUP = "shardgym.costs"


def cost_names() -> list[str]:
    """Names of the registered cost models."""
    return list(registered(GROUP))


def make_cost(name: str, **settings: Any) -> CostModel:
    """Make a cost model.

    Args:
        name: a registered name such as "fbgemm" or "roofline", or `module:Class`.
        **settings: passed to the model, e.g. `device="cpu"`.

    Raises:
        UnknownNameError: no such model; the closest names are given.
        InputError: the model does not take these settings.
        MissingDependencyError: the model needs an extra that is not installed.
    """
    model: CostModel = construct("cost", name, find_class("cost", GROUP, name), settings)
    return model
