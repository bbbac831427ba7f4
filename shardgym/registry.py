"""Lookup by name among entry points, and by `module:Class` for what is not installed."""

from __future__ import annotations

import importlib
import inspect
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
        InputError: the module cannot be imported or has no such class, or the name is no text.
    """
    if not isinstance(name, str):
        raise InputError(f"{kind}: expected a name or module:Class, got {name!r:.60}")
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


def _settings(cls: Any) -> list[str] | None:
    """Return the keyword arguments that a class takes; None when they cannot be told, or when it takes any."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return None
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else [p.name for p in parameters]


def _classes(module: Any) -> list[str]:
    own = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == module.__name__]
    return [value.__name__ for value in own]


def construct(kind: str, name: str, cls: Any, settings: dict[str, Any]) -> Any:
    """Call `cls(**settings)`; unsuitable settings are an `InputError` that names those that exist."""
    known = _settings(cls)
    unknown = [] if known is None else [setting for setting in settings if setting not in known]
    if known is not None and unknown:
        raise InputError(f"{kind} '{name}' has no setting '{unknown[0]}': {closest(unknown[0], known)}")
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{kind} '{name}' does not take these settings {settings}: {error}") from None
