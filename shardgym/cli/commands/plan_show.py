"""Draw a plan: devices by memory and, with --cost, by time; the worst device and the tables responsible for it.

With --cost, "held up by" names the device that the others wait for or that exchanges longest, and whether its compute
or the columns that it sends set it apart. Exit code 1 when the plan is infeasible; its problems are listed.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from shardgym.cli.inputs import PLAN_HELP, TASK_HELP, add_device, open_cost, read_plan, read_task
from shardgym.cli.named import NOTATION
from shardgym.cli.notes import notes
from shardgym.cli.output import check_free, count, is_ascii_only, print_json, width, write_result
from shardgym.cli.parser import Parser
from shardgym.cli.plan_csv import csv_of_plan
from shardgym.costs.plan_cost import PlanCost
from shardgym.plan import ShardingPlan, plan_problems
from shardgym.rendering import render_plan, render_shards
from shardgym.rendering.load import device_loads
from shardgym.task import ShardingTask


def configure(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("task", metavar="TASK", help=TASK_HELP)
    parser.add_argument("plan", metavar="PLAN", help=PLAN_HELP)
    parser.add_argument("--cost", metavar="NAME", help=f"score the plan with this cost model, {NOTATION}")
    add_device(parser)
    parser.add_argument("--shards", action="store_true", help="list every shard, too")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write every shard as CSV")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(arguments: Namespace) -> int:
    """Draw the plan."""
    if arguments.csv is not None:
        check_free(arguments.csv, arguments.force)
    task = read_task(arguments.task)
    plan, cost = read_plan(arguments.plan, task), None
    if arguments.cost is not None:
        with open_cost(arguments.cost, arguments.device) as model:
            cost = model.evaluate(task, [plan])[0]
    problems = list(plan_problems(task, plan.shards))
    if arguments.csv is not None:
        write_result(arguments.csv, csv_of_plan(task, plan))
    if arguments.json:
        print_json(_data(task, plan, cost, problems) | (_shards(task, plan) if arguments.shards else {}))
    else:
        page = render_plan(task, plan, cost, width=width(), ascii_only=is_ascii_only())
        listed = [render_shards(task, plan), ""] if arguments.shards else []
        print(*listed, page, *([] if cost is None else notes([("", cost)])), *_written(arguments.csv, plan), sep="\n")
    return 1 if problems or (cost is not None and not cost.feasible) else 0


def _written(path: Path | None, plan: ShardingPlan) -> list[str]:
    return [] if path is None else [f"csv: {count(len(plan.shards), 'shard')} written to {path}"]


def _data(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None, problems: list[str]) -> dict[str, object]:
    used, loads = plan.bytes_per_device(task), device_loads(task, plan)
    return {
        "task": task.digest, "plan": plan.digest, "problems": problems,
        "cost": None if cost is None else cost.to_dict(),
        "devices": [
            {"device": d, "shards": len(plan.on(d)), "used_bytes": used[d],
             "memory_bytes": task.topology.memory_bytes[d], "values_per_sample": loads[d]}
            for d in range(task.num_devices)
        ],
    }  # fmt: skip


def _shards(task: ShardingTask, plan: ShardingPlan) -> dict[str, object]:
    return {"shards": [shard.to_dict() | {"bytes": shard.bytes(task)} for shard in plan.shards]}
