"""Compare a pool with the published statistics of the dlrm_datasets 2021 file, side by side.

Draws the ids of every table, a quarter of a minute or so for the full pool. Exit code 1 when a figure is off.
"""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.output import print_json
from shardgym.cli.parser import Parser, natural
from shardgym.pools import SYNTHETIC, load_pool
from shardgym.pools.synthetic import check_pool
from shardgym.progress import ProgressBar


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("pool", nargs="?", default=SYNTHETIC, metavar="NAME", help="pool or file (%(default)s)")
    parser.add_argument("--seed", type=natural, default=0, help="of the draw (%(default)s)")


def run(arguments: Namespace) -> int:
    """Check and print."""
    tables = load_pool(arguments.pool).tables
    with ProgressBar(shown=not arguments.json, total=len(tables), unit="table", desc=arguments.pool) as bar:

        def advance(done: int, total: int) -> None:
            del total
            bar.update(done - bar.n)

        report = check_pool(tables, seed=arguments.seed, progress=advance)
    if arguments.json:
        print_json(report.to_dict())
    else:
        print(report.table())
        print("ok: every figure is within its tolerance" if report.ok else "OFF: a figure is outside its tolerance")
    return 0 if report.ok else 1
