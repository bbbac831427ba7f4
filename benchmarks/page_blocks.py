"""Tables of benchmarks on pages: each between `<!-- NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tabulate import tabulate

from shardgym.errors import InputError


def fill(page: Path, block: str, rows: list[dict[str, Any]], floatfmt: str = ".3f") -> None:
    """Put a table into a block of a Markdown page.

    Args:
        page: the file.
        block: name of the block.
        rows: of the table, by header.
        floatfmt: of numbers that are no whole ones.

    Raises:
        InputError: the page has no such block.
    """
    text = page.read_text(encoding="utf-8")
    table = tabulate(rows, headers="keys", floatfmt=floatfmt, tablefmt="github")
    marked = re.compile(rf"(<!-- {block} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = marked.subn(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)
    if not count:
        raise InputError(f"{page} has no block <!-- {block} --> ... <!-- end -->")
    page.write_text(filled, encoding="utf-8")
