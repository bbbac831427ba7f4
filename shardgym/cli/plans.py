"""measure, plan show, plan diff: what plans for a task cost, and what is in them."""

from __future__ import annotations

from collections.abc import Sequence

import click
from tabulate import tabulate

from shardgym.cli.common import (
    NOTATION,
    TASK_AND_PLAN,
    Command,
    OneOf,
    json_option,
    open_cost,
    print_json,
    print_notes,
    read_task,
    terminal_width,
)
from shardgym.cli.plan_files import plan_to_csv, read_plan
from shardgym.costs.comparison import TIE_ERRORS, compare, difference_noise
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.rendering import render_diff, render_plan
from shardgym.costs.rendering.bottleneck import device_loads
from shardgym.costs.rendering.plan_view import table_changes
from shardgym.plans.feasibility import plan_problems
from shardgym.plans.migration import migration
from shardgym.plans.plan import ShardingPlan

BEST = "best"
TIED = "tied"

#: The rule of ties, to stand under a table that has some.
TIE_RULE = (
    f"{TIED}: the difference from the lowest total is at most {TIE_ERRORS:g} standard errors of that difference, "
    "so no plan is best."
)


@click.command("measure", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_paths", nargs=-1, required=True, metavar="PLAN...")
@click.option("--cost", "cost_name", default="fbgemm", metavar="NAME", help=f"Cost model, {NOTATION}.")
@click.option("--device", type=OneOf("device", ["cpu", "cuda"]), help="The setting device= of the cost.")
@json_option
def measure(task_name: str, plan_paths: tuple[str, ...], cost_name: str, device: str | None, as_json: bool) -> int:
    """Measure what plans for one task cost.

    Several plans are measured interleaved in one run, so that they can be compared; a table of all ends the output.
    The lowest total is marked "best" only if it differs from every other by more than 2 standard errors of the
    difference; else it and those within are marked "tied". Communication is measured where the machine has as many
    devices as the task, else modelled, and the output says so. Exit code 1 when a plan is infeasible or could not be
    measured.
    """
    task = read_task(task_name)
    plans = [read_plan(path, task) for path in plan_paths]
    with open_cost(cost_name if device is None else f"{cost_name},device={device}") as model:
        costs = model.evaluate(task, plans)
    if as_json:
        print_json([
            {
                "file": path,
                "plan": plan.digest,
                "total_ms": cost.total_ms if cost.feasible else None,
                "mark": mark,
                "cost": cost.to_dict(),
            }
            for path, plan, cost, mark in zip(plan_paths, plans, costs, tie_marks(costs), strict=True)
        ])  # fmt: skip
    else:
        for path, plan, cost in zip(plan_paths, plans, costs, strict=True):
            page = render_plan(task, plan, cost, width=terminal_width())
            print(f"{path}:\n{page}\n")
        if len(costs) > 1:
            _print_comparison(plan_paths, plans, costs)
        print_notes(zip(plan_paths, costs, strict=True))
    return 0 if all(cost.feasible for cost in costs) else 1


def _print_comparison(paths: Sequence[str], plans: Sequence[ShardingPlan], costs: Sequence[PlanCost]) -> None:
    found = tie_marks(costs)
    rows = []
    first_path: dict[str, str] = {}
    for path, plan, cost, mark in zip(paths, plans, costs, found, strict=True):
        # Times of equal plans differ by noise alone, so a reader must know that they are equal.
        same = f"same plan as {first_path[plan.digest]}" if plan.digest in first_path else ""
        first_path.setdefault(plan.digest, path)
        if cost.feasible:
            remark = ", ".join(filter(None, [mark, same]))
            rows.append([path, f"{cost.total_ms:.3f}", f"{cost.noise * cost.total_ms:.3f}", remark])
        else:
            rows.append([path, "-", "-", "no cost"])
    headers = ["file", "total ms", "+- std error", ""]
    print(tabulate(rows, headers, "simple", colalign=["left", "right", "right", "left"], disable_numparse=True))
    if TIED in found:
        print(TIE_RULE)


def is_tie(first: PlanCost, second: PlanCost) -> bool:
    """Say whether the difference of two feasible costs is within the noise of the two.

    Their errors are taken as independent. Equal costs tie, whatever their noise.
    """
    return abs(first.total_ms - second.total_ms) <= difference_noise(first, second)


def tie_marks(costs: Sequence[PlanCost]) -> list[str | None]:
    """Return a mark per cost.

    Returns:
        "best" for the lowest if no other ties with it; else "tied" for the lowest and for all that tie with it; None
        for the rest, for plans without a cost, and for a plan that is compared with none.
    """
    feasible = [cost for cost in costs if cost.feasible]
    if not feasible or len(costs) == 1:
        return [None] * len(costs)
    lowest = min(feasible, key=lambda cost: cost.total_ms)
    close = [cost.feasible and is_tie(cost, lowest) for cost in costs]
    mark = TIED if sum(close) > 1 else BEST
    return [mark if is_close else None for is_close in close]


@click.command("show", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_path", metavar="PLAN")
@click.option("--cost", "cost_name", metavar="NAME", help=f"Score the plan with this cost model, {NOTATION}.")
@click.option("--csv", "as_csv", is_flag=True, help="Print every shard as CSV, and nothing else.")
@json_option
def show(
    task_name: str,
    plan_path: str,
    cost_name: str | None,
    as_csv: bool,
    as_json: bool,
) -> int:
    """Draw a plan: memory, time and the worst device.

    Time is drawn with --cost, and then "held up by" names the device that the others wait for or that exchanges
    longest, and whether its compute or the columns that it sends set it apart. Exit code 1 when the plan is
    infeasible; its problems are listed.
    """
    if as_csv and (as_json or cost_name is not None):
        raise click.UsageError("--csv goes without --cost and --json: it prints shards alone")
    task = read_task(task_name)
    plan = read_plan(plan_path, task)
    problems = plan_problems(task, plan.shards, plan.group_size)
    if as_csv:
        print(plan_to_csv(task, plan), end="")
        return 1 if problems else 0
    cost = None
    if cost_name is not None:
        with open_cost(cost_name) as model:
            cost = model.evaluate(task, [plan])[0]
    if as_json:
        memory = plan.memory_per_device(task)
        loads = device_loads(task, plan)
        page = {
            "task": task.digest,
            "plan": plan.digest,
            "problems": problems,
            "cost": None if cost is None else cost.to_dict(),
            "devices": [
                {
                    "device": d,
                    "shards": len(plan.on(d)),
                    "used_bytes": memory[d].total,
                    "used_for": memory[d]._asdict(),
                    "memory_bytes": task.topology.memory_bytes[d],
                    "values_per_sample": loads[d],
                }
                for d in range(task.num_devices)
            ],
            "group_size": plan.group_size,
            "kinds": {table.name: plan.kind_of(table.name, task) for table in task.tables if plan.of_table(table.name)},
            "shards": [shard.to_dict() | {"bytes": shard.bytes(task)} for shard in plan.shards],
        }
        if plan.uses_host_memory:
            page["hosts"] = [
                {"host": host, "used_bytes": used, "memory_bytes": task.topology.host_memory_bytes}
                for host, used in enumerate(plan.bytes_per_host(task))
            ]
        print_json(page)
    else:
        print(render_plan(task, plan, cost, width=terminal_width()))
        print_notes([] if cost is None else [("", cost)])
    return 1 if problems or (cost is not None and not cost.feasible) else 0


@click.command("diff", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("path_a", metavar="A")
@click.argument("path_b", metavar="B")
@click.option(
    "--cost", "cost_name", metavar="NAME", help=f"Score both plans with this cost model, {NOTATION}, in one run."
)
@json_option
def diff(task_name: str, path_a: str, path_b: str, cost_name: str | None, as_json: bool) -> int:
    """Compare two plans, A and B.

    Devices side by side, tables that moved, tables that are cut differently: the first of them and of their pieces, and
    all with --json; the bytes that move from A to B, and how long that takes. A may be a plan in use, of the same
    tables with other statistics. With --cost, too, whether the difference of the two is above the error that this cost
    has for such plans.
    """
    task = read_task(task_name)
    before = read_plan(path_a, task, same_tables=True)
    after = read_plan(path_b, task, same_tables=True)
    moves = migration(task, before, after)
    costs = None
    if cost_name is not None:
        with open_cost(cost_name) as model:
            first, second = model.evaluate(task, [before, after])
            costs = (first, second)
    if as_json:
        changes = [
            {
                "table": change.table,
                "moved": change.is_move,
                "before": [shard.to_dict() for shard in change.before],
                "after": [shard.to_dict() for shard in change.after],
            }
            for change in table_changes(task, before, after)
        ]
        found = None if costs is None else compare(task, (before, after), costs)
        page = {
            "changes": changes,
            "costs": None if costs is None else [cost.to_dict() for cost in costs],
            "moved_bytes": dict(moves.bytes_by_link),
            "transfer_ms": moves.transfer_ms(task.topology),
        }
        print_json(page | {"comparison": None if found is None else found.to_dict()})
    else:
        print(render_diff(task, before, after, costs, width=terminal_width()))
        print(f"\nfrom A to B: {moves.sentence(task.topology)}")
        print_notes(zip("AB", costs or (), strict=False))
    return 0
