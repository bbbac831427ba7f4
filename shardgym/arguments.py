"""Checks of arguments of public calls. A wrong one raises `InputError`: its name, what was expected, what was passed.

Checks are made once, where a user's call comes in.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from shardgym.errors import InputError
from shardgym.records import short_repr

#: Values of these types are shown in messages; of other objects the type says enough.
_PLAIN = (bool, int, float, str, bytes, list, tuple, dict, set, Path)

#: Iterables that are never meant as a list: iterating gives characters or keys.
_NO_LISTS = (str, bytes, Mapping)


def describe(value: Any) -> str:
    """Return the type of a value and, of plain data, the beginning of the value."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return type(value).__name__ + (f" {short_repr(value)}" if isinstance(value, _PLAIN) else "")


def check_instance(name: str, value: Any, cls: type[Any], remedy: str = "") -> None:
    """Raise `InputError` unless an argument is an instance of a class.

    Args:
        name: of the argument.
        value: the argument.
        cls: the class.
        remedy: end of the message; `cls.how_to_get` when the class has one.
    """
    if not isinstance(value, cls):
        raise _wrong_type(name, _a(cls), value, remedy or getattr(cls, "how_to_get", ""))


def check_int(name: str, value: Any, least: int = 0) -> int:
    """Return a whole number, Python's or NumPy's, as an `int`; raises `InputError` when it is less than `least`."""
    # `operator.index` takes NumPy integers and refuses floats and text; booleans would pass as 0 and 1.
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least:
        raise InputError(f"{name} {short_repr(value)} is not a whole number from {least} on")
    return number


def check_list(name: str, values: Any, noun: str, remedy: str = "", *, ordered: bool = True) -> list[Any]:
    """Return the members of a list, array, generator or other iterable; raises `InputError`.

    Args:
        name: of the argument.
        values: the argument.
        noun: what the members should be, for the message; they are not checked.
        remedy: end of the message.
        ordered: whether their order matters, so that a set is refused.
    """
    refused = isinstance(values, _NO_LISTS) or (ordered and isinstance(values, Set))
    try:
        members = None if refused else iter(values)
    except TypeError:
        members = None
    if members is None:
        raise _wrong_type(name, f"a list of {noun}", values, remedy)
    return list(members)


def check_list_of(name: str, values: Any, cls: type[Any], remedy: str = "") -> list[Any]:
    """Return the members of a list as `check_list` does; raises `InputError` unless all are instances of `cls`."""
    members = check_list(name, values, cls.__name__, remedy)
    for index, member in enumerate(members):
        if not isinstance(member, cls):
            raise _wrong_type(f"{name}[{index}]", _a(cls), member)
    return members


def check_dict(name: str, value: Any) -> dict[str, Any]:
    """Return a copy of a dictionary whose keys are names, an empty one for None; raises `InputError`."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _wrong_type(name, "a dictionary with names for keys", value)
    return dict(value)


def check_name(name: str, value: Any, remedy: str = "") -> str:
    """Return a name or path as text; raises `InputError` when it is neither."""
    if not isinstance(value, str | Path):
        raise _wrong_type(name, "a name or the path of a file", value, remedy)
    return str(value)


def check_index(owner: str, noun: str, index: Any, count: int) -> int:
    """Return an index, which may be negative, as a number from 0 on.

    Args:
        owner: the sequence that is indexed, e.g. "suite 'tiny-v1'", for the message.
        noun: its items in the singular, e.g. "task".
        index: the argument.
        count: number of items.

    Raises:
        IndexError: there are fewer items.
        InputError: the index is no whole number.
    """
    valid = f"{owner} has {noun}s 0 to {count - 1}"
    try:
        number = operator.index(index)
    except TypeError:
        raise InputError(f"{valid}: expected a whole number, got {describe(index)}") from None
    if not -count <= number < count:
        raise IndexError(f"{valid}, there is no {noun} {number}")
    return number % count


def _wrong_type(name: str, expected: str, value: Any, remedy: str = "") -> InputError:
    return InputError(f"{name}: expected {expected}, got {describe(value)}{'; ' if remedy else ''}{remedy}")


def _a(cls: type[Any]) -> str:
    return f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
