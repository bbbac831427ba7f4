"""Check that a solver keeps the rules of the interface.

Valid plan, memory respected, same seed same plan, task not changed, time limit kept, tasks without a plan reported as
such. Exit code 1 when any rule is broken.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from argparse import Namespace

from shardgym.cli.named import NOTATION, parse_named
from shardgym.cli.output import print_json
from shardgym.cli.parser import Parser
from shardgym.progress import remarks


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("solver", metavar="NAME", help=f"{NOTATION}, registered name or module:Class")


def run(arguments: Namespace) -> int:
    """Check and print."""
    from shardgym.conformance import check_solver

    name, settings = parse_named(arguments.solver)
    with contextlib.redirect_stdout(sys.stderr), remarks(shown=not arguments.json):
        report = dataclasses.replace(check_solver(name, settings=settings), solver=arguments.solver)
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report.table())
    return 0 if report.ok else 1
