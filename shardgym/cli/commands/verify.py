"""Score stored plans again and compare with their records.

Of every record the line is parsed, the plan checked against its task, and its cost computed or measured again with
the record's judge and settings. Prints one line per record and a footer. Records of other hardware or of another
version of the judge are skipped and counted; records without a cost and without a plan are failures, not checked.

Exit code 1 when any record disagrees, is damaged or is not of the run in run.json, when a solver's measured costs are
consistently off, or when of a file nothing could be verified. The footer says "partly verified", with exit code 0, when
records were skipped, when there are failures that were not checked, or when records of the run or run.json are missing.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.output import is_ascii_only, print_json
from shardgym.cli.parser import Parser
from shardgym.evaluation.verify import rules, verify


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.epilog = rules.RULE
    parser.add_argument("paths", nargs="+", metavar="PATH", help="folders of runs, or records files")
    parser.add_argument("--trust", action="append", default=[], metavar="MODULE:CLASS",
                        help="a judge of your own that records may name; repeat for several")  # fmt: skip


def run(arguments: Namespace) -> int:
    """Verify and print."""
    report = verify(arguments.paths, trust=arguments.trust, progress=not arguments.json)
    if arguments.json:
        print_json(report.to_dict())
    else:
        for row in report.rows:
            print(row.line(is_ascii_only()))
        print(report.footer())
    return 0 if report.ok else 1
