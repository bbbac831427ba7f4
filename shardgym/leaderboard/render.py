"""A ranking as text, as Markdown, or as JSON-ready data. Every figure comes from the records."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from shardgym.errors import UnknownNameError
from shardgym.leaderboard.notes import footer
from shardgym.leaderboard.ranking import Ranking, Row
from shardgym.suites import load_suite, suite_names

FORMATS = {"text": "simple", "md": "github"}

HEADERS = ("rank", "solver", "mean ms", "vs greedy", "gap", "95 % interval", "solved", "complete", "tasks",
           "time/plan")  # fmt: skip

#: Footnotes of text tables are wrapped to about the width of the table.
_WIDTH = 104

_ALIGN = ("right", "left") + ("right",) * 8


def render(rankings: Sequence[Ranking], style: str = "text") -> str:
    """Return tables with headings and footers.

    Args:
        rankings: one per table.
        style: "text" or "md".

    Raises:
        UnknownNameError: no such style.
    """
    if style not in FORMATS:
        raise UnknownNameError("format", style, FORMATS)
    return "\n\n".join(_one(ranking, style) for ranking in rankings)


def to_dict(ranking: Ranking) -> dict[str, Any]:
    """Return a ranking JSON-ready; figures that do not exist are None."""
    key = ranking.board.key
    return {
        "suite": key.suite,
        "judge": key.judge,
        "judge_version": key.judge_version,
        "hardware": key.hardware,
        "folder": ranking.board.place,
        "num_tasks": len(ranking.board.tasks),
        "num_common": ranking.num_common,
        "best_heuristic": ranking.best_heuristic,
        "rows": [_row_dict(row) for row in ranking.rows],
        "footer": footer(ranking),
    }


def _one(ranking: Ranking, style: str) -> str:
    key = ranking.board.key
    on = "" if key.hardware == key.judge else f" on {key.hardware}"
    place = "" if ranking.board.place is None else f", {ranking.board.place}"
    title = f"{key.suite}: {_num_tasks(ranking)}, judged by {key.judge}{on}{place}"
    cells = [_cells(row, ranking.num_common) for row in ranking.rows]
    table = tabulate(cells, HEADERS, FORMATS[style], colalign=_ALIGN, disable_numparse=True) if cells else "no solver"
    if style == "md":
        notes = "\n".join(f"- {line}" for line in footer(ranking))
        return f"## {title}\n\n{table}\n\n{notes}"
    notes = "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in footer(ranking))
    return f"{title}\n\n{table}\n\n{notes}"


def _num_tasks(ranking: Ranking) -> str:
    """Return e.g. "3 tasks", or "3 of 10 tasks" where the suite is known to hold more."""
    name = ranking.board.key.suite
    count = len(ranking.board.tasks)
    size = len(load_suite(name)) if name in suite_names() else count
    number = str(count) if count == size else f"{count} of {size}"
    return f"{number} task" if size == 1 else f"{number} tasks"


def _cells(row: Row, num_common: int) -> list[str]:
    low, high = row.gap_interval or (math.nan, math.nan)
    mean = f"{row.mean_ms:.2f}" if row.mean_ms >= 10 else f"{row.mean_ms:.4f}"
    duration = f"{1000 * row.median_s:.2g} ms" if row.median_s < 0.0995 else f"{row.median_s:.2f} s"
    return [
        "-" if row.rank is None else "1=" if row.tied else str(row.rank),
        row.solver,
        _dash_if_nan(row.mean_ms, mean) + ("*" if row.tasks not in (0, num_common) else ""),
        _dash_if_nan(row.relative, f"{row.relative:.3f}"),
        _dash_if_nan(row.gap, f"{100 * row.gap:+.1f} %"),
        _dash_if_nan(low, f"{100 * low:+.1f} .. {100 * high:+.1f} %"),
        _dash_if_nan(row.success, f"{100 * row.success:.4g} %"),
        _dash_if_nan(row.completeness, f"{100 * row.completeness:.4g} %"),
        str(row.tasks),
        _dash_if_nan(row.median_s, duration),
    ]


def _dash_if_nan(value: float, text: str) -> str:
    return "-" if math.isnan(value) else text


def _row_dict(row: Row) -> dict[str, Any]:
    data = {
        name: None if isinstance(value, float) and math.isnan(value) else value for name, value in vars(row).items()
    }
    return data | {"gap_interval": None if row.gap_interval is None else list(row.gap_interval)}
