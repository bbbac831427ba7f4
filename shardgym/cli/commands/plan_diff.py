"""Compare two plans for the same task: devices side by side, tables that moved, tables that are cut differently."""

from __future__ import annotations

from argparse import Namespace

from shardgym.cli.inputs import PLAN_HELP, TASK_HELP, add_device, open_cost, read_plan, read_task
from shardgym.cli.named import NOTATION
from shardgym.cli.notes import notes
from shardgym.cli.output import is_ascii_only, print_json, width
from shardgym.cli.parser import Parser
from shardgym.rendering import render_diff
from shardgym.rendering.plan_diff import LISTED, changes


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    parser.add_argument("before", metavar="A", help=PLAN_HELP)
    parser.add_argument("after", metavar="B", help="the other plan, likewise")
    parser.add_argument("--cost", metavar="NAME", help=f"score both plans with this cost model, {NOTATION}, in one run")
    parser.add_argument("--all", action="store_true", help=f"list every table that differs, not {LISTED} at most")
    add_device(parser)


def run(arguments: Namespace) -> int:
    """Draw the difference."""
    task = read_task(arguments.task)
    before, after = read_plan(arguments.before, task), read_plan(arguments.after, task)
    costs = None
    if arguments.cost is not None:
        with open_cost(arguments.cost, arguments.device) as model:
            first, second = model.evaluate(task, [before, after])
            costs = (first, second)
    if arguments.json:
        found = [
            {"table": c.table, "moved": c.is_move, "before": [s.to_dict() for s in c.before],
             "after": [s.to_dict() for s in c.after]}
            for c in changes(task, before, after)
        ]  # fmt: skip
        print_json({"changes": found, "costs": None if costs is None else [c.to_dict() for c in costs]})
    else:
        listed = None if arguments.all else LISTED
        page = render_diff(task, before, after, costs, width=width(), ascii_only=is_ascii_only(), listed=listed)
        print(page, *([] if costs is None else notes(list(zip("AB", costs, strict=True)))), sep="\n")
    return 0
