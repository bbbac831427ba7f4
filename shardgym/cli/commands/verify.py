"""Score stored plans again and compare with their records.

Of every record the line is parsed, the plan checked against its task, and its cost computed or measured again with
the record's judge and settings. Prints one line per record and a footer. Records of other hardware or of another
version of the judge are skipped and counted; records without a cost and without a plan are failures, not checked.
With --solve every solver solves its tasks again with the oracle and seed of the record, and must make the same plan, or
fail in the same way, which checks failures too; not with a time limit or a measured oracle.
With --quiet every path is verified by itself and gets one line, its verdict, and lines for what fails or is missing.

Exit code 1 when any record disagrees, is damaged or is not of the run in run.json, when a solver's measured costs are
consistently off, or when of a file nothing could be verified. The footer says "partly verified", with exit code 0, when
records were skipped, when there are failures that were not checked, or when records of the run or run.json are missing.
"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Iterable

from shardgym.cli.output import is_ascii_only, print_json
from shardgym.cli.parser import Parser
from shardgym.evaluation.store import record_files
from shardgym.evaluation.verify import RULE, RecordCheck, verify
from shardgym.progress import remarks

#: Statuses of records that make a verification fail.
_BAD = ("mismatch", "unreadable")


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.epilog = RULE
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders of runs, or records files")
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE:CLASS",
                        help="a judge or solver of your own that records may name; repeat for several")  # fmt: skip
    parser.add_argument("--solve", action="store_true", help="solve every task again, too, and compare plans")
    parser.add_argument("-q", "--quiet", action="store_true",
                        help="the verdict of each path, and what is wrong; no progress")  # fmt: skip


def run(arguments: Namespace) -> int:
    """Verify and print."""
    if arguments.quiet and not arguments.json:
        record_files(arguments.paths)  # a path that does not exist is told before time is spent on the others
        return max([_quietly(path, arguments) for path in dict.fromkeys(arguments.paths)])
    # What a solver prints is not part of the result.
    with contextlib.redirect_stdout(sys.stderr), remarks(shown=not arguments.json):
        report = verify(arguments.paths, trust=arguments.trust, solve=arguments.solve, progress=not arguments.json)
    if arguments.json:
        print_json(report.to_dict())
    else:
        _print(report.rows)
        print(report.footer())
    return 0 if report.ok else 1


def _quietly(path: str, arguments: Namespace) -> int:
    """Verify one path, print its verdict and what is wrong, and return its exit code."""
    with contextlib.redirect_stdout(sys.stderr):
        report = verify(path, trust=arguments.trust, solve=arguments.solve)
    _print([row for row in report.rows if row.status in _BAD])
    print(f"{path}: {report.footer()}", flush=True)
    return 0 if report.ok else 1


def _print(rows: Iterable[RecordCheck]) -> None:
    for row in rows:
        print(row.line(is_ascii_only()))
