"""The GPU model held against published measurements: prediction beside publication, and errors by what was measured.

    python benchmarks/published_gpu/run.py [FILE ...] [--fit] [--page] [--json]
    python benchmarks/published_gpu/run.py --collected FOLDER --hardware h100

Each row is predicted twice: with the constants of the package, which were fitted to all rows, and with constants fitted
to all sources but the row's own. FILEs hold more rows, in the columns of `rows.csv`; they are predicted,
and nothing is fitted to them. --fit prints the constants that are nearest to the rows; those of the package are such.
--page writes the tables into the README beside it. --collected predicts what `shardgym collect --device cuda`
measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fit import GROUPS, fit
from predictions import Constants, ratios
from rows import KERNELS, Row, read_rows
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.costs.gpu.cards import card
from shardgym.costs.gpu.cost import shard_sizes
from shardgym.costs.gpu.kernels import backward_ms, forward_ms, shard_work
from shardgym.errors import InputError, ShardGymError, import_extra
from shardgym.tables.table import EmbeddingTable

PAGE = Path(__file__).with_name("README.md")
BEGIN = "<!-- begin: python benchmarks/published_gpu/run.py --page -->"
END = "<!-- end of benchmarks/published_gpu/run.py -->"

#: Fewest rows of a source whose order says anything.
_FEWEST = 3
#: Kendall's tau over the rows of a source that is aimed at.
_GOOD_TAU = 0.9


class Held(NamedTuple):
    """A row and what the model says of it, over what is published.

    Attributes:
        row: as published.
        fitted: with the constants of the package; None where nothing is predicted.
        apart: with constants fitted without the row's source; None where nothing is left to fit to.
        reason: why nothing is predicted.
    """

    row: Row
    fitted: float | None
    apart: float | None
    reason: str


def hold(rows: Sequence[Row], more: Sequence[Row] = ()) -> list[Held]:
    """Predict published rows, and more rows of theirs or of other sources that nothing is fitted to."""
    among = [*rows, *more]
    package = ratios(among, Constants(), among)
    apart: dict[str, float | str] = {}
    kinds = {kind for kinds, _ in GROUPS.values() for kind in kinds} | {"memory"}
    for source in dict.fromkeys(row.source for row in among if row.kind in kinds):
        without = fit(rows, source, Constants())
        apart.update(ratios([r for r in among if r.source == source and r.kind in kinds], without, among))
    held = []
    for row in among:
        fitted = package[row.id]
        left = apart.get(row.id)
        reason = fitted if isinstance(fitted, str) else ""
        number = None if isinstance(fitted, str) else fitted
        held.append(Held(row, number, left if isinstance(left, float) else None, reason))
    return held


# --- tables -----------------------------------------------------------------------------------------------------------


def _error(ratio: float) -> float:
    return abs(ratio - 1)


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
        fitted = [_error(item.fitted) for item in said if item.fitted is not None]
        apart = [_error(item.apart) for item in said if item.apart is not None]
        near = sum(error <= 0.25 for error in apart)
        table.append([name, len(items), len(said), _percent(fitted), _percent(apart), f"{near} of {len(apart)}"])
    columns = [header, "rows", "predicted", "error", "error, source left out", "of these within 25 %"]
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


class Series(NamedTuple):
    """Rows of one source, all with times or all with bandwidths.

    Attributes:
        source: that published them.
        rows: at least `_FEWEST` different figures.
        published: figures.
        predicted: with constants fitted without the source.
    """

    source: str
    rows: list[Row]
    published: Floats
    predicted: Floats

    def tau(self, without: int | None = None) -> float:
        """Return Kendall's tau between publication and prediction, of all rows or of all but one."""
        stats: Any = import_extra("scipy.stats", "rank correlations")
        chosen = np.arange(len(self.rows)) != without
        return float(stats.kendalltau(self.published[chosen], self.predicted[chosen]).statistic)


def _series(held: Sequence[Held]) -> Iterator[Series]:
    by: dict[tuple[str, bool], list[Held]] = defaultdict(list)
    for item in held:
        if item.apart is not None:
            by[item.row.source, not item.row.time_us].append(item)
    for (source, _), items in sorted(by.items()):
        published = np.array([item.row.time_us or item.row.gbps for item in items])
        if len(set(published.tolist())) >= _FEWEST:
            predicted = np.round(published * np.array([item.apart for item in items]), 6)
            yield Series(source, [item.row for item in items], published, predicted)


def _by_source(held: Sequence[Held]) -> str:
    """Return errors and Kendall's tau between prediction and publication of each source."""
    by: dict[str, list[float]] = defaultdict(list)
    for item in held:
        if item.apart is not None:
            by[item.row.source].append(_error(item.apart))
    taus: dict[str, list[str]] = defaultdict(list)
    for series in _series(held):
        taus[series.source].append(f"{series.tau():.2f}")
    table = [[name, len(errors), _percent(errors), ", ".join(taus[name]) or "-"] for name, errors in sorted(by.items())]
    columns = ["source", "predicted rows", "error, source left out", "Kendall's tau"]
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


