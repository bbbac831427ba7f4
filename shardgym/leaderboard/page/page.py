"""Boards as one HTML file: tables, charts, and the plans behind them.

The file holds the data as JSON, the script that shows them (`page.js`), and plotly's script from the installed package.
Its content security policy forbids any other source. Names come from records: here they are JSON whose angle brackets
are escaped, and the script only ever sets them as text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardgym.errors import import_extra
from shardgym.leaderboard.page.data import board_data
from shardgym.leaderboard.ranking import Ranking

_HERE = Path(__file__).parent
#: Characters that end a script element, or lines of old JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_page(rankings: Sequence[Ranking]) -> str:
    """Return the page of some boards.

    Raises:
        MissingDependencyError: plotly is not installed.
    """
    return page_of([board_data(ranking) for ranking in rankings])


def page_of(boards: Sequence[dict[str, Any]]) -> str:
    """Return the page of what `board_data` returned for some boards; raises `MissingDependencyError`."""
    plotly = import_extra("plotly.offline", "the page of boards", extra="site").get_plotlyjs()
    data = json.dumps(boards, separators=(",", ":"), allow_nan=False)
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
