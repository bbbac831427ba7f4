"""Print ranked tables from stored records.

Records of different suites, judges or hardware go into different tables. Records of the same from several folders
share one.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.output import print_json
from shardgym.cli.parser import Parser, one_of
from shardgym.errors import UnknownNameError
from shardgym.leaderboard import load_boards, rank, render
from shardgym.leaderboard.render import FORMATS, to_dict


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("paths", nargs="*", default=["results"], metavar="PATH",
                        help="folders of runs, or records files (default: results)")  # fmt: skip
    parser.add_argument("--suite", metavar="NAME", help="only this suite")
    parser.add_argument("--format", default="text", type=one_of("format", FORMATS), metavar="FORMAT",
                        help=f"{' or '.join(FORMATS)} (%(default)s)")  # fmt: skip


def run(arguments: Namespace) -> int:
    """Rank and print."""
    boards = load_boards(arguments.paths)
    suites = {board.key.suite for board in boards}
    if arguments.suite is not None and arguments.suite not in suites:
        raise UnknownNameError("suite among the records", arguments.suite, suites)
    rankings = [rank(board) for board in boards if arguments.suite in (None, board.key.suite)]
    if arguments.json:
        print_json([to_dict(ranking) for ranking in rankings])
    else:
        print(render(rankings, arguments.format))
    return 0
