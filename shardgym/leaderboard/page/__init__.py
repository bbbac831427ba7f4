"""The page of boards, one HTML file that needs no network: tables, a chart of ratios and one of cost against time.

The file holds the data as JSON, the script that shows them (`page.js`), and plotly's script from the installed package.
Its content security policy forbids any other source.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.errors import import_extra
from shardgym.leaderboard.ranking import BASE, Ranking
from shardgym.leaderboard.statistics import pareto_front
from shardgym.leaderboard.tables import columns, footer, title

_HERE = Path(__file__).parent
#: Characters that end a script element, or lines of old JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_page(rankings: Sequence[Ranking]) -> str:
    """Return the page of some boards.

    Raises:
        MissingDependencyError: plotly is not installed.
    """
    plotly = import_extra("plotly.offline", "the page of boards", extra="site").get_plotlyjs()
    data = json.dumps([board_data(ranking) for ranking in rankings], separators=(",", ":"), allow_nan=False)
    # Filled in one pass: what is filled in is not searched for more places.
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    parts = {
        "/*STYLE*/": (_HERE / "page.css").read_text(encoding="utf-8"),
        "/*PLOTLY*/": plotly,
        "/*DATA*/": data.translate(_ESCAPED),
        "/*SCRIPT*/": (_HERE / "page.js").read_text(encoding="utf-8"),
    }
    text = []
    for place, part in parts.items():
        before, page = page.split(place)
        text += [before, part]
    return "".join([*text, page])


def board_data(ranking: Ranking) -> dict[str, Any]:
    """Return all that the page shows of a board; charts have the solvers with all records and a ratio to the base."""
    rows = [row for row in ranking.rows if row.completeness == 1 and math.isfinite(row.relative)]
    front = pareto_front(np.array([row.median_s for row in rows]), np.array([row.relative for row in rows]))
    return {
        "title": title(ranking),
        "base": BASE,
        "columns": [{"header": column.header, "cells": column.cells} for column in columns(ranking)],
        "footer": footer(ranking),
        "compared": [
            {
                "solver": row.solver,
                "cost": row.relative,
                "interval": row.relative_interval,
                "seconds": row.median_s,
                "front": bool(is_front),
            }
            for row, is_front in zip(rows, front, strict=True)
        ],
    }
