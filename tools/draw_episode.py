"""Draw the worked episode of a page: `python tools/draw_episode.py`.

Runs the first Python snippet of docs/environment_reference.md, which collects a picture of every step in `frames`, and
writes the first one, the last one, and some between them side by side to docs/images/episode.png.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "environment_reference.md"
PICTURE = ROOT / "docs" / "images" / "episode.png"
#: Frames side by side.
SHOWN = 4


def main() -> int:
    """Run the command; returns its exit code."""
    frames = played(PAGE.read_text(encoding="utf-8"))
    Image.fromarray(side_by_side(frames)).save(PICTURE, optimize=True)
    print(f"{PICTURE}: {len(frames)} steps, {SHOWN} of them shown")
    return 0


def played(page: str) -> list[npt.NDArray[np.uint8]]:
    """Return the pictures that the first Python snippet of a page collects."""
    found = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None, "the page has a Python snippet"
    names: dict[str, Any] = {}
    exec(found[1], names)  # the page is ours
    frames: list[npt.NDArray[np.uint8]] = names["frames"]
    return frames


def side_by_side(frames: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.uint8]:
    """Join an even selection of pictures, shape (H, SHOWN * W, 3)."""
    chosen = np.linspace(0, len(frames) - 1, SHOWN).round().astype(int).tolist()
    return np.concatenate([frames[n] for n in chosen], axis=1)


if __name__ == "__main__":
    sys.exit(main())
