"""Two plans for one task: devices side by side, and which tables moved or are cut differently."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tabulate import tabulate

from shardgym.costs.plan_cost import PlanCost
from shardgym.plan import Shard, ShardingPlan
from shardgym.rendering.bars import mebibytes
from shardgym.task import ShardingTask

#: Tables that a diff lists if nothing else is asked for.
LISTED = 30


@dataclass(frozen=True)
class TableChange:
    """A table that two plans treat differently.

    Attributes:
        table: its name.
        before: its shards in the first plan.
        after: its shards in the second plan.
    """

    table: str
    before: tuple[Shard, ...]
    after: tuple[Shard, ...]

    @property
    def is_move(self) -> bool:
        """Whether it is cut as before and only devices differ."""
        return [(s.rows, s.columns) for s in self.before] == [(s.rows, s.columns) for s in self.after]


def changes(task: ShardingTask, before: ShardingPlan, after: ShardingPlan) -> list[TableChange]:
    """Return the tables whose shards differ, in the task's order."""
    found = []
    for table in task.tables:
        old, new = (tuple(s for s in plan.shards if s.table == table.name) for plan in (before, after))
        if old != new:
            found.append(TableChange(table.name, old, new))
    return found


def render_diff(
    task: ShardingTask, before: ShardingPlan, after: ShardingPlan,
    costs: tuple[PlanCost, PlanCost] | None = None, *, width: int = 100, ascii_only: bool = False,
    listed: int | None = LISTED,
) -> str:  # fmt: skip
    """Draw what differs between two plans for `task`, with their costs where known.

    Args:
        task: the task.
        before: a plan for it, called A.
        after: another, called B.
        costs: of both.
        width: columns of the terminal.
        ascii_only: write arrows with characters that every terminal has.
        listed: tables that are listed at most; None for all.
    """
    found = changes(task, before, after)
    moved = sum(change.is_move for change in found)
    heading = (
        f"task {task.name or task.digest[:12]}: plan {before.digest[:12]} (A), plan {after.digest[:12]} (B); "
        f"{moved} tables moved, {len(found) - moved} cut differently, {task.num_tables - len(found)} the same\n"
    )
    parts = [heading, _devices(task, before, after, costs)]
    if costs is not None:
        parts += ["", _verdict(costs)]
    arrow = "->" if ascii_only else "→"
    lines = [_line(change, arrow) for change in found[:listed]]
    if len(found) > len(lines):
        more = len(found) - len(lines)
        lines.append(f"... and {more} more table{'s' * (more > 1)}; --all lists them")
    parts += ["", *(textwrap.fill(line, max(width, 40), subsequent_indent="    ") for line in lines)]
    return "\n".join(parts).rstrip()


def _devices(
    task: ShardingTask, before: ShardingPlan, after: ShardingPlan, costs: tuple[PlanCost, PlanCost] | None
) -> str:
    old, new = before.bytes_per_device(task), after.bytes_per_device(task)
    headers = ["device", "shards A", "shards B", "memory A", "memory B"]
    rows = [
        [str(d), str(len(before.on(d))), str(len(after.on(d))), mebibytes(old[d]), mebibytes(new[d])]
        for d in range(task.num_devices)
    ]
    if costs is not None:
        headers += ["ms A", "ms B", "change"]
        for d, row in enumerate(rows):
            a, b = (float(cost.device_ms[d]) for cost in costs)
            row += [f"{a:.3f}", f"{b:.3f}", _percent(a, b)]
    return tabulate(rows, headers, "simple", colalign=["right"] * len(headers), disable_numparse=True)


def _percent(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if 0 < before < float("inf") and after < float("inf") else "-"


def _verdict(costs: tuple[PlanCost, PlanCost]) -> str:
    named = " ".join(
        f"{label}: {cost.total_ms:.3f} ms, slowest device {cost.slowest_device}." if cost.feasible
        else f"{label} has no cost: {cost.reason}."
        for label, cost in zip("AB", costs, strict=True)
    )  # fmt: skip
    change = _percent(costs[0].total_ms, costs[1].total_ms)
    return f"{named} B against A: {change}. Cost: {costs[0].cost} on {costs[0].hardware}."


def _line(change: TableChange, arrow: str) -> str:
    if change.is_move:
        old, new = (", ".join(str(s.device) for s in shards) for shards in (change.before, change.after))
        return f"moved '{change.table}': device {old} {arrow} {new}"
    return f"cut   '{change.table}': {_cut(change.before)} {arrow} {_cut(change.after)}"


def _cut(shards: tuple[Shard, ...]) -> str:
    if not shards:
        return "nowhere"
    return " + ".join(
        f"rows {s.rows[0]}..{s.rows[1] - 1} columns {s.columns[0]}..{s.columns[1] - 1} on {s.device}" for s in shards
    )
