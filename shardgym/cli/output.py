"""What commands print and write: JSON, remarks, notes of costs, and files that are there whole or not at all."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardgym.costs.base import PlanCost
from shardgym.errors import InputError


def print_json(data: Any) -> None:
    """Print data as one JSON document."""
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def say(text: str) -> None:
    """Print a remark on standard error, out of the way of the result."""
    print(text, file=sys.stderr)


def count(number: int, thing: str) -> str:
    """Return "1 table", "2 tables"."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def is_ascii_only() -> bool:
    """Say whether standard output cannot show block characters and ticks."""
    try:
        "█✅❌⏭→".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def terminal_width() -> int:
    """Return the columns of the terminal; 100 when there is none."""
    return shutil.get_terminal_size((100, 24)).columns


def print_notes(costs: Iterable[tuple[str, PlanCost]]) -> None:
    """Print one line per distinct note of some costs.

    Args:
        costs: what each cost is called, and the cost. A note that only some of the feasible ones have names these.
    """
    costs = list(costs)
    for note in dict.fromkeys(note for _, cost in costs for note in cost.notes):
        is_general = all(note in cost.notes for _, cost in costs if cost.feasible)
        names = ", ".join(name for name, cost in costs if note in cost.notes)
        print(f"note: {note}" if is_general else f"note: {note} ({names})")


def check_free(path: Path, force: bool) -> None:
    """Refuse a path that would be overwritten, before time is spent on what goes there.

    Raises:
        InputError: the file exists and `force` is not set, or its folder does not exist.
    """
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"cannot write {path}: expected a file in a folder that exists")
    if path.exists() and not force:
        raise InputError(f"{path} exists: give another name, or --force to overwrite it")
