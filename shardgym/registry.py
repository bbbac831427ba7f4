"""Lookup by name among entry points, and by `module:Class` for what is not installed."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from shardgym.errors import InputError, ShardGymError, UnknownNameError, closest


def registered(group: str) -> dict[str, str]:
    """Return name -> `module:Class` of an entry-point group, sorted by name."""
    return {entry.name: entry.value for entry in sorted(entry_points(group=group))}


def find_class(kind: str, group: str, name: str) -> Any:
    """Return the class registered as `name`, or named as `module:Class`.

    Raises:
        UnknownNameError: no such name; the closest are named.
        InputError: the module cannot be imported or has no such class.
    """
    if ":" in name:
        return _import(kind, name)
    known = registered(group)
    if name not in known:
        raise UnknownNameError(kind, name, known, "; or module:Class for one of your own")
    return _import(kind, known[name])


def _import(kind: str, target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ShardGymError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise InputError(f"{kind} '{target}': cannot import '{module_name}': {reason}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = closest(attribute, _classes(module))
        raise InputError(f"module '{module_name}' has no class '{attribute}': {hint}") from None


def _classes(module: Any) -> list[str]:
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [value.__name__ for value in own]


def construct(kind: str, name: str, cls: Any, settings: dict[str, Any]) -> Any:
    """Call `cls(**settings)`; unsuitable settings are an `InputError`."""
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{kind} '{name}' does not take these settings {settings}: {error}") from None
