"""Write the tables of a Markdown page from result records: `python tools/readme_table.py [PAGE]`.

What `shardgym leaderboard FOLDER --format md` prints goes between `<!-- table: FOLDER -->` and `<!-- end of table -->`,
its heading as plain bold text.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from shardgym.leaderboard import load_boards, rank, render

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """Return the text of a page with all its tables made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}{_table(ROOT / m[2])}\n{m[3]}", page)


def _table(folder: Path) -> str:
    """Return the tables of a folder with their footers."""
    tables = render([rank(board) for board in load_boards([folder])], "md")
    return "\n" + re.sub(r"^## (.*)$", r"**\1**", tables, flags=re.MULTILINE) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    path.write_text(with_tables(path.read_text()))
