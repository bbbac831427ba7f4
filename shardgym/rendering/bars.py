"""Bars made of characters, and numbers with units."""

from __future__ import annotations

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """Return a bar of `width` characters of which `share` is filled; "" for no width."""
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        filled = round(share * width)
        return "#" * filled + "." * (width - filled)
    full, eighths = divmod(round(share * width * 8), 8)
    partial = _EIGHTHS[eighths] if eighths else ""
    return ("█" * full + partial).ljust(width, "·")


def stacked(shares: list[float], width: int, ascii_only: bool = False) -> str:
    """Return a bar of at most four parts, each in its own character, of `width` characters for a sum of 1."""
    marks = "FfbB" if ascii_only else "█▓▒░"
    text, edge = "", 0.0
    for mark, share in zip(marks, shares, strict=False):
        edge += share
        text += mark * (round(min(edge, 1.0) * width) - len(text))
    return text.ljust(width)


def mebibytes(size: int) -> str:
    """Return bytes in the unit that keeps the number short."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
