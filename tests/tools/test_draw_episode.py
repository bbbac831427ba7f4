"""The picture of the worked episode: frames that the page's own snippet collects, side by side."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the extra 'data'")

pytestmark = pytest.mark.repository


def test_frames_of_the_first_snippet_are_joined_from_the_first_to_the_last(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    tool = importlib.import_module("draw_episode")
    page = "```python\nimport numpy as np\nframes = [np.full((2, 3, 3), n, np.uint8) for n in range(10)]\n```\n"
    frames = tool.played(page + page.replace("range(10)", "range(1)"))
    assert len(frames) == 10
    joined = tool.side_by_side(frames)
    assert joined.shape == (2, 12, 3)
    assert joined[0, ::3, 0].tolist() == [0, 3, 6, 9]
    assert np.ptp(joined, axis=0).max() == 0
