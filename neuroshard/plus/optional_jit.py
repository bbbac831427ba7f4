"""Compilation where numba is installed; without it the same functions run some hundred times slower."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TypeVar

_Function = TypeVar("_Function", bound=Callable[..., object])

#: Whether functions are compiled.
COMPILED = importlib.util.find_spec("numba") is not None


def jit(function: _Function) -> _Function:
    """Compile a function on first use as `neuroshard.jit` does; without numba, return it as it is."""
    if not COMPILED:
        return function
    from neuroshard.jit import jit as compile_on_first_use

    return compile_on_first_use(function)
