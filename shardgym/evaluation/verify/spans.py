"""Short text for sets of task indices."""

from __future__ import annotations

from collections.abc import Iterable

#: First and last index, both included.
Span = tuple[int, int]


def spans(indices: Iterable[int]) -> str:
    """Return for example "0-3, 7"; an index that is given twice counts once."""
    found: list[Span] = []
    for index in sorted(set(indices)):
        if found and index == found[-1][1] + 1:
            found[-1] = (found[-1][0], index)
        else:
            found.append((index, index))
    return text(found)


def holes(indices: Iterable[int], count: int) -> list[Span]:
    """Return the spans of 0 to `count` - 1 without these indices; needs time for the indices, not for `count`."""
    found, start = [], 0
    for index in [*sorted(index for index in set(indices) if index < count), count]:
        if index > start:
            found.append((start, index - 1))
        start = index + 1
    return found


def text(found: Iterable[Span]) -> str:
    """Return spans as text."""
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in found)
