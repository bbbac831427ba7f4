"""Figures as files: matplotlib's, equal whenever what they show is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardgym.errors import import_extra

PLOT_FORMATS = ("svg", "pdf", "png")

_WIDTH_INCHES = 6.8
#: Fonts that printers take, text that can be searched, and files that are equal when figures are.
_STYLE = {"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "shardgym", "font.size": 8}


def save_figure(path: Path, height: float, draw: Callable[[Any], None], title: str) -> None:
    """Draw a figure and write it, in the format that the name of the file ends in.

    Args:
        path: ends in one of `PLOT_FORMATS`.
        height: in inches.
        draw: draws into a figure of matplotlib.
        title: above it.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    # Without touching matplotlib's global state.
    with import_extra("matplotlib", "plots").rc_context(_STYLE):
        figure = import_extra("matplotlib.figure", "plots").Figure((_WIDTH_INCHES, height), layout="constrained")
        draw(figure)
        figure.suptitle(plain(title), fontsize=8)
        # Without the date, the same content gives the same file.
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
        figure.savefig(path, metadata=metadata, dpi=200)


def plain(text: str) -> str:
    """Return text that matplotlib does not read as a formula."""
    return text.replace("$", r"\$")
