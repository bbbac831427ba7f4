"""The learned simulator. Importing this loads neither torch nor pyarrow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardgym.costs.simulator.cost import SimulatorCost

__all__ = ["SimulatorCost"]


def __getattr__(name: str) -> Any:
    if name != "SimulatorCost":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return importlib.import_module("shardgym.costs.simulator.cost").SimulatorCost
