"""How functions are compiled, and where machine code is kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba

from neuroshard import arrays
from neuroshard.compiled.waiting import say_when_compiling

_Function = TypeVar("_Function", bound=Callable[..., object])
_config: Any = numba.config


def _kept_in() -> str:
    """Return a folder for this state of the sources: numba notices changes in a function's own file alone."""
    digest = hashlib.sha256(Path(arrays.__file__).read_bytes())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    caches = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return str(Path(caches, "shardgym", "search", digest.hexdigest()[:16]).expanduser())


_KEPT_IN = _kept_in()
say_when_compiling(__package__)


def jit(function: _Function) -> _Function:
    """Compile on first use; machine code is kept on disk where that can be written.

    Other threads run meanwhile; division by 0 is as in NumPy.
    """
    given = _config.CACHE_DIR
    _config.CACHE_DIR = _KEPT_IN
    try:
        return _compiled(function, cache=True)
    except RuntimeError:
        return _compiled(function, cache=False)
    finally:
        _config.CACHE_DIR = given


def _compiled(function: _Function, *, cache: bool) -> _Function:
    compiled: Any = numba.njit(cache=cache, nogil=True, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]
