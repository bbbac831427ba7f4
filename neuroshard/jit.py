"""How functions of the compiled search are compiled, where machine code is kept, and saying that it takes a while."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import platformdirs
from numba.core import event

#: Shown by commands where they show progress.
_logger = logging.getLogger("shardgym.solvers.neuroshard")

_Function = TypeVar("_Function", bound=Callable[..., object])
_config: Any = numba.config
_register: Any = event.register


def _cache_folder() -> str:
    """Return a folder for this state of the sources: numba notices changes in a function's own file alone."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    names = ["jit", "compiled_links", "compiled_predictor", "compiled_search", "device_sets", "grid_search"]
    names += [f"plus/{name}" for name in ("placement", "construction", "moves", "kicks")]
    for name in names:
        digest.update((here / f"{name}.py").read_bytes())
    caches = os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_dir()
    return str(Path(caches, "shardgym", "search", digest.hexdigest()[:16]).expanduser())


def jit(function: _Function) -> _Function:
    """Compile on first use; machine code is kept on disk where that can be written.

    Other threads run meanwhile; division by 0 is as in NumPy.
    """
    before = _config.CACHE_DIR
    _config.CACHE_DIR = _CACHE_FOLDER
    try:
        return _compile(function, cache=True)
    except RuntimeError:  # there is nowhere to keep it
        return _compile(function, cache=False)
    finally:
        _config.CACHE_DIR = before


def _compile(function: _Function, *, cache: bool) -> _Function:
    compiled: Any = numba.njit(cache=cache, nogil=True, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]


class CompileNotice(event.Listener):
    """Logs that the search is being compiled when numba starts on its first function; what is found on disk is not.

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
        how_often = (
            " in every process, as machine code cannot be kept; NUMBA_CACHE_DIR names a folder that can be written"
        )
        if dispatcher.stats.cache_path is not None:
            how_often = ", once; later runs find the machine code on disk"
        _logger.info("compiling NeuroShard's search: some 20 seconds%s", how_often)

    def on_end(self, event: Any) -> None:
        """Nothing has to be said."""


_CACHE_FOLDER = _cache_folder()
_register("numba:compile", CompileNotice("neuroshard"))
