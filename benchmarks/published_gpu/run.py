"""The GPU model held against published measurements: prediction beside publication, and errors by what was measured.

    python benchmarks/published_gpu/run.py [--fit] [--page] [--measured FILE]

Each row is predicted twice: with the constants of the package, which were fitted to all rows, and with constants fitted
to all sources but the row's own. --fit prints the constants that are nearest to the rows, as those of the package are.
--page writes the tables into the README beside it. --measured fits the constants of kernels to what `tools/gpu_day.py`
measured, and holds published rows against them, none of which they were fitted to.
"""

import argparse
import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from fit import GROUPS, fit, fit_measured
from predictions import Constants, ratios
from rows import KERNELS, Row, read_rows
from tabulate import tabulate

from shardgym.errors import InputError

PAGE = Path(__file__).with_name("README.md")
BEGIN = "<!-- begin: python benchmarks/published_gpu/run.py --page -->"
END = "<!-- end of benchmarks/published_gpu/run.py -->"


class Held(NamedTuple):
    """A row and what the model says of it, over what is published."""

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


def _percent(values: Sequence[float]) -> str:
    return f"{100 * statistics.median(values):.0f} %" if values else "-"


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
        table.append([name, len(items), len(said), _percent(fitted), _percent(apart), f"{near} of {len(apart)}"])
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


def measured_tables(measured: Sequence[Row], published: Sequence[Row]) -> str:
    """Return constants of kernels fitted to measured rows alone, and errors on these and, as a test, on published ones.

    Raises:
        InputError: none of the rows is a kernel of a known card.
    """
    tested = [row for row in published if row.kind == "fused"]
    if not ratios(measured, Constants(), measured):
        raise InputError("no row is a kernel of a known card: expected kernels.csv as tools/gpu_day.py writes it")
    fitted = fit_measured(measured)
    by: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for name, rows in (("measured, fitted to", measured), ("published, left out", tested)):
        package = ratios(rows, Constants(), rows)
        own = ratios(rows, fitted, rows)
        for row in rows:
            if row.id in own:
                by[name, row.card, row.op.split()[0]].append((abs(package[row.id] - 1), abs(own[row.id] - 1)))
    lines = [[*key, len(off), *(_percent(errors) for errors in zip(*off, strict=True))] for key, off in by.items()]
    columns = ["rows", "card", "pass", "number", "error, constants of the package", "error, constants fitted here"]
    table = tabulate(lines, columns, tablefmt="github", disable_numparse=True)
    return f"{table}\n\n{json.dumps(dataclasses.asdict(fitted.kernels), indent=1)}"


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
    parser.add_argument("--measured", type=Path, metavar="FILE", help="kernels.csv of tools/gpu_day.py")
    given = parser.parse_args()
    rows = read_rows()
    if given.measured:
        try:
            print(measured_tables(read_rows(given.measured), rows))
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
