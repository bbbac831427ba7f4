"""The chart of the overall table: every solver with a score is on it, and its label covers nothing."""

import itertools
import xml.etree.ElementTree as ET

import pytest

from shardgym.leaderboard.overall import MEASURED, Overall, OverallRow, Score
from shardgym.leaderboard.statistics import Interval

SVG = "{http://www.w3.org/2000/svg}"


def table(points):
    """The table of solvers with a name, a time per plan in s, and a score."""
    scores = [(name, seconds, Score(mean, Interval(mean * 0.95, mean * 1.05))) for name, seconds, mean in points]
    rows = [OverallRow(name, {MEASURED: score}, 0, 1, seconds, 0.0) for name, seconds, score in scores]
    return Overall((*rows, OverallRow("modelled_alone", {}, 0, 0, float("nan"), 0.0)), {}, ())


def boxes_of(tool, svg, names):
    """Where labels and points are."""
    labels = [t for t in svg.iter(f"{SVG}text") if t.text in names]
    found = {
        t.text: tool.Box(x := float(t.get("x")), y := float(t.get("y")) - 11, x + 7.4 * len(t.text), y + 14)
        for t in labels
    }
    points = [(float(c.get("cx")), float(c.get("cy"))) for c in svg.iter(f"{SVG}circle")]
    return found, [tool.Box(x - 5, y - 5, x + 5, y + 5) for x, y in points]


@pytest.mark.parametrize("spread", [1.0, 1.3, 10.0])
def test_labels_cover_no_other_label_and_no_point(tool, spread):
    points = [(f"solver_{n}", 0.01 * spread ** (n % 3), 0.8 * 1.15**n) for n in range(5)]
    svg = ET.fromstring(tool.chart(table(points)))
    labels, circles = boxes_of(tool, svg, {name for name, *_ in points})
    assert set(labels) == {name for name, *_ in points}
    assert len(circles) == len(points)
    assert not any(a.overlaps(b) for a, b in itertools.combinations(labels.values(), 2))
    assert not any(label.overlaps(circle) for label in labels.values() for circle in circles)
    assert all(label.left >= tool.LEFT and label.right <= tool.RIGHT for label in labels.values())


def test_solvers_that_none_dominates_are_marked_and_names_are_escaped(tool):
    text = tool.chart(table([("<fast>", 0.001, 1.0), ("good", 0.1, 0.8), ("worse", 0.2, 0.9)]))
    assert "&lt;fast&gt;" in text
    assert [c.get("class") for c in ET.fromstring(text).iter(f"{SVG}circle")] == ["front", "front", "other"]
