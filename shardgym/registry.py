"""Classes by name: registered as entry points, or given as `module:Class`.

An entry point may name the extra that its class needs, e.g. `ppo = "baselines.ppo.solver:Ppo [rl]"`. So nothing has to
be imported to say what is not installed.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points, version
from pathlib import Path
from typing import Any

from shardgym.errors import APART, InputError, MissingDependencyError, ShardGymError, UnknownNameError, closest
from shardgym.records import short_repr


def registered(group: str) -> dict[str, str]:
    """Return name -> `module:Class` of an entry-point group, sorted by name."""
    return {entry.name: f"{entry.module}:{entry.attr}" for entry in sorted(entry_points(group=group))}


def not_installed(group: str) -> dict[str, MissingDependencyError]:
    """Return the names of an entry-point group that lack an extra, each with the error that says how to install it."""
    errors = {entry.name: _missing_extra(entry) for entry in entry_points(group=group)}
    return {name: error for name, error in errors.items() if error is not None}


def missing_distributions(package: str = "shardgym") -> dict[str, list[str]]:
    """Return the distributions that are needed and not installed, per extra of a package and per name in `APART`."""
    missing = {name: [d for d in needed if not _is_installed(d)] for name, (needed, _) in APART.items()}
    for requirement in distribution(package).requires or ():
        match = re.fullmatch(r"([A-Za-z0-9._-]+).*;.*\bextra\s*==\s*['\"]([^'\"]+)['\"].*", requirement)
        if match is None:
            continue
        lacking = missing.setdefault(match[2], [])
        if not _is_installed(match[1]):
            lacking.append(match[1])
    return missing


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _missing_extra(entry: EntryPoint) -> MissingDependencyError | None:
    """Return the error of a class whose entry point names an extra that is not installed; None for others."""
    if not entry.extras:  # as most; reading what a package requires takes a tenth of a second
        return None
    package = entry.dist.name if entry.dist is not None else "shardgym"
    missing = missing_distributions(package)
    for extra in entry.extras:
        lacking = missing.get(extra)
        if lacking:
            kind = entry.group.rpartition(".")[2].removesuffix("s")
            return MissingDependencyError(lacking[0], extra, f"{kind} '{entry.name}'", package)
    return None


def find_class(kind: str, group: str, name: str) -> Any:
    """Return the class registered as `name`, or named as `module:Class`.

    Raises:
        UnknownNameError: no such name; the closest are named.
        InputError: the module cannot be imported or has no such class, or the name is no text.
        MissingDependencyError: the class needs an extra that is not installed.
    """
    if not isinstance(name, str):
        raise InputError(f"{kind}: expected a name or module:Class, got {short_repr(name)}")
    if ":" in name:
        return _import(kind, name)
    known = {entry.name: entry for entry in entry_points(group=group)}
    if name not in known:
        raise UnknownNameError(kind, name, sorted(known), "; or module:Class for one of your own")
    missing = _missing_extra(known[name])
    if missing is not None:
        raise missing
    return _import(kind, f"{known[name].module}:{known[name].attr}")


def _import(kind: str, target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    # As with `python -m`: modules in the current folder can be named without being installed.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        module = importlib.import_module(module_name)
    except ShardGymError:
        raise  # e.g. a missing dependency, which already says what to install
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise InputError(f"{kind} '{target}': cannot import '{module_name}': {reason}") from error
    if not hasattr(module, attribute):
        what, is_one = ("function", inspect.isfunction) if kind == "model" else ("class", inspect.isclass)
        own = [v for v in vars(module).values() if is_one(v) and v.__module__ == module.__name__]
        hint = closest(attribute, (one.__name__ for one in own))
        raise InputError(f"module '{module_name}' has no {what} '{attribute}': {hint}")
    return getattr(module, attribute)


def construct(kind: str, name: str, cls: Any, settings: dict[str, Any]) -> Any:
    """Call `cls(**settings)`; raises `InputError`, which names the settings that exist, when these do not suit."""
    if inspect.isabstract(cls):
        lacking = ", ".join(sorted(cls.__abstractmethods__))
        raise InputError(f"{kind} '{name}' is an abstract class: give one that has {lacking}")
    if not callable(cls):
        raise InputError(f"{kind} '{name}' is an object of {type(cls).__name__}: expected a class")
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError):  # some classes written in C do not say what they take
        parameters = None
    if parameters is not None and all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        unknown = [setting for setting in settings if setting not in parameters]
        if unknown:
            raise InputError(f"{kind} '{name}' has no setting '{unknown[0]}': {closest(unknown[0], parameters)}")
    try:
        return cls(**settings)
    except TypeError as error:
        if not isinstance(cls, type) and not settings:
            raise InputError(f"{kind} '{name}' is a function: expected a class, called without settings") from None
        made = f"with settings {settings}" if settings else "without settings"
        raise InputError(f"{kind} '{name}' cannot be made {made}: {error}") from None
