"""Plans as text: one plan with its bottleneck, or two, side by side."""

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tabulate import tabulate

from shardgym.costs.comparison import compare
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.rendering.bottleneck import describe_bottleneck, device_loads
from shardgym.costs.shard_keys import output_widths
from shardgym.plans.feasibility import format_area, plan_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard, format_devices
from shardgym.tasks.task import ShardingTask, format_bytes

#: How phases are called, and their marks in bars.
_PHASES = {
    "ids": ("ids", "i"),
    "forward_compute": ("fwd comp", "F"),
    "forward_comm": ("fwd comm", "f"),
    "backward_comm": ("bwd comm", "b"),
    "backward_compute": ("bwd comp", "B"),
}
#: Tables that a diff lists, and pieces of a table on each side.
MAX_LISTED = 30
MAX_PIECES = 4

#: Width of bars, and whether phases and counts are shown: the first that fits the terminal is used.
_DETAILS = (
    *((width, True, True) for width in (24, 16, 10, 6, 0)),
    *((width, False, True) for width in (24, 16, 10, 6, 0)),
    *((width, False, False) for width in (10, 6, 0)),
)


def render_plan(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None = None, *, width: int) -> str:
    """Draw a plan, feasible or not, for a terminal of `width` columns; problems are listed.

    Its cost is drawn where it is known; one line says so where the cost model gave none.
    """
    times = cost if cost is not None and cost.feasible else None
    for detail in _DETAILS:
        table = _device_table(task, plan, times, *detail)
        has_bars = detail[0] > 0
        if max(map(len, table.splitlines())) <= width:
            break
    lines = [*_host_lines(task, plan), *describe_bottleneck(task, plan, times)]
    if detail[2]:
        lines.append("sent/sample, values/sample: what a device puts out and looks up for a sample of the batch")
    if times is not None:
        phases = ", ".join(f"{_PHASES[phase][1]} {_PHASES[phase][0]}" for phase in _phases_of(times))
        noise = f", standard error {100 * times.noise:.1f} %" if times.noise else ""
        legend = f"; time bars: {phases}" if has_bars else ""
        lines.append(f"cost: {times.cost} {times.version} on {times.hardware}, {times.origin}{noise}{legend}")
    elif cost is not None:
        lines.append(f"cost: none from {cost.cost}, because of the problems below")
    problems = plan_problems(task, plan.shards, plan.group_size)
    if not problems and cost is not None and cost.reason is not None:
        problems = [cost.reason]
    lines += [f"problem: {problem}" for problem in problems]
    title, *remarks = _name_parts(task)
    heading = (
        f"plan {plan.digest[:12]} for task {title}: {task.num_tables} tables in "
        f"{len(plan.shards)} shards on {task.num_devices} devices, batch {task.batch_size}, {task.precision}, "
        f"{task.optimizer}"
    )
    kinds = [plan.kind_of(table.name, task) for table in task.tables if plan.of_table(table.name)]
    if set(kinds) - {"table_wise"}:
        in_groups = "" if plan.group_size is None else f", in groups of {plan.group_size} devices"
        heading += f"; tables: {_counts(kinds)}{in_groups}"
    if plan.leaves_devices:
        heading += f"; shards: {_counts(shard.compute_kernel for shard in plan.shards)}"
    above, below = ("\n".join(_wrapped(line, width) for line in block) for block in ([heading, *remarks], lines))
    return f"{above}\n\n{table}\n\n{below}"


def _name_parts(task: ShardingTask) -> list[str]:
    """Return the task's name, or its digest without one, and what follows it after semicolons, as in imported tasks."""
    return (task.name or task.digest[:12]).split("; ")


def _wrapped(text: str, width: int, indent: str = "  ") -> str:
    return textwrap.fill(text, max(width, 40), subsequent_indent=indent)


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(names).most_common())


