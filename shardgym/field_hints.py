"""Which field somebody may have meant: walks the types of records to where an unknown field was given."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from typing import Any


def suggestion(record: type[Any], location: tuple[int | str, ...]) -> str:
    """Return "; did you mean ...?" for an unknown field.

    Args:
        record: class of the record that was being built.
        location: path to the unknown field, as pydantic reports it: fields, positions and union tags.
    """
    candidates = {record}
    for step in location[:-1]:
        candidates = _below(candidates, str(step)) or candidates
    known = sorted({field.name for kind in candidates for field in dataclasses.fields(kind)})
    close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"


def _below(records: set[type[Any]], field: str) -> set[type[Any]]:
    """Return the records that may be in a field, none when there is no such field."""
    hints = [typing.get_type_hints(kind) for kind in records]
    return {kind for hint in hints if field in hint for kind in _records_in(hint[field])}


def _records_in(hint: Any) -> set[type[Any]]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return {hint}
    return {kind for part in typing.get_args(hint) for kind in _records_in(part)}
