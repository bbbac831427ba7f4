"""Saying that code is being compiled, once and only when it is: what is found on disk is not."""

from __future__ import annotations

import logging
from typing import Any

from numba.core import event

#: Shown by commands where they show progress.
logger = logging.getLogger("shardgym.solvers.neuroshard")
_register: Any = event.register

_KEPT = ", once; later runs find the machine code on disk"
_NOT_KEPT = " in every process, as machine code cannot be kept; NUMBA_CACHE_DIR names a folder that can be written"


class CompileNotice(event.Listener):
    """Logs that the search is being compiled when numba starts on its first function.

    Args:
        package: functions of other modules do not count; numba compiles for other people, too.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._said = False

    def on_start(self, event: Any) -> None:
        """Say so, at the first function."""
        dispatcher = event.data["dispatcher"]
        if self._said or not dispatcher.py_func.__module__.startswith(f"{self._package}."):
            return
        self._said = True
        is_kept = dispatcher.stats.cache_path is not None
        logger.info("compiling NeuroShard's search: some 20 seconds%s", _KEPT if is_kept else _NOT_KEPT)

    def on_end(self, event: Any) -> None:
        """Nothing has to be said."""


def say_when_compiling(package: str) -> None:
    """Log it when functions of a package are compiled, once in this process."""
    _register("numba:compile", CompileNotice(package))