def _host_lines(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Return what is in the memory of each host, where a plan uses it."""
    limit = task.topology.host_memory_bytes
    hosts = plan.bytes_per_host(task)
    return [
        f"host {host} holds {format_bytes(used)} in its memory of {format_bytes(limit)}"
        + (f" ({100 * used / limit:.1f} %)" if limit else "")
        for host, used in enumerate(hosts if any(hosts) else [])
    ]


def _device_table(
    task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None, bar_width: int, has_phases: bool, has_counts: bool
) -> str:
    loads = device_loads(task, plan)
    # A device sends to its group alone.
    of_group = (plan.group_size or task.num_devices) / task.num_devices
    sent = [of_group * width for width in output_widths(task, plan)]
    rows: list[dict[str, str]] = []
    for device, held in enumerate(plan.memory_per_device(task)):
        share = held.total / task.topology.memory_bytes[device]
        cells = {"device": str(device), "shards": str(len(plan.on(device)))}
        if has_counts:
            cells |= {"sent/sample": f"{sent[device]:.0f}", "values/sample": f"{loads[device]:.0f}"}
        if task.step_memory is not None:
            parts = {"weights": held.weights, "optimizer": held.optimizer}
            parts |= {"in flight": held.in_flight, "reserved": held.reserved}
            cells |= {name: format_bytes(size) for name, size in parts.items()}
        cells |= {"memory": format_bytes(held.total), "used": f"{100 * share:.1f} %"}
        if bar_width:
            cells["bar"] = bar(share, bar_width)
        if cost is not None:
            times = {phase: float(ms[device]) for phase, ms in cost.phases.items() if phase != "ids" or ms.any()}
            if has_phases:
                cells |= {_PHASES[phase][0]: f"{ms:.3f}" for phase, ms in times.items()}
            cells["total ms"] = f"{cost.device_ms[device]:.3f}"
            if bar_width:
                # A mark for each phase, as long as the device's share of the step.
                text = ""
                edge = 0.0
                for phase in _phases_of(cost):
                    edge += float(cost.phases[phase][device]) / (cost.total_ms or 1.0)
                    text += _PHASES[phase][1] * (round(min(edge, 1.0) * bar_width) - len(text))
                cells["time"] = text.ljust(bar_width)
        rows.append(cells)
    align = ["left" if header in ("bar", "time") else "right" for header in rows[0]]
    return tabulate(rows, "keys", "simple", colalign=align, disable_numparse=True)


def bar(share: float, width: int) -> str:
    """Return a bar of `width` characters of which `share` is filled; "" for no width."""
    return ("#" * round(min(max(share, 0.0), 1.0) * width)).ljust(width, ".")


def _phases_of(cost: PlanCost) -> list[str]:
    """Return the phases that are part of a device's time, in their order, without hidden ids."""
    has_ids = bool(cost.phases["ids"].any()) and not cost.ids_hidden
    return [phase for phase in cost.phases if phase != "ids" or has_ids]


class TableChange(NamedTuple):
    """A table that two plans treat differently: its shards in the first and in the second plan."""

    table: str
    before: tuple[Shard, ...]
    after: tuple[Shard, ...]

    @property
    def is_move(self) -> bool:
        """Whether it is cut and looked up as before, and only devices differ."""
        before, after = ([dataclasses.replace(s, devices=(0,)) for s in shards] for shards in (self.before, self.after))
        return before == after


def table_changes(task: ShardingTask, before: ShardingPlan, after: ShardingPlan) -> list[TableChange]:
    """Return the tables whose shards differ, in the task's order."""
    both = (TableChange(t.name, before.of_table(t.name), after.of_table(t.name)) for t in task.tables)
    return [change for change in both if change.before != change.after]


def render_diff(
    task: ShardingTask,
    before: ShardingPlan,
    after: ShardingPlan,
    costs: tuple[PlanCost, PlanCost] | None = None,
    *,
    width: int,
) -> str:
    """Draw what differs between two plans for `task`, called A and B, with their costs where known.

    For a terminal of `width` columns; at most `MAX_LISTED` tables are listed, with the first `MAX_PIECES` pieces.
    """
    changes = table_changes(task, before, after)
    moved = sum(change.is_move for change in changes)
    lines = [
        f"task {_name_parts(task)[0]}: plan {before.digest[:12]} (A), plan {after.digest[:12]} (B); "
        f"{moved} tables moved, {len(changes) - moved} cut differently, {task.num_tables - len(changes)} the same",
        "",
        _both_device_tables(task, before, after, costs),
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
        lines.append(
            f"{verdict} B against A: {change}. Cost: {costs[0].cost} on {costs[0].hardware}, {costs[0].origin}."
        )
        comparison = compare(task, (before, after), costs)
        lines += [] if comparison is None else [_wrapped(comparison.sentence(), width)]
        lines.append("")
    lines += [_wrapped(_describe_change(change), width, "    ") for change in changes[:MAX_LISTED]]
    if len(changes) > MAX_LISTED:
        lines.append(f"... and {len(changes) - MAX_LISTED} more; --json lists them")
    return "\n".join(lines).rstrip()


def _both_device_tables(
    task: ShardingTask, before: ShardingPlan, after: ShardingPlan, costs: tuple[PlanCost, PlanCost] | None
) -> str:
    old, new = ([held.total for held in plan.memory_per_device(task)] for plan in (before, after))
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


def _describe_change(change: TableChange) -> str:
    sides = (change.before, change.after)
    if change.is_move:
        old, new = (_first_pieces([_holders(s) for s in shards], " + ") for shards in sides)
        return f"moved '{change.table}': {old} -> {new}"
    old, new = (
        _first_pieces([f"{format_area(s.rows, s.columns)} on {_holders(s)}" for s in shards], " + ") or "nowhere"
        for shards in sides
    )
    return f"cut   '{change.table}': {old} -> {new}"


def _first_pieces(pieces: Sequence[str], joint: str) -> str:
    more = len(pieces) - MAX_PIECES
    return joint.join(pieces[:MAX_PIECES]) + (f" and {more} more" if more > 0 else "")


def _holders(shard: Shard) -> str:
    """Return "device 3" or "devices 0, 4"; and the kernel, where rows are not in the memory of devices."""
    if shard.memory == "device":
        return format_devices(shard.devices)
    cache = f" {shard.cache_load_factor:g}" if shard.cache_load_factor else ""
    return f"{format_devices(shard.devices)} ({shard.compute_kernel}{cache})"
