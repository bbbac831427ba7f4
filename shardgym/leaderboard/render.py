"""A ranking as text, as Markdown, or as JSON-ready data. Every figure comes from the records."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from tabulate import tabulate

from shardgym.errors import UnknownNameError
from shardgym.leaderboard.footer import footer
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
        "suite": key.suite, "judge": key.judge, "judge_version": key.judge_version, "hardware": key.hardware,
        "folder": ranking.board.place, "num_tasks": len(ranking.board.tasks), "num_common": ranking.num_common,
        "best_heuristic": ranking.best_heuristic,
        "rows": [_row_dict(row) for row in ranking.rows],
        "footer": footer(ranking),
    }  # fmt: skip


def _one(ranking: Ranking, style: str) -> str:
    key = ranking.board.key
    on = "" if key.hardware == key.judge else f" on {key.hardware}"
    place = "" if ranking.board.place is None else f", {ranking.board.place}"
    title = f"{key.suite}: {_tasks(ranking)}, judged by {key.judge}{on}{place}"
    cells = [_cells(row, ranking.num_common) for row in ranking.rows]
    table = tabulate(cells, HEADERS, FORMATS[style], colalign=_ALIGN, disable_numparse=True) if cells else "no solver"
    if style == "md":
        notes = "\n".join(f"- {line}" for line in footer(ranking))
        return f"## {title}\n\n{table}\n\n{notes}"
    notes = "\n".join(textwrap.fill(line, _WIDTH, subsequent_indent="  ") for line in footer(ranking))
    return f"{title}\n\n{table}\n\n{notes}"


def _tasks(ranking: Ranking) -> str:
    """Return e.g. "3 tasks", or "3 of 10 tasks" where the suite is known to hold more."""
    name, count = ranking.board.key.suite, len(ranking.board.tasks)
    size = len(load_suite(name)) if name in suite_names() else count
    shown = str(count) if count == size else f"{count} of {size}"
    return f"{shown} task" if size == 1 else f"{shown} tasks"


def _cells(row: Row, num_common: int) -> list[str]:
    low, high = row.gap_interval or (math.nan, math.nan)
    return [
        "-" if row.rank is None else "1=" if row.tied else str(row.rank),
        row.solver,
        _number(row.mean_ms, _mean(row.mean_ms)) + ("*" if row.tasks not in (0, num_common) else ""),
        _number(row.relative, f"{row.relative:.3f}"),
        _number(row.gap, f"{100 * row.gap:+.1f} %"),
        _number(low, f"{100 * low:+.1f} .. {100 * high:+.1f} %"),
        _number(row.success, f"{100 * row.success:.4g} %"),
        _number(row.completeness, f"{100 * row.completeness:.4g} %"),
        str(row.tasks),
        _number(row.median_s, _duration(row.median_s)),
    ]


def _mean(value_ms: float) -> str:
    return f"{value_ms:.2f}" if value_ms >= 10 else f"{value_ms:.4f}"


def _number(value: float, text: str) -> str:
    return "-" if math.isnan(value) else text


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2f} s"


def _row_dict(row: Row) -> dict[str, Any]:
    data = {name: _none_if_nan(value) for name, value in vars(row).items()}
    return data | {"gap_interval": None if row.gap_interval is None else list(row.gap_interval)}


def _none_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value
