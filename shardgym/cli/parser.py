"""Argument parsing with one-line errors and close matches; argument types that refuse nonsense."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from shardgym.errors import InputError, UnknownNameError


class UsageError(InputError):
    """A command line that is not understood."""


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` instead of printing its usage and exiting."""

    def __init__(self, prog: str, description: str | None) -> None:
        super().__init__(
            prog=prog, description=description, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        self.add_argument("--json", action="store_true", help="print JSON for machines")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace | None:
        """Return the parsed arguments, or None when help was asked for and printed.

        Raises:
            UsageError: an option is unknown (the closest is named), missing, or has a value of the wrong kind.
        """
        for given in arguments:
            if given.startswith("--") and given.partition("=")[0] not in self._option_string_actions:
                self.error(self._unknown(given))
        try:
            parsed, unknown = self.parse_known_args(arguments)
        except SystemExit:  # raised by --help alone: error() is ours
            return None
        if unknown:
            self.error(self._unknown(unknown[0]))
        return parsed

    def error(self, message: str) -> NoReturn:
        """Raise the message as a `UsageError`."""
        raise UsageError(f"{message}; see '{self.prog} --help'")

    def _unknown(self, given: str) -> str:
        if not given.startswith("-"):
            return f"unexpected argument '{given}'"
        known = [option for option in self._option_string_actions if option.startswith("--")]
        close = difflib.get_close_matches(given.partition("=")[0], known, n=1, cutoff=0.5)
        return f"unknown option '{given}'" + (f": did you mean {close[0]}?" if close else "")


def one_of(kind: str, names: Iterable[str]) -> Callable[[str], str]:
    """Return an argument type that takes one of `names` and suggests close ones."""
    known = list(names)

    def parse(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(str(UnknownNameError(kind, text, known)))
        return text

    return parse


def natural(text: str) -> int:
    """Parse a whole number of at least 0."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    return _whole(text, 1)


def _whole(text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got '{text:.40}'")
    return int(text)


def folder(text: str) -> Path:
    """Take the path of a folder; an empty one, e.g. of a variable that is not set, would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected the path of a folder, got ''; '.' is the current one")
    return Path(text)


def positive_number(text: str) -> float:
    """Parse a number above 0 that is finite."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got '{text:.40}'")
    return value


def number_from_0(text: str) -> float:
    """Parse a number of at least 0 that is finite."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0, got '{text:.40}'")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