def _out_of_order(held: Sequence[Held]) -> str:
    """Return, of sources whose order is not predicted well, which pairs of rows that is and whether one row does it."""
    table = []
    for series in _series(held):
        if series.tau() >= _GOOD_TAU:
            continue
        pairs = [
            (a, b) for a in range(len(series.rows)) for b in range(a) if series.published[a] != series.published[b]
        ]
        signs = [
            np.sign((series.published[a] - series.published[b]) * (series.predicted[a] - series.predicted[b]))
            for a, b in pairs
        ]
        apart = [
            float(max(series.published[a], series.published[b]) / min(series.published[a], series.published[b]) - 1)
            for (a, b), sign in zip(pairs, signs, strict=True)
            if sign < 0
        ]
        without = [series.tau(row) for row in range(len(series.rows))]
        worst = int(np.nanargmax(without))
        table.append(
            [series.source, len(series.rows), f"{series.tau():.2f}", len(pairs), signs.count(0), len(apart),
             _percent(apart), f"{without[worst]:.2f} ({series.rows[worst].id})"]
        )  # fmt: skip
    columns = [
        "source", "rows", "Kendall's tau", "pairs", "predicted equal", "predicted the other way", "these differ by",
        "tau without one row",
    ]  # fmt: skip
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


def _left_to_fit(held: Sequence[Held]) -> str:
    """Return what the constants of kernels rest on when a source is left out, and the error that this leaves."""
    table = []
    for group, name in (("kernels", "in the GPU's memory"), ("host", "in the host's memory")):
        kinds, constants = GROUPS[group]
        items = [item for item in held if item.row.kind in kinds]
        by_source = []
        for source in sorted({item.row.source for item in items}):
            errors = [_error(i.apart) for i in items if i.row.source == source and i.apart is not None]
            left = sum(item.row.source != source for item in items)
            table.append([name, source, len(errors), f"{left} for {len(constants)} constants", _percent(errors)])
            by_source.append(statistics.median(errors))
        table.append([name, "every source counted once", len(items), "-", _percent(by_source)])
    columns = ["rows", "source left out", "rows of it", "left to fit to", "error"]
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


def _all_rows(held: Sequence[Held]) -> str:
    table = []
    for row, fitted, apart, reason in held:
        unit, value = ("us", row.time_us) if row.time_us else ("GB/s", row.gbps)
        sizes = f"D={row.columns:g} B={row.bags:g} L={row.pooling:g} T={row.tables:g}" if row.columns else ""
        if fitted is None:
            said = ["-", "-", reason]
        else:
            said = [f"{value * fitted:.4g}", f"{fitted:.2f}", "-" if apart is None else f"{apart:.2f}"]
        table.append([row.id, row.gpu.replace("|", "/"), f"{row.op} {sizes}".strip(), f"{value:.4g} {unit}", *said])
    columns = ["row", "GPU", "what", "published", "predicted", "ratio", "source left out"]
    return tabulate(table, columns, tablefmt="github", disable_numparse=True)


def _width(row: Row) -> str:
    return "up to 32 columns" if row.columns <= 32 else "33 to 128 columns" if row.columns <= 128 else "more columns"


def _lookups(row: Row) -> str:
    lookups = row.bags * row.tables * row.pooling
    return "below 500,000 lookups" if lookups < 5e5 else "500,000 to 2 million" if lookups < 2e6 else "more lookups"


def _pass(row: Row) -> str:
    return "forward and backward" if row.op.startswith("fwd+bwd") else "backward" if row.backward else "forward"


def _message(row: Row) -> str:
    size = row.message_bytes
    return (
        "below 2 MiB" if 0 < size < 2**21 else "2 MiB to 1 GiB" if 0 < size < 2**30 else "1 GiB and more, or its rate"
    )


def _span(row: Row) -> str:
    if " n=" not in row.op:
        return "one pair"
    return "in one domain" if row.domain >= row.ranks else "between domains"


def _fabric(row: Row) -> str:
    return "known to be bad, not fitted to" if row.faulty else "as it should be, for all that is said"


