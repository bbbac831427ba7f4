"""Digits as pixels: enough text for a picture without a font."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_SCALE = 3
#: Five rows of three pixels each; rows from the top, "#" is ink.
_GLYPHS = {
    "0": "### #.# #.# #.# ###", "1": ".#. ##. .#. .#. ###", "2": "### ..# ### #.. ###", "3": "### ..# ### ..# ###",
    "4": "#.# #.# ### ..# ..#", "5": "### #.. ### ..# ###", "6": "### #.. ### #.# ###", "7": "### ..# ..# .#. .#.",
    "8": "### #.# ### #.# ###", "9": "### #.# ### ..# ###", ".": "... ... ... ... .#.", "/": "..# ..# .#. #.. #..",
    "-": "... ... ### ... ...",
}  # fmt: skip


def text_mask(text: str) -> npt.NDArray[np.bool_]:
    """Return where the ink of digits, ".", "/" and "-" is, shape (15, 12 * characters)."""
    glyphs = [np.array([[dot == "#" for dot in row + "."] for row in _GLYPHS[c].split()]) for c in text]
    return np.concatenate(glyphs, axis=1).repeat(_SCALE, axis=0).repeat(_SCALE, axis=1)
