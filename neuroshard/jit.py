"""Compilation of the searches with numba: where machine code is cached, and a log message that it takes a while."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from shardgym.costs.ties import QUANTUM

#: Shown by commands where they show progress.
_logger = logging.getLogger("shardgym.solvers.neuroshard")

_Function = TypeVar("_Function", bound=Callable[..., object])


def jit(function: _Function) -> _Function:
    """Compile a function on first use, caching machine code on disk if the folder is writable.

    The function releases the GIL, and divides by 0 as NumPy does.
    """
    import numba

    _announce_compiling()
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = _cache_folder()
    try:
        compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # there is nowhere to keep it
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    finally:
        config.CACHE_DIR = before
    return compiled  # type: ignore[no-any-return]


@functools.cache
def _cache_folder() -> str:
    """Return a folder for this state of the sources: numba notices changes in a function's own file alone."""
    digest = hashlib.sha256(str(QUANTUM).encode())
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    caches = os.environ.get("NUMBA_CACHE_DIR") or platformdirs.user_cache_dir()
    return str(Path(caches, "shardgym", "search", digest.hexdigest()[:16]).expanduser())


@functools.cache
def _announce_compiling() -> None:
    """Log once that the search is being compiled when numba starts on its first function."""
    from numba.core import event

    class CompileNotice(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            dispatcher = event.data["dispatcher"]
            if self.said or not dispatcher.py_func.__module__.startswith("neuroshard."):
                return
            self.said = True
            how_often = (
                " in every process, because machine code cannot be kept; set NUMBA_CACHE_DIR to a writable folder"
            )
            if dispatcher.stats.cache_path is not None:
                how_often = ", once for each kind of search; later runs load the machine code from disk"
            _logger.info("compiling NeuroShard's search: some seconds%s", how_often)

        def on_end(self, event: Any) -> None:
            pass

    register: Any = event.register
    register("numba:compile", CompileNotice())
