"""Checks of arguments where a wrong one would give a wrong result in silence."""

from __future__ import annotations

import operator
from typing import Any

from shardgym.errors import InputError
from shardgym.records import short_repr


def check_instance(name: str, value: Any, cls: type[Any], remedy: str = "") -> None:
    """Raise `InputError`, which ends in `remedy`, unless an argument is an instance of a class."""
    if not isinstance(value, cls):
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        end = f"; {remedy}" if remedy else ""
        raise InputError(
            f"{name}: expected {article} {cls.__name__}, got {type(value).__name__} {short_repr(value)}{end}"
        )


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
