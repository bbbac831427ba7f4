"""Print ranked tables from stored records.

Records of different suites, judges or hardware go into different tables. Records of the same from several folders
share one, unless two of the folders hold the same solver, task and seed, or different tasks under one index: none is
preferred then, each of these folders has its own table, which names it and says why.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.output import print_json
from shardgym.cli.parser import Parser, one_of
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
    rankings = [rank(board) for board in load_boards(arguments.paths, arguments.suite)]
    if arguments.json:
        print_json([to_dict(ranking) for ranking in rankings])
    else:
        print(render(rankings, arguments.format))
    return 0
