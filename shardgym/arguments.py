"""Arguments of public calls: one that is of another kind is refused in one line that names it.

What was given, what was expected, what to do. Checks are made once, where a user's call comes in.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from shardgym.errors import InputError
from shardgym.records import short_repr

#: What is shown with its value; of other objects the kind says enough.
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, Path)

#: What can be iterated over and is no list: characters and keys.
_NO_LISTS = (str, bytes, Mapping)


def describe(value: Any) -> str:
    """Return what was given: kind and beginning of plain data, the kind of anything else."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__ + (f" {short_repr(value)}" if isinstance(value, _PLAIN) else "")


def check_instance(name: str, value: Any, kind: type[Any], remedy: str = "") -> None:
    """Raise `InputError` unless an argument is a `kind`; the remedy is put at the end of its message."""
    if not isinstance(value, kind):
        raise _refusal(name, _a(kind), value, remedy)


def check_int(name: str, value: Any, least: int = 0) -> int:
    """Return an argument that is a whole number, Python's or NumPy's, from `least` on; raises `InputError`."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} {short_repr(value)} is not a whole number from {least} on")
    return number


def check_list(name: str, values: Any, noun: str, remedy: str = "", *, ordered: bool = True) -> list[Any]:
    """Return the members of a list or of anything else that has members; raises `InputError`.

    Args:
        name: of the argument.
        values: the argument.
        noun: what the members should be; they are not looked at.
        remedy: put at the end of the message.
        ordered: whether their order matters, so that a set will not do.
    """
    if isinstance(values, list):
        return list(values)
    try:
        found = None if isinstance(values, _NO_LISTS) or (ordered and isinstance(values, Set)) else iter(values)
    except TypeError:
        found = None
    if found is None:
        raise _refusal(name, f"a list of {noun}", values, remedy)
    return list(found)


def check_list_of(name: str, values: Any, kind: type[Any], remedy: str = "") -> list[Any]:
    """Return the members of a list as `check_list` does; raises `InputError` when one of them is not a `kind`."""
    found = check_list(name, values, kind.__name__, remedy)
    for number, value in enumerate(found):
        if not isinstance(value, kind):
            raise _refusal(f"{name}[{number}]", _a(kind), value)
    return found


def check_dict(name: str, value: Any) -> dict[str, Any]:
    """Return a copy of an argument that is a dictionary with names for keys, or None; raises `InputError`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _refusal(name, "a dictionary with names for keys", value)
    return dict(value)


def check_name(name: str, value: Any, remedy: str = "") -> str:
    """Return an argument that is text or a path as text; raises `InputError`."""
    if not isinstance(value, str | Path):
        raise _refusal(name, "a name or the path of a file", value, remedy)
    return str(value)


def check_index(owner: str, noun: str, index: Any, count: int) -> int:
    """Return an index, which may be negative, as a position from 0 on.

    Args:
        owner: what is indexed, e.g. "suite 'tiny-v1'".
        noun: what it holds, in the singular.
        index: the argument.
        count: how many it holds.

    Raises:
        IndexError: it holds fewer.
        InputError: the index is no whole number.
    """
    holds = f"{owner} has {noun}s 0 to {count - 1}"
    try:
        number = operator.index(index)
    except TypeError:
        raise InputError(f"{holds}: expected a whole number, got {describe(index)}") from None
    if not -count <= number < count:
        raise IndexError(f"{holds}, there is no {noun} {number}")
    return number % count


def _refusal(name: str, expected: str, value: Any, remedy: str = "") -> InputError:
    return InputError(f"{name}: expected {expected}, got {describe(value)}{'; ' if remedy else ''}{remedy}")


def _a(kind: type[Any]) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
