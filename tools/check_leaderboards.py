"""Check that the boards prove themselves: `python tools/check_leaderboards.py [FOLDER ...]`.

Every record that a deterministic judge scored is scored again. Where there are bounds of all plans, no record may be
below them, and one is computed again. At last every generated table and page is compared with a fresh one.

FOLDERs are those of runs, by default all below leaderboards/ with such a judge. Exit code 1 when anything
disagrees.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import fill_pages
import plan_bounds

from shardgym.costs.base import is_repeatable
from shardgym.errors import ShardGymError
from shardgym.evaluation import verify
from shardgym.evaluation.result import RECORDS, RunInfo, record_files, records_file

ROOT = Path(__file__).parents[1]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="default: all with such a judge")
    parser.add_argument("--no-pages", action="store_true", help="leave out tables and pages")
    options = parser.parse_args(arguments)
    folders = options.folders or repeatable_boards()
    # Forks, as the tools' modules are found by the path of this process alone.
    with ProcessPoolExecutor(os.cpu_count(), mp_context=multiprocessing.get_context("fork")) as pool:
        # Single pages take longest, so they come first.
        made = [] if options.no_pages else fill_pages.PAGES
        pages = [pool.submit(fill_pages.main, ["--check", str(page)]) for page in made]
        checks = [pool.submit(checked, folder) for folder in folders]
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


def checked(folder: Path) -> tuple[list[str], bool]:
    """Check the records of a run, and its bounds where it has some; returns what to print, and whether it is bad."""
    try:
        report = verify(records_file(folder) or folder / RECORDS)
    except ShardGymError as error:
        return [f"{folder}: {error}"], True
    lines = report.lines()
    below: list[str] = []
    if (folder / plan_bounds.BOUNDS).is_file():
        below = plan_bounds.problems(folder)
        lines += below or [f"{folder}: no plan is below the bound of its task"]
    return lines, bool(below) or not report.ok


def repeatable_boards() -> list[Path]:
    """Return the committed folders of runs that a deterministic judge scored."""
    folders = [file.parent for file in record_files([ROOT / "leaderboards"])]
    runs = {folder: RunInfo.beside(folder) for folder in folders}
    return [folder for folder, run in runs.items() if run is not None and is_repeatable(run.judge)]


if __name__ == "__main__":
    sys.exit(main())
