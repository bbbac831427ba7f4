"""Write what is generated in Markdown pages: `python tools/fill_pages.py [PAGE ...]`, by default the README and docs/.

- Between `<!-- table: FOLDER -->` and `<!-- end -->`: what `shardgym leaderboard FOLDER --format md` prints, its
  heading as plain bold text.
- Between `<!-- docstring: module:Class -->` and `<!-- end -->`: the docstring of a class.
- Between `<!-- model: HARDWARE -->` and `<!-- end -->`: what the cards of shipped simulator weights say.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path

from model_summary import model_summary

from shardgym.leaderboard import load_boards, rank, render

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- (table|docstring|model): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """Return the text of a page with everything generated made anew."""
    makers = {"table": _table, "docstring": _docstring, "model": model_summary}
    return BLOCK.sub(lambda m: f"{m[1]}\n{makers[m[2]](m[3])}\n\n{m[4]}", page)


def _table(folder: str) -> str:
    tables = render([rank(board) for board in load_boards([ROOT / folder])], "md")
    return re.sub(r"^## (.*)$", r"**\1**", tables, flags=re.MULTILINE)


def _docstring(target: str) -> str:
    module, _, name = target.partition(":")
    text = inspect.getdoc(getattr(importlib.import_module(module), name)) or ""
    text = text.split("\nExample:")[0].rstrip()
    return re.sub(r"^(Args|Raises):\n((?:    .*\n?)+)", _arguments, text, flags=re.MULTILINE)


def _arguments(section: re.Match[str]) -> str:
    """Turn a Google-style section into a list."""
    lines = inspect.cleandoc("\n" + section[2]).splitlines()
    items = [line if line.startswith(" ") else "- `" + line.replace(":", "`:", 1) for line in lines]
    return f"**{section[1]}**\n\n" + "\n".join(items) + "\n"


if __name__ == "__main__":
    for path in [Path(name) for name in sys.argv[1:]] or PAGES:
        path.write_text(filled(path.read_text()))
