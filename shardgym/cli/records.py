"""verify: stored plans scored again."""

from __future__ import annotations

import contextlib
import sys

import click

from shardgym.cli.common import Command, json_option, print_json
from shardgym.evaluation import verify as verify_records
from shardgym.evaluation.verify import RULE
from shardgym.progress import log_to_stderr


@click.command("verify", cls=Command, epilog=RULE)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--cost", "costs", multiple=True, metavar="MODULE:CLASS", help="Your judge that records may name; repeatable."
)
@json_option
def verify(paths: tuple[str, ...], costs: tuple[str, ...], as_json: bool) -> int:
    """Score stored plans again and compare with their records.

    PATH is a folder of runs, or a records file.

    Printed are the records that disagree, counts of every file, and the verdict. Only data are read: a judge that does
    not come with shardgym is imported where --cost names it. Exit code 1 when any record disagrees or is damaged, or
    when nothing could be verified.
    """
    with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
        report = verify_records(paths, costs=costs, progress=not as_json)
    if as_json:
        print_json(report.to_dict())
    else:
        print("\n".join(report.lines()))
    return 0 if report.ok else 1
