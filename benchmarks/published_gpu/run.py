"""The GPU model compared with published measurements: predictions beside them, and errors by what was measured.

    python benchmarks/published_gpu/run.py [--fit] [--page] [--measured FOLDER]

Each row is predicted twice: with the constants of the package, which were fitted to all rows, and with constants fitted
to all sources but the row's own. --fit prints the constants that are nearest to the rows, as those of the package are.
--page writes the tables into the README beside it. --measured holds the model against what `tools/gpu_day.py` measured
(`measured.py`).
"""

import argparse
import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fit import GROUPS, fit
from measured import percent, tables_of
from predictions import Constants, ratios
from rows import KERNELS, Row, read_rows
from tabulate import tabulate

from shardgym.errors import InputError

PAGE = Path(__file__).with_name("README.md")
BEGIN = "<!-- begin: python benchmarks/published_gpu/run.py --page -->"
END = "<!-- end of benchmarks/published_gpu/run.py -->"


class Held(NamedTuple):
    """A row, and predicted over published values."""

    row: Row
    fitted: float | None  #: with the constants of the package; None where nothing is predicted
    apart: float | None  #: with constants fitted without the row's source; None where nothing is left to fit to


def hold(rows: Sequence[Row]) -> list[Held]:
    """Predict published rows."""
    package = ratios(rows, Constants(), rows)
    apart: dict[str, float] = {}
    kinds = {kind for kinds, _ in GROUPS.values() for kind in kinds} | {"memory"}
    for source in dict.fromkeys(row.source for row in rows if row.kind in kinds):
        without = fit(rows, source, Constants())
        apart.update(ratios([r for r in rows if r.source == source and r.kind in kinds], without, rows))
    return [Held(row, package.get(row.id), apart.get(row.id)) for row in rows]


def _groups(held: Sequence[Held], key: Callable[[Row], str], header: str) -> str:
    """Return median errors by some property of the rows."""
    by: dict[str, list[Held]] = defaultdict(list)
    for item in held:
        by[key(item.row)].append(item)
    table = []
    for name, items in sorted(by.items()):
        said = [item for item in items if item.fitted is not None]
        fitted = [abs(item.fitted - 1) for item in said if item.fitted is not None]
        apart = [abs(item.apart - 1) for item in said if item.apart is not None]
        near = sum(error <= 0.25 for error in apart)
        table.append([name, len(items), len(said), percent(fitted), percent(apart), f"{near} of {len(apart)}"])
    columns = [header, "rows", "predicted", "error", "error, source left out", "of these within 25 %"]
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


def tables(held: Sequence[Held]) -> str:
    """Return all tables as Markdown."""
    kernels, exchanges, collectives = (
        [item for item in held if item.row.kind in kinds] for kinds in (KERNELS, ("exchange",), ("collective",))
    )
    parts = [
        "### Goals", _groups([*kernels, *exchanges, *collectives], lambda row: _KIND_OF_GOAL[row.kind], "goal"),
        "### By kind", _groups(held, lambda row: row.kind, "kind"),
        "### Kernels of FBGEMM", _groups(kernels, lambda row: row.card or row.gpu, "card"),
        "### Exchanges", _groups(exchanges, lambda row: row.gpu, "GPU"),
        "### Row collectives", _groups(collectives, lambda row: row.op.split()[0], "collective"),
    ]  # fmt: skip
    return "\n\n".join(parts)


_KIND_OF_GOAL = {
    **dict.fromkeys(KERNELS, "kernels (goal: 15 %)"),
    "exchange": "all-to-alls and copies (goal: 20 %)",
    "collective": "row collectives (goal: 25 %)",
}


def page_with(text: str, made: str) -> str:
    """Return the text of the page with new tables."""
    return f"{text[: text.index(BEGIN)]}{BEGIN}\n\n{made}\n\n{text[text.index(END) :]}"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="print the constants that are nearest to the rows")
    parser.add_argument("--page", action="store_true", help="write the tables into benchmarks/published_gpu/README.md")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="OUT of tools/gpu_day.py, unpacked")
    given = parser.parse_args()
    rows = read_rows()
    if given.measured:
        try:
            print(tables_of(given.measured, rows))
        except InputError as error:
            parser.error(f"--measured {given.measured}: {error}")
        return
    if given.fit:
        print(json.dumps(dataclasses.asdict(fit(rows)), indent=1))
        return
    made = tables(hold(rows))
    if given.page:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    print(made)


if __name__ == "__main__":
    main()
