"""NAME,KEY=VALUE,...: how costs and solvers with settings are written on the command line."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from shardgym.errors import InputError

#: For help texts of options.
NOTATION = "NAME[,KEY=VALUE...]"


class Named(NamedTuple):
    """A registered name or `module:Class`, and keyword arguments for it."""

    name: str
    settings: dict[str, Any]


def parse_named(text: str) -> Named:
    """Read e.g. "simulator,weights=model,role=judge".

    A value is JSON (a number, true, null, a quoted string) where it can be read as such, else a string.

    Raises:
        InputError: the name is missing or a file's, or a setting is not KEY=VALUE, is given twice or is called "name".
    """
    name, *given = text.split(",")
    _check_name(text, name)
    settings: dict[str, Any] = {}
    for setting in given:
        key, equals, value = setting.partition("=")
        if not equals or not key.isidentifier():
            raise InputError(f"'{text:.80}': expected {NOTATION}, got '{setting:.40}' for a setting")
        if key == "name":
            raise InputError(f"'{text:.80}': no setting can be called 'name', the name comes first")
        if key in settings:
            raise InputError(f"'{text:.80}': setting '{key}' is given twice")
        settings[key] = _value(value)
    return Named(name, settings)


def parse_labelled(text: str) -> tuple[str, Named]:
    """Read e.g. "narrow=neuroshard,beam_width=1": a label and what it stands for; the label may be left out.

    Raises:
        InputError: as `parse_named`, or nothing stands before or after the first "=".
    """
    first, comma, rest = text.partition(",")
    label, equals, name = first.partition("=")
    if not equals:
        return "", parse_named(text)
    if not label or not name:
        raise InputError(f"'{text:.80}': expected [LABEL=]{NOTATION}")
    return label, parse_named(name + comma + rest)


def _check_name(text: str, name: str) -> None:
    if not name:
        raise InputError(f"'{text:.80}': expected {NOTATION}, the name is missing")
    module, colon, attribute = name.partition(":")
    if colon and module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise InputError(f"'{text:.80}': expected module:Class, not a file: drop '.py' and give {dotted}:{attribute}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
