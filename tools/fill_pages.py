"""Write the generated parts of Markdown pages: `python tools/fill_pages.py [PAGE ...]`, by default all such pages.

Without pages, records below leaderboards/ are packed first, and a new board gets a page. With --check nothing is
written; the exit code is 1 when a page would change, or records are not packed.

- Between `<!-- table: FOLDER -->` and `<!-- end -->`: what `shardgym leaderboard FOLDER --format md` prints, headings
  as plain bold text.
- Between `<!-- overall: all -->` and `<!-- end -->`: what `shardgym leaderboard --format md` prints; with `measured` in
  place of `all`, of solvers with a score over all measured suites alone.
- Between `<!-- boards: FOLDER -->` and `<!-- end -->`: the suites with boards in a folder, and links to these.
- Between `<!-- model: FOLDER -->` and `<!-- end -->`: what the cards of shipped simulator weights say.
- Between `<!-- claims: FILE -->` and `<!-- end -->`: figures by studies/claims/run.py, over families of suites.
- Between `<!-- run: COMMAND -->` and `<!-- end -->`: what a command of `shardgym` prints, in an empty folder.

`leaderboards/scores.svg` is generated as a whole, by `tools/score_chart.py`.
"""

import argparse
import contextlib
import csv
import functools
import io
import lzma
import os
import re
import shlex
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from score_chart import chart
from tabulate import tabulate

from shardgym import cli
from shardgym.costs.base import is_repeatable
from shardgym.costs.simulator.model_card import CLOSE, ModelCard, shipped_agreement
from shardgym.costs.simulator.weights import SHIPPED
from shardgym.errors import InputError, ShardGymError
from shardgym.evaluation.result import PACKED_RECORDS, RECORDS, RunInfo, record_files
from shardgym.files import write_whole
from shardgym.leaderboard import Ranking, load_boards, rank, render
from shardgym.leaderboard.overall import MEASURED, Overall, overall, render_overall
from shardgym.leaderboard.statistics import Interval
from shardgym.tasks.suites import suite_names

