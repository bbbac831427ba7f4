"""measure, plan show, plan diff: what plans for a task cost, and what is in them."""

from collections.abc import Sequence

import click
from tabulate import tabulate

from shardgym.cli.common import NOTATION, answer, json_option, notes_of, open_cost, width
from shardgym.cli.plan_files import TASK_AND_PLAN, plan_to_csv, read_plan, read_task
from shardgym.costs.comparison import TIE_ERRORS, compare, difference_noise
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.rendering import render_diff, render_plan
from shardgym.costs.rendering.plan_view import table_changes
from shardgym.plans.feasibility import plan_problems
from shardgym.plans.migration import migration

#: The rule of ties, to stand under a table that has some.
TIE_RULE = (
    f"tied: the difference from the lowest total is at most {TIE_ERRORS:g} standard errors of that difference, "
    "so no plan is best."
)


@click.command("measure", epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_paths", nargs=-1, required=True, metavar="PLAN...")
@click.option("--cost", "cost_name", default="fbgemm", metavar="NAME", help=f"The judge, {NOTATION}.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), help="The setting device= of the cost.")
@json_option
def measure(task_name: str, plan_paths: tuple[str, ...], cost_name: str, device: str | None, as_json: bool) -> int:
    """Measure plans for one task.

    Several plans are measured interleaved in one run, so that they can be compared, and a table at the end lists all.
    The lowest total is marked "best" if it differs from every other by more than 2 standard errors of the difference;
    otherwise it and all plans within this margin are marked "tied". The exit code is 1 if a plan is infeasible or could
    not be measured.
    """
    task = read_task(task_name)
    plans = [read_plan(path, task) for path in plan_paths]
    with open_cost(cost_name if device is None else f"{cost_name},device={device}") as judge:
        costs = judge.evaluate(task, plans)
    marks = tie_marks(costs)
    found = list(zip(plan_paths, plans, costs, marks, strict=True))
    page = [
        {
            "file": path,
            "plan": plan.digest,
            "total_ms": cost.total_ms if cost.feasible else None,
            "mark": mark,
            "cost": cost.to_dict(),
        }
        for path, plan, cost, mark in found
    ]
    texts = [f"{path}:\n{render_plan(task, plan, cost, width=width())}\n" for path, plan, cost, _ in found]
    if len(costs) > 1:
        rows = [
            [path, f"{cost.total_ms:.3f}", f"{cost.noise * cost.total_ms:.3f}", mark]
            if cost.feasible
            else [path, "-", "-", "no cost"]
            for path, _, cost, mark in found
        ]
        headers, align = ["file", "total ms", "+- std error", ""], ["left", "right", "right", "left"]
        texts.append(tabulate(rows, headers, "simple", colalign=align, disable_numparse=True))
    if "tied" in marks:
        texts.append(TIE_RULE)
    answer(as_json, page, "\n".join([*texts, *notes_of(zip(plan_paths, costs, strict=True))]))
    return 0 if all(cost.feasible for cost in costs) else 1


def tie_marks(costs: Sequence[PlanCost]) -> list[str | None]:
    """Return "best" for the lowest of several costs if no other ties with it, else "tied" for it and those that do."""
    feasible = [cost for cost in costs if cost.feasible]
    if not feasible or len(costs) == 1:
        return [None] * len(costs)
    lowest = min(feasible, key=lambda cost: cost.total_ms)
    # Errors are taken as independent; equal costs tie, whatever their noise.
    ties = [cost.feasible and cost.total_ms - lowest.total_ms <= difference_noise(cost, lowest) for cost in costs]
    mark = "tied" if sum(ties) > 1 else "best"
    return [mark if tie else None for tie in ties]


@click.command("show", epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_path", metavar="PLAN")
@click.option("--cost", "cost_name", metavar="NAME", help=f"The judge, {NOTATION}: scores the plan.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every shard as CSV, and nothing else.")
@json_option
def show(task_name: str, plan_path: str, cost_name: str | None, as_csv: bool, as_json: bool) -> int:
    """Draw a plan: memory, time and the bottleneck device.

    With --cost the command draws time, too. "bottleneck" then names the device that the others wait for, or whose
    exchange takes longest, and says whether its compute or the values that it sends set it apart. The exit code is 1
    if the plan is infeasible; its problems are listed.
    """
    task = read_task(task_name)
    plan = read_plan(plan_path, task)
    problems = plan_problems(task, plan.shards, plan.group_size)
    if as_csv:
        print(plan_to_csv(task, plan), end="")
        return 1 if problems else 0
    cost = None
    if cost_name is not None:
        with open_cost(cost_name) as judge:
            (cost,) = judge.evaluate(task, [plan])
    devices = [
        {
            "device": d,
            "shards": len(plan.on(d)),
            "used_bytes": memory.total,
            "used_for": memory._asdict(),
            "memory_bytes": task.topology.memory_bytes[d],
        }
        for d, memory in enumerate(plan.memory_per_device(task))
    ]
    page = {
        "task": task.digest,
        "plan": plan.digest,
        "problems": problems,
        "cost": None if cost is None else cost.to_dict(),
        "devices": devices,
        "bytes_per_host": list(plan.bytes_per_host(task)),
        "group_size": plan.group_size,
        "shards": [shard.to_dict() | {"bytes": shard.bytes(task)} for shard in plan.shards],
    }
    notes = [] if cost is None else notes_of([("", cost)])
    answer(as_json, page, "\n".join([render_plan(task, plan, cost, width=width()), *notes]))
    return 1 if problems or (cost is not None and not cost.feasible) else 0


@click.command("diff", epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("path_a", metavar="A")
@click.argument("path_b", metavar="B")
@click.option("--cost", "cost_name", metavar="NAME", help=f"The judge, {NOTATION}: scores both in one run.")
@json_option
def diff(task_name: str, path_a: str, path_b: str, cost_name: str | None, as_json: bool) -> int:
    """Compare two plans, A and B.

    The command shows devices side by side, tables that moved or are cut differently (all of them with --json), the
    bytes that move from A to B, and how long that takes. A may be a plan in use for the same tables with other
    statistics. With --cost, it also says whether the costs differ by more than the judge's error for such plans.
    """
    task = read_task(task_name)
    before, after = (read_plan(path, task, same_tables=True) for path in (path_a, path_b))
    moves = migration(task, before, after)
    costs = comparison = None
    if cost_name is not None:
        with open_cost(cost_name) as judge:
            first, second = judge.evaluate(task, [before, after])
        costs = (first, second)
        comparison = compare(task, (before, after), costs)
    page = {
        "changes": [
            {
                "table": change.table,
                "moved": change.is_move,
                "before": [shard.to_dict() for shard in change.before],
                "after": [shard.to_dict() for shard in change.after],
            }
            for change in table_changes(task, before, after)
        ],
        "costs": None if costs is None else [cost.to_dict() for cost in costs],
        "comparison": None if comparison is None else comparison.to_dict(),
        "moved_bytes": dict(moves.bytes_by_link),
        "transfer_ms": moves.transfer_ms(task.topology),
    }
    texts = [render_diff(task, before, after, costs, width=width()), f"\nfrom A to B: {moves.sentence(task.topology)}"]
    answer(as_json, page, "\n".join([*texts, *notes_of(zip("AB", costs or (), strict=False))]))
    return 0
