"""Sizes in bytes as people read them."""

from __future__ import annotations


def format_bytes(size: int) -> str:
    """Return bytes in the unit that keeps the number short."""
    value = float(size)
    unit = "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value /= 1024
        unit = larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def exact_bytes(size: int, noun: str = " bytes") -> str:
    """Return all digits, and from 1 MiB on the size in a larger unit, too: "1572864 bytes (1.5 MiB)"."""
    return f"{size}{noun}" if size < 2**20 else f"{size}{noun} ({format_bytes(size)})"
