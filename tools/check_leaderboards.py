"""Check that the boards prove themselves: `python tools/check_leaderboards.py [--all] [FOLDER ...]`.

Every record that a deterministic judge scored is scored again. Of every board a sample is solved again: the same
records everywhere, chosen by a hash among those that took two seconds or less; with --all it is every record. Where
there are bounds of all plans, no record may be below them, and one is computed again. At last every generated table and
page is compared with a fresh one.

FOLDERs are those of runs, by default all below leaderboards/ with such a judge. Exit code 1 when anything
disagrees.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import fill_pages
import plan_bounds

from shardgym.costs.base import is_repeatable
from shardgym.errors import ShardGymError
from shardgym.evaluation import verify
from shardgym.evaluation.result import RECORDS, RunInfo, record_files, records_file

ROOT = Path(__file__).parents[1]
#: Records of each board that are solved again.
SAMPLE = 6


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="default: all with such a judge")
    parser.add_argument("--all", action="store_true", help=f"solve every record again, not {SAMPLE} of each board")
    parser.add_argument("--no-pages", action="store_true", help="leave out tables and pages")
    options = parser.parse_args(arguments)
    folders = options.folders or repeatable_boards()
    bad = 0
    for folder in folders:
        try:
            report = verify(
                records_file(folder) or folder / RECORDS, solve=True, solve_sample=None if options.all else SAMPLE
            )
        except ShardGymError as error:
            print(f"{folder}: {error}")
            bad += 1
            continue
        for row in report.rows:
            if row.status in ("mismatch", "unreadable"):
                print(row.line(ascii_only=True))
        print(f"{folder}: {report.footer()}", flush=True)
        bad += not report.ok
    for folder in folders:
        if (folder / plan_bounds.BOUNDS).is_file():
            found = plan_bounds.problems(folder)
            print("\n".join(found) or f"{folder}: no plan is below the bound of its task")
            bad += bool(found)
    if not options.no_pages:
        bad += fill_pages.main(["--check"])
    print("NOT in order" if bad else "in order")
    return 1 if bad else 0


def repeatable_boards() -> list[Path]:
    """Return the committed folders of runs that a deterministic judge scored."""
    folders = [file.parent for file in record_files([ROOT / "leaderboards"])]
    runs = {folder: RunInfo.beside(folder) for folder in folders}
    return [folder for folder, run in runs.items() if run is not None and is_repeatable(run.judge)]


if __name__ == "__main__":
    sys.exit(main())
