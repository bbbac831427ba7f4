"""Classes by name: registered as entry points, or given as `module:Class`."""

import importlib
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from shardgym.errors import InputError, ShardGymError, UnknownNameError, closest, short_repr


def registered(group: str) -> dict[str, str]:
    """Return name -> `module:Class` of an entry-point group, sorted by name.

    Raises:
        InputError: packages register different classes by one name.
    """
    found: dict[str, str] = {}
    for entry in sorted(entry_points(group=group)):
        target = f"{entry.module}:{entry.attr}"
        other = found.setdefault(entry.name, target)
        if other != target:
            raise InputError(
                f"installed packages register '{entry.name}' twice, as {other} and {target}: rename or uninstall one"
            )
    return found


def find_class(kind: str, group: str, name: str) -> Any:
    """Return the class registered as `name`, or named as `module:Class`.

    Raises:
        UnknownNameError: no such name; the message offers the closest.
        InputError: the module cannot be imported or has no such class, or the name is not a string.
        MissingDependencyError: the module needs an extra that is not installed.
    """
    if not isinstance(name, str):
        raise InputError(f"{kind}: expected a name or module:Class, got {short_repr(name)}")
    if ":" in name:
        return _import(kind, name)
    known = registered(group)
    if name not in known:
        raise UnknownNameError(kind, name, known, "; or give module:Class for your own")
    return _import(kind, known[name])


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
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            reason += " in the current folder and on Python's path"
            if module_name.endswith(".py"):
                reason += f"; write '{module_name.removesuffix('.py').replace('/', '.')}:{attribute}'"
        raise InputError(f"{kind} '{target}': cannot import '{module_name}': {reason}") from error
    if not hasattr(module, attribute):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise InputError(f"module '{module_name}' has no '{attribute}': {closest(attribute, own)}")
    return getattr(module, attribute)


def construct(kind: str, name: str, cls: Any, settings: dict[str, Any]) -> Any:
    """Call `cls(**settings)`; raises `InputError`, which names the settings that exist, when these do not suit."""
    if not isinstance(cls, type):
        raise InputError(f"{kind} '{name}' is a {type(cls).__name__}: expected a class")
    parameters = inspect.signature(cls).parameters
    if all(p.kind is not p.VAR_KEYWORD for p in parameters.values()):
        unknown = [setting for setting in settings if setting not in parameters]
        if unknown:
            raise InputError(f"{kind} '{name}' has no setting '{unknown[0]}': {closest(unknown[0], parameters)}")
    try:
        return cls(**settings)
    except TypeError as error:
        raise InputError(f"{kind} '{name}' does not accept settings {settings}: {error}") from None
