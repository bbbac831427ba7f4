"""The chart of the overall table, as SVG: score against time per plan, with intervals, for light and dark pages."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from shardgym.leaderboard.overall import MEASURED, Overall
from shardgym.leaderboard.ranking import BASE
from shardgym.leaderboard.statistics import pareto_front

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 740, 40, 360
#: Of text, in pixels, on the safe side of what sans-serif fonts take.
CHARACTER, LINE = 7.4, 14
#: From a point to its label, and around a point.
GAP, RADIUS = 10, 5
#: Both axes are logarithmic; what lies between the first and the last point gets so much more at each end.
MARGIN = 0.08
STYLE = (
    "text{fill:#1f2937} .grid{stroke:#d1d5db} .bar{stroke:#6b7280;stroke-width:2}"
    " .front{fill:#d95f02} .other{fill:#7570b3}"
    "@media (prefers-color-scheme: dark){text{fill:#e5e7eb} .grid{stroke:#374151} .bar{stroke:#9ca3af} "
    ".front{fill:#f59e0b} .other{fill:#a5b4fc}}"
)


class Box(NamedTuple):
    """What takes room in a chart, in pixels from its upper left corner."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Say whether two boxes have room in common."""
        is_beside = self.right <= other.left or other.right <= self.left
        return not is_beside and self.top < other.bottom and other.top < self.bottom


class Axis:
    """A logarithmic axis."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        logs = np.log(values)
        margin = MARGIN * max(float(np.ptp(logs)), math.log(1.5))
        self._low, self._high = float(logs.min()) - margin, float(logs.max()) + margin
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return where a value lies, in pixels."""
        return self._start + (math.log(value) - self._low) / (self._high - self._low) * (self._end - self._start)

    def ticks(self, digits: Sequence[float]) -> Iterator[float]:
        """Yield the values inside that begin with one of these digits."""
        for power in range(math.floor(self._low / math.log(10)), math.ceil(self._high / math.log(10))):
            yield from (d * 10.0**power for d in digits if self._low <= math.log(d * 10.0**power) <= self._high)


def chart(table: Overall) -> str:
    """Return the chart of the solvers that have a score over all measured suites."""
    rows = [row for row in table.rows if MEASURED in row.scores]
    scores = [row.scores[MEASURED] for row in rows]
    ends = [score.interval or (score.mean, score.mean) for score in scores]
    x = Axis([row.median_s for row in rows], LEFT, RIGHT)
    y = Axis([end for pair in ends for end in pair], BOTTOM, TOP)
    front = pareto_front(np.array([row.median_s for row in rows]), np.array([score.mean for score in scores]))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="13" role="img">',
        "  <title>Score over all measured suites against time per plan, by solver</title>",
        f"  <style>{STYLE}</style>",
        f'  <text x="{LEFT - 48}" y="20">cost relative to {BASE}, geometric mean; bars are 95 % intervals</text>',
    ]
    for value in y.ticks((1, 1.2, 1.5, 2, 3, 4, 5, 6, 7, 8, 9)):
        lines.append(f'  <path class="grid" d="M{LEFT} {y.at(value):.1f}H{RIGHT}"/>')
        lines.append(f'  <text x="{LEFT - 8}" y="{y.at(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in x.ticks((1, 2, 5)):
        text = f"{1000 * value:g} ms" if value < 0.999 else f"{value:g} s"
        lines.append(f'  <path class="grid" d="M{x.at(value):.1f} {TOP}V{BOTTOM}"/>')
        lines.append(f'  <text x="{x.at(value):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{text}</text>')
    lines.append(
        f'  <text x="{(LEFT + RIGHT) / 2:.0f}" y="{BOTTOM + 46}" text-anchor="middle">median time per plan; in orange: '
        "no other solver is both cheaper and faster</text>"
    )
    points = [(x.at(row.median_s), y.at(score.mean)) for row, score in zip(rows, scores, strict=True)]
    bars = [(y.at(high), y.at(low)) for low, high in ends]
    for (across, down), (top, bottom), is_front in zip(points, bars, front, strict=True):
        lines.append(f'  <path class="bar" d="M{across:.1f} {top:.1f}V{bottom:.1f}"/>')
        kind = "front" if is_front else "other"
        lines.append(f'  <circle class="{kind}" cx="{across:.1f}" cy="{down:.1f}" r="{RADIUS}"/>')
    taken = [
        Box(across - RADIUS, min(down - RADIUS, top), across + RADIUS, max(down + RADIUS, bottom))
        for (across, down), (top, bottom) in zip(points, bars, strict=True)
    ]
    for row, point in zip(rows, points, strict=True):
        box = _place(row.solver, point, taken)
        taken.append(box)
        lines.append(f'  <text x="{box.left:.1f}" y="{box.bottom - 3:.1f}">{escape(row.solver)}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _place(name: str, point: tuple[float, float], taken: Sequence[Box]) -> Box:
    """Return where a label goes: beside its point, above or below, where it covers least of what is there already."""
    across, down = point
    width = CHARACTER * len(name)
    corners = [
        (across + GAP, down - LINE / 2),
        (across - GAP - width, down - LINE / 2),
        *((across + GAP * side - width * (side < 0), down + shift) for shift in (-LINE - 3, 3) for side in (1, -1)),
    ]
    boxes = [Box(left, top, left + width, top + LINE) for left, top in corners]
    return min(
        (box for box in boxes if box.left >= LEFT and box.right <= RIGHT),
        key=lambda box: sum(map(box.overlaps, taken)),
        default=boxes[0],
    )
