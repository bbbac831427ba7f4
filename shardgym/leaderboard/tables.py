"""A ranking as text, as Markdown, or as JSON-ready data."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from shardgym.costs.base import CostModel
from shardgym.errors import UnknownNameError
from shardgym.leaderboard.details import FACTORS, Details, SecondOpinion, second_opinion
from shardgym.leaderboard.notes import PAGE, footer, notes
from shardgym.leaderboard.ranking import BASE, Ranking, Row
from shardgym.leaderboard.statistics import Interval
from shardgym.tasks.suites import load_suite, suite_names

FORMATS = {"text": "simple", "md": "github"}


def escape_markdown(text: str) -> str:
    """Return text that Markdown shows as it is: no markup, HTML, link or end of a table's cell."""
    return re.sub(r"[\\`*\[\]|~]", r"\\\g<0>", html.escape(text, quote=False))


#: What makes plain text of what records say, by format. Every word of a table goes through it.
ESCAPES: dict[str, Callable[[str], str]] = {"text": str, "md": escape_markdown}


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        header: its name.
        cells: one per row; "-" where there is no figure.
        optional: left out where no row has a figure.
    """

    header: str
    cells: list[str]
    optional: bool = False


def render(
    rankings: Sequence[Ranking],
    style: str = "text",
    *,
    details: bool = False,
    link: str = PAGE,
    also: CostModel | None = None,
) -> str:
    """Return tables with headings and footers.

    Args:
        rankings: one per table.
        style: "text" or "md".
        details: whether groups of tasks, performance profiles, pairs of solvers and all notes follow every table.
        link: where columns are explained.
        also: a cost model that scores the stored plans, too; it ranks nothing.

    Raises:
        UnknownNameError: no such style.
    """
    if style not in FORMATS:
        raise UnknownNameError("format", style, FORMATS)
    escape = ESCAPES[style]
    heading, bullet = ("## ", "- ") if style == "md" else ("", "")
    parts = []
    for ranking in rankings:
        opinion = None if also is None else second_opinion(ranking, also)
        remarks = footer(ranking, link, escape)
        if opinion is not None:
            text = (
                f"by {opinion.cost}: what that cost, on {opinion.hardware}, says of the same plans, relative to those "
                f"of {opinion.reference}. It ranks nothing."
            )
            remarks.append(escape(text))
        table = _table(columns(ranking, opinion), style) if ranking.rows else "no solver"
        lines = "\n".join(bullet + line for line in remarks)
        parts.append(f"{heading}{escape(title(ranking))}\n\n{table}\n\n{lines}")
        if details:
            parts.append(render_details(ranking, style))
    return "\n\n".join(parts)


def title(ranking: Ranking) -> str:
    """Return e.g. "dlrm4-v1: 3 of 600 tasks, judged by fbgemm on cpu-amd-epyc-2c"."""
    key = ranking.board.key
    count = len(ranking.board.same_tasks)
    size = len(load_suite(key.suite)) if key.suite in suite_names() else count
    number = str(count) if count == size else f"{count} of {size}"
    on = "" if key.hardware == key.judge else f" on {key.hardware}"
    place = "" if ranking.board.place is None else f", {ranking.board.place}"
    return f"{key.suite}: {number} task{'' if size == 1 else 's'}, judged by {key.judge}{on}{place}"


def columns(ranking: Ranking, opinion: SecondOpinion | None = None) -> list[Column]:
    """Return the columns of the table of a ranking."""
    rows = ranking.rows
    several = any(row.num_seeds > 1 for row in rows)
    found = [
        Column("ranks", ["-" if row.ranks is None else "-".join(map(str, sorted(set(row.ranks)))) for row in rows]),
        Column("solver", [row.solver for row in rows]),
        Column(f"vs {BASE}", [_figure(row.relative, f"{row.relative:.3f}") for row in rows]),
        Column("95 % interval", [_ends(row.relative_interval, 3, " .. ") for row in rows], optional=True),
        Column("vs floor", [_of_floor(row) for row in rows], optional=True),
        Column("failed", [_figure(row.success, f"{100 * (1 - row.success):.3g} %") for row in rows]),
        Column("seeds", [_seeds(row) if several else "-" for row in rows], optional=True),
        Column("mean ms", [_figure(row.mean_ms, f"{row.mean_ms:.{2 if row.mean_ms >= 10 else 4}f}") for row in rows]),
        Column("time/plan", [_figure(row.median_s, _duration(row.median_s)) for row in rows]),
        Column("cpu/plan", [_figure(row.median_cpu_s, _duration(row.median_cpu_s)) for row in rows], optional=True),
        Column("complete", [_completeness(row) for row in rows], optional=True),
    ]
    if opinion is not None:
        ratios = [opinion.ratios[row.solver] for row in rows]
        found.append(Column(f"by {opinion.cost}", [_figure(ratio, f"{ratio:.3f}") for ratio in ratios]))
    return [column for column in found if not column.optional or set(column.cells) != {"-"}]


def _table(shown: Sequence[Column], style: str) -> str:
    align = ["left" if column.header == "solver" else "right" for column in shown]
    escape = ESCAPES[style]
    cells = zip(*(map(escape, column.cells) for column in shown), strict=True)
    headers = [escape(column.header) for column in shown]
    return tabulate(cells, headers, FORMATS[style], colalign=align, disable_numparse=True)


def render_details(ranking: Ranking, style: str = "text") -> str:
    """Return groups of tasks, performance profiles, pairs of solvers, and all notes; see `docs/boards.md`."""
    details = Details.of(ranking)
    solvers = Column("solver", list(details.solvers))
    parts = []
    if details.solvers and details.groups and ranking.has_base:
        groups = [
            Column(f"{group} ({count})", [_figure(own.ratio, f"{own.ratio:.3f}") for own in details.ratios[group]])
            for group, count in details.groups.items()
        ]
        parts += [f"Cost / cost of {BASE} by group of tasks (tasks):", _table([solvers, *groups], style)]
    if details.solvers:
        shares = [
            Column(f"{factor:g} x", [f"{100 * share:.0f} %" for share in details.profile[:, number]])
            for number, factor in enumerate(FACTORS)
        ]
        parts += ["Share of plans within so many times the best of their task:", _table([solvers, *shares], style)]
        count = len(details.solvers)
        pairs = [Column(str(j + 1), [_percentage(details, i, j) for i in range(count)]) for j in range(count)]
        numbers = Column("", [str(number + 1) for number in range(count)])
        with_interval = "" if details.improvement_ends is None else " (95 % interval)"
        parts += [f"Probability in %{with_interval} that the solver's plan is cheaper than that of solver number:"]
        parts += [_table([numbers, solvers, *pairs], style)]
    bullet = "- " if style == "md" else ""
    return "\n\n".join([*parts, "\n".join(bullet + ESCAPES[style](note) for note in notes(ranking))])


def to_dict(ranking: Ranking, also: CostModel | None = None) -> dict[str, Any]:
    """Return a ranking JSON-ready; figures that do not exist are None. For `also`, see `render`."""
    key = ranking.board.key
    details = Details.of(ranking)
    opinion = None if also is None else second_opinion(ranking, also)
    return {
        "suite": key.suite,
        "judge": key.judge,
        "judge_version": key.judge_version,
        "hardware": key.hardware,
        "folder": ranking.board.place,
        "num_tasks": len(ranking.board.same_tasks),
        "num_left_out": len(ranking.board.same_tasks) - ranking.num_tasks,
        "base": BASE if ranking.has_base else None,
        "rows": [_json_ready(vars(row)) for row in ranking.rows],
        "details": {
            "solvers": details.solvers,
            "groups": details.groups,
            "ratios": _json_ready(details.ratios),
            "profile": {"factors": FACTORS, "shares": details.profile.tolist()},
            "improvement": details.improvement.tolist(),
            "improvement_ends": None if details.improvement_ends is None else details.improvement_ends.tolist(),
        },
        "footer": footer(ranking),
        "notes": notes(ranking),
        "also": None if opinion is None else _json_ready(vars(opinion)),
    }


def _json_ready(value: Any) -> Any:
    """Return data with lists for tuples and None for NaN."""
    if isinstance(value, dict):
        return {name: _json_ready(member) for name, member in value.items()}
    if isinstance(value, tuple):
        return [_json_ready(member) for member in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def _figure(value: float, text: str) -> str:
    return "-" if math.isnan(value) else text


def _of_floor(row: Row) -> str:
    """Return the ratio with its interval, and whether the floor was not beaten; nothing where there is no floor."""
    if row.floor is None:
        return "-"
    ends = "" if row.of_floor_interval is None else f" ({_ends(row.of_floor_interval, 3, ' .. ')})"
    known = row.of_floor_interval is not None
    return f"{row.of_floor:.3f}{ends}{', not beaten' if known and not row.beats_floor else ''}"


def _duration(seconds: float) -> str:
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.2f} s"


def _percentage(details: Details, i: int, j: int) -> str:
    """Return how likely solver i beats solver j, e.g. "47 (34-60)"."""
    if i == j:
        return "-"
    interval = details.improvement_interval(i, j)
    ends = "" if interval is None else f" ({100 * interval.low:.0f}-{100 * interval.high:.0f})"
    return f"{100 * details.improvement[i, j]:.0f}{ends}"


def _ends(interval: Interval | None, digits: int, joint: str) -> str:
    return "-" if interval is None else f"{interval.low:.{digits}f}{joint}{interval.high:.{digits}f}"


def _seeds(row: Row) -> str:
    return str(row.num_seeds) + ("" if math.isnan(row.seed_spread) else f" (±{100 * row.seed_spread:.1f} %)")


def _completeness(row: Row) -> str:
    """Return the share of records that are there; nothing where all are."""
    return "-" if row.completeness == 1 or math.isnan(row.completeness) else f"{100 * row.completeness:.4g} %"
