"""Check that the boards prove themselves: `python tools/check_leaderboards.py [--all] [FOLDER ...]`.

The tool scores records of deterministic judges again, those of two tasks per board, or all with --all. If a board has
lower bounds, no record may be below them, and one bound is computed again. Finally, the tool compares every generated
table and page with a fresh one.

FOLDERs are folders of runs, by default all below leaderboards/ with such a judge. The exit code is 1 if anything
disagrees.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import fill_pages
import plan_bounds

from shardgym.costs.base import is_repeatable
from shardgym.errors import ShardGymError
from shardgym.evaluation import verify
from shardgym.evaluation.result import RECORDS, RunInfo, record_files, records_file
from shardgym.files import read_lines
from shardgym.leaderboard.boards import BOUNDS

ROOT = Path(__file__).parents[1]
#: Tasks of each board whose records are scored again.
SAMPLE = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="default: those with such a judge")
    parser.add_argument("--all", action="store_true", help=f"score all records again, not only {SAMPLE} tasks")
    parser.add_argument("--no-pages", action="store_true", help="leave out tables and pages")
    options = parser.parse_args(arguments)
    folders = options.folders or repeatable_boards()
    # Forks, as the tools' modules are found by the path of this process alone.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        # Pages take longest, so they come first; those that are made of the same boards, together.
        made = [fill_pages.OVERALL, *([page] for page in fill_pages.PAGES if page not in fill_pages.OVERALL)]
        pages = [pool.submit(fill_pages.main, ["--check", *map(str, group)]) for group in made if not options.no_pages]
        checks = [pool.submit(checked, folder, options.all) for folder in folders]
        bad = 0
        for path in fill_pages.unpacked(ROOT / "leaderboards"):
            print(f"{path}: is not packed")
            bad += 1
        for check in checks:
            lines, is_bad = check.result()
            print("\n".join(lines), flush=True)
            bad += is_bad
        bad += sum(page.result() for page in pages)
    print("NOT in order" if bad else "in order")
    return 1 if bad else 0


def checked(folder: Path, every: bool) -> tuple[list[str], bool]:
    """Check the records of a run, and its bounds where it has some; returns what to print, and whether it is bad."""
    try:
        with tempfile.TemporaryDirectory() as temporary:
            report = verify(records_of(folder) if every else sampled(folder, Path(temporary)))
    except ShardGymError as error:
        return [f"{folder}: {error}"], True
    lines = [str(row) for row in report.rows if row.status == "mismatch"]
    lines.append(f"{folder}: {report.lines()[-1]}")
    below: list[str] = []
    if (folder / BOUNDS).is_file():
        below = plan_bounds.problems(folder)
        lines += below or [f"{folder}: no plan is below the bound of its task"]
    return lines, bool(below) or not report.ok


def records_of(folder: Path) -> Path:
    """Return the records of a folder, or where they should be."""
    return records_file(folder) or folder / RECORDS


def sampled(folder: Path, target: Path) -> Path:
    """Write the records of the first and the middle task of a board into another folder, and return their file."""
    run = RunInfo.of(records_of(folder))
    tasks = range(0, run.num_tasks, -(-run.num_tasks // SAMPLE))
    lines = [line.text for line in read_lines(records_of(folder))]
    chosen = [line for line in lines if json.loads(line)["task_index"] in tasks]
    (target / RECORDS).write_bytes(b"".join(line + b"\n" for line in chosen))
    run.write(target)
    return target / RECORDS


def repeatable_boards() -> list[Path]:
    """Return the committed folders of runs that a deterministic judge scored."""
    folders = [file.parent for file in record_files([ROOT / "leaderboards"])]
    runs = {folder: RunInfo.beside(folder) for folder in folders}
    return [folder for folder, run in runs.items() if run is not None and is_repeatable(run.judge)]


if __name__ == "__main__":
    sys.exit(main())