def tables(held: Sequence[Held]) -> str:
    """Return all tables as Markdown."""
    kernels = [item for item in held if item.row.kind in KERNELS]
    exchanges = [item for item in held if item.row.kind == "exchange"]
    collectives = [item for item in held if item.row.kind == "collective"]
    cards = [item for item in kernels if item.fitted is not None]
    parts = [
        "### By kind", _groups(held, lambda row: row.kind, "kind"),
        "### Goals", _groups([*kernels, *exchanges, *collectives], lambda r: _KIND_OF_GOAL[r.kind], "goal"),
        "### Kernels of FBGEMM", _groups(cards, lambda row: row.card, "card"),
        _groups(kernels, _pass, "pass"), _groups(kernels, _width, "width"), _groups(kernels, _lookups, "lookups"),
        _groups(kernels, lambda row: row.optimizer or "-", "optimiser"),
        "### Exchanges", _groups(exchanges, lambda row: row.gpu, "GPU"),
        _groups(exchanges, _message, "size"), _groups(exchanges, _span, "span"),
        "### Row collectives", _groups(collectives, lambda row: row.op.split()[0], "collective"),
        _groups(collectives, lambda row: row.gpu, "GPU"), _groups(collectives, _message, "size"),
        _groups(collectives, _span, "span"), _groups(collectives, _fabric, "fabric"),
        _groups(collectives, lambda row: row.source, "source"),
        "### By source", _by_source(held),
        "### Sources whose order is not predicted well", _out_of_order(held),
        "### What kernels are fitted to when a source is left out", _left_to_fit(held),
        "### All rows", _all_rows(held),
    ]  # fmt: skip
    return "\n\n".join(parts)


_KIND_OF_GOAL = {
    **dict.fromkeys(KERNELS, "kernels (goal: 15 %)"),
    "exchange": "all-to-alls and copies (goal: 20 %)",
    "collective": "row collectives (goal: 25 %)",
}


# --- data of one's own ------------------------------------------------------------------------------------------------


def collected(folder: Path, hardware: str) -> str:
    """Return errors and order of the model on shard sets that `shardgym collect` measured, by role of the samples."""
    from shardgym.costs.simulator.sample_files import read_compute

    samples = read_compute(folder)
    gpu = card(hardware)
    of = samples.shards
    sums = []
    start = 0
    for count in samples.counts.tolist():
        shards = []
        for i in range(start, start + count):
            histogram = tuple(of.reuse[i].tolist())
            rows = int(of.rows[i])
            columns = int(of.columns[i])
            table = EmbeddingTable("t", rows, columns, float(of.pooling[i]), reuse_histogram=histogram)
            shards.append((table, (0, rows), columns))
        precision = "fp16" if of.element_bytes[start] == 2 else "fp32"
        state = (of.state_per_weight[start], of.state_per_row[start])
        optimizer = {(0, 0): "exact_sgd", (0, 1): "rowwise_adagrad", (1, 0): "adagrad", (2, 0): "adam"}[state]
        sizes = shard_sizes(shards, int(of.batch[start]), precision, optimizer)  # type: ignore[arg-type]
        sums.append(shard_work(gpu, sizes).sum(axis=0))
        start += count
    work = np.stack(sums)
    times = np.stack([forward_ms(work, samples.counts.astype(np.float64)), backward_ms(work)], axis=1)
    ratio = times / samples.ms
    stats: Any = import_extra("scipy.stats", "rank correlations")
    rows = []
    for role in dict.fromkeys(samples.labels.role.tolist()):
        chosen = samples.labels.role == role
        errors = np.median(np.abs(ratio[chosen] - 1), axis=0)
        tau = stats.kendalltau(samples.ms[chosen].sum(axis=1), times[chosen].sum(axis=1)).statistic
        rows.append([role, int(chosen.sum()), *(f"{100 * error:.1f} %" for error in errors), f"{tau:.2f}"])
    columns = ["role", "samples", "forward", "backward", "Kendall's tau"]
    return tabulate(rows, columns, tablefmt="github", disable_numparse=True)


# --- command line -----------------------------------------------------------------------------------------------------


def page_with(text: str, made: str) -> str:
    """Return the text of the page with new tables."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{PAGE}: expected the lines {BEGIN} and {END}")
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{tail}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="more rows, which nothing is fitted to")
    parser.add_argument("--fit", action="store_true", help="print the constants that are nearest to the rows")
    parser.add_argument("--page", action="store_true", help="write the tables into benchmarks/published_gpu/README.md")
    parser.add_argument("--json", action="store_true", help="print rows and ratios as JSON")
    parser.add_argument("--collected", type=Path, metavar="FOLDER", help="of 'shardgym collect --device cuda'")
    parser.add_argument("--hardware", default="h100", help="card that FOLDER was measured on (%(default)s)")
    given = parser.parse_args(arguments)
    try:
        print(_answer(given))
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _answer(given: argparse.Namespace) -> str:
    if given.collected:
        return collected(given.collected, given.hardware)
    rows = read_rows()
    if given.fit:
        return json.dumps(dataclasses.asdict(fit(rows)), indent=1)
    more = [row for path in given.files for row in read_rows(path)]
    if given.page and more:
        raise InputError("--page is of the committed rows: leave the files away")
    held = hold(rows, more)
    if given.page:
        PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), tables(held)), encoding="utf-8")
        return f"{PAGE}: written"
    if given.json:
        return json.dumps([{**dataclasses.asdict(h.row), **h._asdict(), "row": h.row.id} for h in held], indent=1)
    return tables(held)


if __name__ == "__main__":
    sys.exit(main())
