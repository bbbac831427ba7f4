"""Two plans for one task: devices side by side, and which tables moved or are cut differently."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from tabulate import tabulate

from shardgym.costs.base import PlanCost
from shardgym.plan import Shard, ShardingPlan, format_area
from shardgym.task import ShardingTask, format_bytes

#: Tables that a diff lists unless it is told otherwise.
MAX_LISTED = 30


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


def table_changes(task: ShardingTask, before: ShardingPlan, after: ShardingPlan) -> list[TableChange]:
    """Return the tables whose shards differ, in the task's order."""
    changes = []
    for table in task.tables:
        old, new = (tuple(s for s in plan.shards if s.table == table.name) for plan in (before, after))
        if old != new:
            changes.append(TableChange(table.name, old, new))
    return changes


def render_diff(
    task: ShardingTask,
    before: ShardingPlan,
    after: ShardingPlan,
    costs: tuple[PlanCost, PlanCost] | None = None,
    *,
    width: int,
    ascii_only: bool = False,
    max_listed: int | None = MAX_LISTED,
) -> str:
    """Draw what differs between two plans for `task`, called A and B, with their costs where known.

    For a terminal of `width` columns; with `ascii_only`, of characters that every terminal has. At most `max_listed`
    tables are listed, all when None.
    """
    changes = table_changes(task, before, after)
    moved = sum(change.is_move for change in changes)
    lines = [
        f"task {task.name or task.digest[:12]}: plan {before.digest[:12]} (A), plan {after.digest[:12]} (B); "
        f"{moved} tables moved, {len(changes) - moved} cut differently, {task.num_tables - len(changes)} the same",
        "",
        _device_table(task, before, after, costs),
        "",
    ]
    if costs is not None:
        verdict = " ".join(
            f"{label}: {cost.total_ms:.3f} ms, slowest device {cost.slowest_device}."
            if cost.feasible
            else f"{label} has no cost: {cost.reason}."
            for label, cost in zip("AB", costs, strict=True)
        )
        change = _relative_change(costs[0].total_ms, costs[1].total_ms)
        lines += [
            f"{verdict} B against A: {change}. Cost: {costs[0].cost} on {costs[0].hardware}, {costs[0].origin}.",
            "",
        ]
    arrow = "->" if ascii_only else "→"
    listed = [_describe_change(change, arrow) for change in changes[:max_listed]]
    more = len(changes) - len(listed)
    if more:
        listed.append(f"... and {more} more table{'s' * (more > 1)}; --all lists them")
    lines += [textwrap.fill(line, max(width, 40), subsequent_indent="    ") for line in listed]
    return "\n".join(lines).rstrip()


def _device_table(
    task: ShardingTask, before: ShardingPlan, after: ShardingPlan, costs: tuple[PlanCost, PlanCost] | None
) -> str:
    old = before.bytes_per_device(task)
    new = after.bytes_per_device(task)
    headers = ["device", "shards A", "shards B", "memory A", "memory B"]
    rows = [
        [str(d), str(len(before.on(d))), str(len(after.on(d))), format_bytes(old[d]), format_bytes(new[d])]
        for d in range(task.num_devices)
    ]
    if costs is not None:
        headers += ["ms A", "ms B", "change"]
        for d, row in enumerate(rows):
            a, b = (float(cost.device_ms[d]) for cost in costs)
            row += [f"{a:.3f}", f"{b:.3f}", _relative_change(a, b)]
    return tabulate(rows, headers, "simple", colalign=["right"] * len(headers), disable_numparse=True)


def _relative_change(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if 0 < before < float("inf") and after < float("inf") else "-"


def _describe_change(change: TableChange, arrow: str) -> str:
    if change.is_move:
        old, new = (", ".join(str(s.device) for s in shards) for shards in (change.before, change.after))
        return f"moved '{change.table}': device {old} {arrow} {new}"
    old, new = (
        " + ".join(f"{format_area(s.rows, s.columns)} on {s.device}" for s in shards) or "nowhere"
        for shards in (change.before, change.after)
    )
    return f"cut   '{change.table}': {old} {arrow} {new}"
