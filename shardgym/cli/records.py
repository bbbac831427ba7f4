"""verify: what can be done with the records of a run afterwards."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Iterable

import click

from shardgym.cli.common import (
    Command,
    is_ascii_only,
    json_option,
    positive_number,
    print_json,
    say,
)
from shardgym.evaluation import VerifyReport
from shardgym.evaluation import verify as verify_records
from shardgym.evaluation.result import record_files
from shardgym.evaluation.verify import RULE, RecordCheck
from shardgym.evaluation.verify.check import FLAG
from shardgym.evaluation.verify.solve_again import TIMEOUT_S
from shardgym.progress import log_to_stderr


@click.command("verify", cls=Command, epilog=RULE)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--trust", multiple=True, metavar="MODULE:CLASS", help="Your judge or solver that records may name; repeatable."
)
@click.option("--solve", is_flag=True, help="Solve every task again, too, and compare plans.")
@click.option(
    "--timeout", type=positive_number, default=TIMEOUT_S, metavar="SECONDS",
    help="With --solve: a solver that takes longer for a plan is stopped, and not checked.",
)  # fmt: skip
@click.option(
    "--minutes", type=positive_number, metavar="X",
    help="For all of it: what is not verified by then is named, and the exit code is 1.",
)  # fmt: skip
@click.option(
    FLAG, "beyond_limits", is_flag=True,
    help="Measure as much as records ask for: their settings of a judge that measures, and their tasks, have limits.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="The verdict of each path, and what is wrong; no progress.")
@json_option
def verify(
    paths: tuple[str, ...],
    trust: tuple[str, ...],
    solve: bool,
    timeout: float,
    minutes: float | None,
    beyond_limits: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Score stored plans again and compare with their records.

    PATH is a folder of runs, or a records file.

    Of every record the line is parsed, the plan checked against its task, and its cost computed or measured again with
    the record's judge and settings. Prints one line per record and a footer. Records of other hardware or of another
    version of the judge are skipped and counted; records without a cost and without a plan are failures, not checked.
    With --solve every solver solves its tasks again with the oracle and seed of the record, and must make the same
    plan, or fail in the same way, which checks failures too; not with a time limit or a measured oracle. With --quiet
    every path is verified by itself and gets one line, its verdict, and lines for what fails or is missing.

    Files may not ask for anything: records whose judge measures with more rounds, steps, processes or seconds than any
    board of ours, or whose task is larger than is measured in minutes, are skipped, and the line says what exceeds
    which limit.

    Exit code 1 when any record disagrees, is damaged or is not of the run in run.json, when a solver's measured costs
    are off on average, when of a file nothing could be verified, or when the time is over before all is done. The
    footer says "partly verified", with exit code 0, when records were skipped, when there are failures that were not
    checked, or when records of the run or run.json are missing.
    """
    end = math.inf if minutes is None else time.monotonic() + 60 * minutes
    check: Callable[..., VerifyReport] = functools.partial(
        verify_records, trust=trust, solve=solve, timeout_s=timeout, obey_limits=not beyond_limits
    )
    if quiet and not as_json:
        record_files(paths)  # a path that does not exist is told before time is spent on the others
        reports = [_verify_quietly(path, check, end) for path in dict.fromkeys(paths)]
    else:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
            report = check(paths, budget_s=_seconds_until(end), progress=not as_json)
        reports = [report]
        if as_json:
            print_json(report.to_dict())
        else:
            _print_rows(report.rows)
            print(report.footer())
    for name in sorted(set.intersection(*(set(report.unused_trust) for report in reports))):
        say(f"shardgym: warning: --trust {name}: no record names it")
    return 0 if all(report.ok for report in reports) else 1


def _seconds_until(end: float) -> float | None:
    return None if math.isinf(end) else max(0.0, end - time.monotonic())


def _verify_quietly(path: str, check: Callable[..., VerifyReport], end: float) -> VerifyReport:
    """Verify one path, and print its verdict and what is wrong."""
    with contextlib.redirect_stdout(sys.stderr):
        report = check(path, budget_s=_seconds_until(end))
    _print_rows(row for row in report.rows if row.status in ("mismatch", "unreadable"))
    print(f"{path}: {report.footer()}", flush=True)
    return report


def _print_rows(rows: Iterable[RecordCheck]) -> None:
    for row in rows:
        print(row.line(is_ascii_only()))