ROOT = Path(__file__).parents[1]
#: Explains the columns of tables.
COLUMNS = ROOT / "docs" / "boards.md"
CHART = ROOT / "leaderboards" / "scores.svg"
#: Blocks made of many boards, which take seconds to read.
OVERALL = [ROOT / "README.md", ROOT / "leaderboards/README.md", ROOT / "studies/claims/README.md", CHART]
PAGES = [*OVERALL, ROOT / "docs/costs.md", *sorted(ROOT.glob("leaderboards/*/**/README.md")), SHIPPED / "README.md"]
BLOCK = re.compile(r"(<!-- (table|overall|boards|model|claims|run): (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

_PARTS = {
    "step_forward_compute": "forward compute in a step", "step_backward_compute": "backward compute in a step",
    "step_compute": "compute in a step",
    "step_other_work": "ids, joining and packing", "step_work": "all work in a step",
    "forward_compute": "forward kernels alone", "backward_compute": "backward kernels alone",
    "compute": "kernels alone",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="all such pages when none is given")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something would change")
    options = parser.parse_args(arguments)
    missing = [str(path) for path in options.pages if not path.is_file()]
    if missing:
        parser.error(f"no such page: {', '.join(missing)}; expected Markdown files")
    try:
        plain = [] if options.pages else unpacked(ROOT / "leaderboards")
        new: list[Path] = []
        for path in plain:
            print(f"{path}: {'is not packed' if options.check else f'packed, {pack(path)} bytes'}")
            page = path.with_name("README.md")
            if not page.exists() and not options.check:
                board = path.parent.relative_to(ROOT)
                page.write_text(f"# {board.name}\n\n<!-- table: {board.as_posix()} -->\n<!-- end -->\n")
                new.append(page)
        texts = outdated([*(options.pages or PAGES), *new])
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for path, text in texts.items():
        print(f"{path}: {'is not up to date' if options.check else 'written'}")
        if not options.check:
            path.write_text(text, encoding="utf-8")
    return 1 if options.check and (texts or plain) else 0


def unpacked(folder: Path) -> list[Path]:
    """Return the records below a folder that are not packed; raises `InputError` where a folder has both."""
    return [path for path in record_files([folder]) if path.name == RECORDS]


def pack(records: Path) -> int:
    """Put a packed file in the place of records, the same bytes on any machine; returns its size."""
    packed = lzma.compress(records.read_bytes(), preset=9)
    write_whole(records.with_name(PACKED_RECORDS), packed)
    records.unlink()
    return len(packed)


def outdated(pages: Iterable[Path]) -> dict[Path, str]:
    """Return the pages that are out of date, with the text that they should have."""
    _rankings.cache_clear()  # records may have been packed or replaced
    _overall.cache_clear()
    texts = {path: path.read_text(encoding="utf-8") for path in pages}
    return {path: made for path, text in texts.items() if (made := filled(text, path)) != text}


def filled(page: str, path: Path) -> str:
    """Return the text of a page with everything generated made anew; `path` is where it lies."""
    if path.resolve() == CHART:
        return chart(_overall())
    folder = path.resolve().parent
    makers = {
        "table": lambda board: _table(board, folder),
        "overall": lambda rows: _overall_table(rows, folder),
        "boards": lambda boards: _list(ROOT / boards, folder),
        "model": model_summary,
        "claims": _claims,
        "run": printed,
    }
    return BLOCK.sub(lambda m: f"{m[1]}\n{makers[m[2]](m[3])}\n\n{m[4]}", page)


@functools.cache  # several blocks may be of the same records
def _rankings(folder: str) -> list[Ranking]:
    return [rank(board) for board in load_boards([ROOT / folder])]


@functools.cache
def _overall() -> Overall:
    return overall(ROOT / "leaderboards")


def _table(board: str, folder: Path) -> str:
    rankings = _rankings(board)
    tables = render(rankings, "md", link=f"[{COLUMNS.name}]({os.path.relpath(COLUMNS, folder)}#columns)")
    text = re.sub(r"^## (.*)$", r"**\1**", tables, flags=re.MULTILINE)
    rows = [row for ranking in rankings for row in ranking.rows]
    return text + _torchrec_note([row.relative_interval for row in rows if row.solver == "torchrec"], folder)


def _overall_table(rows: str, folder: Path) -> str:
    if rows not in ("all", "measured"):
        raise InputError(f"<!-- overall: {rows} -->: expected all or measured")
    table = _overall()
    scores = [row.scores[MEASURED] for row in table.rows if row.solver == "torchrec" and MEASURED in row.scores]
    text = render_overall(table, "md", all_rows=rows == "all")
    return text + _torchrec_note([score.interval for score in scores], folder)


def _torchrec_note(relative: list[Interval | None], folder: Path) -> str:
    """Say why TorchRec's planner lags, where a whole interval of its cost over the base's is above 1."""
    if not any(interval is not None and interval.low > 1 for interval in relative):
        return ""
    page = os.path.relpath(ROOT / "docs" / "torchrec.md", folder)
    return (
        "\n- `torchrec` lags because TorchRec's planner minimises a rating of its own, made of figures for GPUs and "
        f"their links, and queries no oracle: [TorchRec]({page})."
    )


def _list(boards: Path, folder: Path) -> str:
    """Return a table of the suites with boards, those with measured ones first."""
    found: dict[str, dict[bool, list[str]]] = defaultdict(lambda: {True: [], False: []})
    for run_file in sorted(boards.glob("*/run.json")):
        run = RunInfo.load(run_file)
        link = f"[{run.num_tasks} tasks by {run.judge}]({os.path.relpath(run_file.parent / 'README.md', folder)})"
        found[run.suite][not is_repeatable(run.judge)].append(link)
    rows = [
        {"suite": f"`{suite}`", "measured": ", ".join(links[True]), "simulated or modelled": ", ".join(links[False])}
        for suite, links in sorted(found.items(), key=lambda item: (not item[1][True], item[0]))
    ]
    return tabulate(rows, headers="keys", tablefmt="github")


def _claims(source: str) -> str:
    """Return how far solvers are ahead of others, a column per family of suites, by a CSV file of claims."""
    found: dict[str, dict[str, str]] = {}
    with (ROOT / source).open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["board"] not in suite_names():
                title = f"`{row['solver']}` ahead of `{row['against']}`"
                ahead = f"{row['ahead']} ({row['from']} to {row['to']})"
                found.setdefault(title, {"": title})[f"{row['board']}, {row['tasks']} tasks"] = ahead
    return tabulate(list(found.values()), headers="keys", tablefmt="github", disable_numparse=True)


def printed(command: str) -> str:
    """Return what a command prints, as a block of text below it; raises `InputError` where it fails."""
    program, *arguments = shlex.split(command)
    output = io.StringIO()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        code = cli.main(arguments) if program == "shardgym" else 2
    if code:
        raise InputError(f"'{command:.80}' ends with {code}: {errors.getvalue()[-300:]}")
    return f"```text\n$ {command}\n{output.getvalue()}```"


def fill(page: Path, block: str, rows: list[dict[str, Any]], floatfmt: str = ".3f") -> None:
    """Put a table, rows by header, into a block of a Markdown page; raises `InputError` where it has no such block."""
    text = page.read_text(encoding="utf-8")
    table = tabulate(rows, headers="keys", floatfmt=floatfmt, tablefmt="github")
    marked = re.compile(rf"(<!-- {block} -->\n).*?(<!-- end -->)", re.DOTALL)
    filled, count = marked.subn(lambda found: f"{found[1]}\n{table}\n\n{found[2]}", text)
    if not count:
        raise InputError(f"{page} has no block <!-- {block} --> ... <!-- end -->")
    page.write_text(filled, encoding="utf-8")


def model_summary(name: str) -> str:
    """Return Markdown about the weights in a folder that ships, named after a hardware tag."""
    cards = {role: ModelCard.load(SHIPPED / name / f"{role}.json") for role in ("oracle", "judge")}
    oracle, judge = (card.samples for card in cards.values())
    errors = [
        {"": title, "repeat": _percent(cards["oracle"].errors[part]["noise_mape"])}
        | {role: _percent(card.errors[part]["mape"]) for role, card in cards.items()}
        for part, title in _PARTS.items() if part in cards["oracle"].errors
    ]  # fmt: skip
    parts = [
        f"Trained on {oracle['steps']:,} measurements of devices in complete steps (the judge on {judge['steps']:,}). "
        "Mean absolute error of a prediction on tables that no role learned from, and of one measurement against its "
        "own repeat:",
        tabulate(errors, headers="keys", tablefmt="github", disable_numparse=True),
    ]
    found = shipped_agreement(name)
    if found is not None:
        rows = [
            {"": f"{name} {of.version}".rstrip(), "Kendall's tau": f"{of.kendall_tau:.2f}",
             "close pairs as measured": _percent(of.close_right)}
            for name, of in found.models.items()
        ]  # fmt: skip
        parts += [
            f"On the plans of solvers for {found.tasks} tasks of boards that were measured twice "
            f"({', '.join(found.hardware)}; `python benchmarks/simulator.py`); close pairs differ by less than "
            f"{_percent(CLOSE)} as measured:",
            tabulate(rows, headers="keys", tablefmt="github", disable_numparse=True),
        ]
    return "\n\n".join(parts)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    sys.exit(main())
