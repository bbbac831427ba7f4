"""Measure the data set that simulators are trained on: shard sets, and all-to-all exchanges.

Samples for the oracle and the judge are disjoint and come from the train half of the pool, test samples from its test
half. A part is measured twice, so that the noise floor is known. The order is random. Every measurement is appended
to DIR/measurements.jsonl and flushed: killed at any moment, the same command continues, and with higher numbers it
adds samples. At the end compute.parquet and comm.parquet are written; --finish writes them of what is there.

Exit code 1 when a sample could not be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from argparse import Namespace

from shardgym.cli.entry import INTERRUPTED
from shardgym.cli.output import print_json, say
from shardgym.cli.parser import Parser, folder, natural, one_of, positive, positive_number
from shardgym.collection.settings import PRESETS, SETUPS


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--out", required=True, type=folder, metavar="DIR", help="folder of the measurements")
    add("--device", default="cpu", type=one_of("device", SETUPS), help="measure on cpu or cuda (%(default)s)")
    add("--preset", default="survey", type=one_of("preset", PRESETS), help=f"{', '.join(PRESETS)} (%(default)s)")
    add("--compute", type=natural, metavar="N", help="shard sets, without repeats (default: the preset's)")
    add("--comm", type=natural, metavar="N", help="exchanges, without repeats (default: the preset's)")
    add("--workers", type=positive, default=1, metavar="W", help="compute measured at the same time (%(default)s)")
    add("--repeat-share", type=_share, default=0.15, metavar="X", help="share that is measured twice (%(default)s)")
    add("--minutes", type=positive_number, metavar="T", help="begin nothing new after so long")
    add("--seed", type=natural, default=0, help="of all draws (%(default)s)")
    add("--finish", action="store_true", help="only write the Parquet files of what is there")


def run(arguments: Namespace) -> int:
    """Collect and summarise."""
    from shardgym.collection.run import collect, finish

    try:
        with contextlib.redirect_stdout(sys.stderr):
            summary = finish(arguments.out) if arguments.finish else collect(
                arguments.out, device=arguments.device, preset=arguments.preset, compute=arguments.compute,
                comm=arguments.comm, workers=arguments.workers, repeat_share=arguments.repeat_share,
                minutes=arguments.minutes, seed=arguments.seed, progress=not arguments.json,
            )  # fmt: skip
    except KeyboardInterrupt:
        say(f"shardgym: interrupted; the same command continues in {arguments.out}, --finish writes Parquet files")
        return INTERRUPTED
    if arguments.json:
        print_json(summary.to_dict())
    else:
        print("\n".join(summary.lines()))
    return 1 if summary.failed else 0


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"expected a share from 0 to 1, got '{text:.40}'")
    return value
