"""Imports of what the extra `simulator` brings, with an error that says so."""

from __future__ import annotations

import importlib
from typing import Any

from shardgym.errors import MissingDependencyError

EXTRA = "simulator"


def need(module: str, purpose: str) -> Any:
    """Import an optional module, e.g. "pyarrow.parquet".

    Raises:
        MissingDependencyError: it is not installed; the extra that brings it is named.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingDependencyError(module.partition(".")[0], EXTRA, purpose) from None
