"""Write what is generated in Markdown pages: `python tools/fill_pages.py [PAGE ...]`, by default the README and docs/.

With --check nothing is written; the exit code is 1 when a page would change.

- Between `<!-- table: FOLDER -->` and `<!-- end -->`: what `shardgym leaderboard FOLDER --format md` prints, its
  heading as plain bold text.
- Between `<!-- details: FOLDER -->` and `<!-- end -->`: what `--details` adds to that.
- Between `<!-- docstring: module:Class -->` and `<!-- end -->`: the docstring of a class.
- Between `<!-- model: FOLDER -->` and `<!-- end -->`: what the cards of shipped simulator weights say.
- Between `<!-- separation: SUITE -->` and `<!-- end -->`: what `tools/separation.py` found on a suite.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import separation
from model_summary import model_summary

from shardgym.errors import ShardGymError
from shardgym.leaderboard import Ranking, load_boards, rank, render
from shardgym.leaderboard.tables import render_details

ROOT = Path(__file__).parents[1]
#: Explains the columns of tables.
COLUMNS = ROOT / "docs" / "leaderboards.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- (table|details|docstring|model|separation): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="the README and docs/ when none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a page would change")
    options = parser.parse_args(arguments)
    missing = [str(path) for path in options.pages if not path.is_file()]
    if missing:
        parser.error(f"no such page: {', '.join(missing)}; expected Markdown files")
    try:
        texts = outdated(options.pages or PAGES)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path, text in texts.items():
        print(f"{path}: {'is not up to date' if options.check else 'written'}")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    return 1 if options.check and texts else 0


def outdated(pages: Iterable[Path]) -> dict[Path, str]:
    """Return the pages that are not what they should be, with the text that they should have."""
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    made = {path: filled(text, path) for path, text in texts.items()}
    return {path: made[path] for path, text in texts.items() if made[path] != text}


def filled(page: str, path: Path) -> str:
    """Return the text of a page with everything generated made anew; `path` is where it lies."""
    link = f"[{COLUMNS.name}]({os.path.relpath(COLUMNS, path.resolve().parent)}#columns)"
    makers = {
        "table": lambda folder: _table(folder, link),
        "details": lambda folder: render_details(_rankings(folder)[0], "md"),
        "docstring": _docstring,
        "model": model_summary,
        "separation": lambda suite: separation.table(separation.read(separation.DATA / f"{suite}.csv")),
    }
    return BLOCK.sub(lambda m: f"{m[1]}\n{makers[m[2]](m[3])}\n\n{m[4]}", page)


@functools.cache  # the table and the details of a board are of the same records
def _rankings(folder: str) -> list[Ranking]:
    return [rank(board) for board in load_boards([ROOT / folder])]


def _table(folder: str, link: str) -> str:
    tables = render(_rankings(folder), "md", link=link)
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
    sys.exit(main())
