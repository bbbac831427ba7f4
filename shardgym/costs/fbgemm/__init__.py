"""Measured cost: FBGEMM kernels in worker processes. Importing this loads neither torch nor fbgemm."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shardgym.costs.fbgemm.cost import FbgemmCost

__all__ = ["FbgemmCost"]


def __getattr__(name: str) -> Any:
    if name != "FbgemmCost":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return importlib.import_module("shardgym.costs.fbgemm.cost").FbgemmCost
