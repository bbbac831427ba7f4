"""Plans as text: one plan, with what holds up its step and what would make it fit; or two, side by side."""

from __future__ import annotations

import dataclasses
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tabulate import tabulate

from shardgym.costs.comparison import compare
from shardgym.costs.links import pooled_widths
from shardgym.costs.plan_cost import PlanCost
from shardgym.feasibility import format_area, plan_problems
from shardgym.plan import ShardingPlan
from shardgym.rendering.bottleneck import describe_bottleneck, device_loads
from shardgym.shard import COLUMN_UNIT, Shard, format_devices
from shardgym.task import ShardingTask, format_bytes

#: How phases are called, and their marks in bars: drawn, and in ASCII.
_PHASES = {
    "ids": ("ids", "▚", "i"),
    "forward_compute": ("fwd comp", "█", "F"),
    "forward_comm": ("fwd comm", "▓", "f"),
    "backward_comm": ("bwd comm", "▒", "b"),
    "backward_compute": ("bwd comp", "░", "B"),
}
#: Tables that a diff lists unless it is told otherwise.
MAX_LISTED = 30
#: Pieces of a table that a diff lists on each side. Tables in tiers have dozens.
MAX_PIECES = 4

_EIGHTHS = " ▏▎▍▌▋▊▉"


class _Detail(NamedTuple):
    """How much a table of devices shows."""

    bar_width: int
    phases: bool = True
    counts: bool = True


#: From most to least: the first with which the table fits the terminal is taken.
_DETAILS = (
    *(_Detail(width) for width in (24, 16, 10, 6, 0)),
    *(_Detail(width, phases=False) for width in (24, 16, 10, 6, 0)),
    *(_Detail(width, phases=False, counts=False) for width in (10, 6, 0)),
)


def render_plan(
    task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None = None, *, width: int, ascii_only: bool = False
) -> str:
    """Draw a plan, feasible or not, for a terminal of `width` columns; problems are listed.

    Its cost is drawn where it is known; one line says so where the cost model gave none. With `ascii_only`, bars are of
    characters that every terminal has.
    """

    def wrapped(text: str) -> str:
        return textwrap.fill(text, max(width, 40), subsequent_indent="  ")

    times = cost if cost is not None and cost.feasible else None
    heading = (
        f"plan {plan.digest[:12]} for task {task.name or task.digest[:12]}: {task.num_tables} tables in "
        f"{len(plan.shards)} shards on {task.num_devices} devices, batch {task.batch_size}, {task.precision}, "
        f"{task.optimizer}"
    )
    for detail in _DETAILS:
        table = _device_table(task, plan, times, detail, ascii_only)
        if max(map(len, table.splitlines())) <= width:
            break
    kinds = Counter(plan.kind_of(table.name, task) for table in task.tables if plan.of_table(table.name))
    if kinds.keys() - {"table_wise"}:
        in_groups = "" if plan.group_size is None else f", in groups of {plan.group_size} devices"
        counts = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        heading += f"; tables: {counts}{in_groups}"
    if plan.leaves_devices:
        kernels = Counter(shard.compute_kernel for shard in plan.shards)
        counts = ", ".join(f"{count} {kernel}" for kernel, count in kernels.most_common())
        heading += f"; shards: {counts}"
    lines = [
        wrapped(heading),
        "",
        table,
        "",
        *map(wrapped, _host_lines(task, plan)),
        *map(wrapped, describe_bottleneck(task, plan, times)),
    ]
    if times is not None:
        marks = _marks(times, ascii_only)
        phases = ", ".join(f"{mark} {_PHASES[phase][0]}" for phase, mark in marks.items())
        noise = f", standard error {100 * times.noise:.1f} %" if times.noise else ""
        lines.append(wrapped(
            f"cost: {times.cost} {times.version} on {times.hardware}, {times.origin}{noise}; time bars: {phases}"
        ))  # fmt: skip
    elif cost is not None:
        lines.append(f"cost: none by {cost.cost}, because of the following")
    problems = plan_problems(task, plan.shards, plan.group_size)
    if not problems and cost is not None and cost.reason is not None:
        problems = [cost.reason]
    remarks = [f"problem: {problem}" for problem in problems]
    remarks += [f"remedy: {remedy}" for remedy in memory_remedies(task, plan)]
    return "\n".join([*lines, *map(wrapped, remarks)])


def _host_lines(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Return what is in the memory of each host and on each SSD, where a plan uses it."""
    hosts, ssds = plan.bytes_per_host(task), plan.bytes_per_ssd(task)
    held = [
        (f"host {host} holds", "in its memory", size, task.topology.host_memory_bytes)
        for host, size in enumerate(hosts)
    ]
    more = [(f"device {device} holds", "on its SSD", size, task.topology.ssd_bytes) for device, size in enumerate(ssds)]
    return [
        f"{who} {format_bytes(used)} {where} of {format_bytes(limit)}"
        + (f" ({100 * used / limit:.1f} %)" if limit else "")
        for who, where, used, limit in [*(held if any(hosts) else []), *(more if any(ssds) else [])]
    ]


def _device_table(
    task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None, detail: _Detail, ascii_only: bool
) -> str:
    memory = plan.memory_per_device(task)
    loads = device_loads(task, plan)
    columns = pooled_widths(task, plan)
    rows: list[dict[str, str]] = []
    for device, held in enumerate(memory):
        share = held.total / task.topology.memory_bytes[device]
        cells = {"device": str(device), "shards": str(len(plan.on(device)))}
        if detail.counts:
            cells |= {"columns": str(columns[device]), "values/sample": f"{loads[device]:.0f}"}
        if task.step_memory is not None:
            parts = {"weights": held.weights, "optimizer": held.optimizer}
            parts |= {"in flight": held.in_flight, "reserved": held.reserved}
            cells |= {name: format_bytes(size) for name, size in parts.items()}
        cells |= {"memory": format_bytes(held.total), "used": f"{100 * share:.1f} %"}
        if detail.bar_width:
            cells["bar"] = bar(share, detail.bar_width, ascii_only)
        if cost is not None:
            times = {phase: float(ms[device]) for phase, ms in cost.phases.items() if phase != "ids" or ms.any()}
            if detail.phases:
                cells |= {_PHASES[phase][0]: f"{ms:.3f}" for phase, ms in times.items()}
            cells["total ms"] = f"{cost.device_ms[device]:.3f}"
            if detail.bar_width:
                longest = cost.total_ms or 1.0
                shares = {mark: times[phase] / longest for phase, mark in _marks(cost, ascii_only).items()}
                cells["time"] = phase_bar(shares, detail.bar_width)
        rows.append(cells)
    align = ["left" if header in ("bar", "time") else "right" for header in rows[0]]
    return tabulate(rows, "keys", "simple", colalign=align, disable_numparse=True)


def bar(share: float, width: int, ascii_only: bool = False) -> str:
    """Return a bar of `width` characters of which `share` is filled; "" for no width."""
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        filled = round(share * width)
        return "#" * filled + "." * (width - filled)
    full, eighths = divmod(round(share * width * 8), 8)
    partial = _EIGHTHS[eighths] if eighths else ""
    return ("█" * full + partial).ljust(width, "·")


def _marks(cost: PlanCost, ascii_only: bool) -> dict[str, str]:
    """Return the marks of the phases that are part of a device's time, in their order; hidden ids are none."""
    has_ids = bool(cost.phases["ids"].any()) and not cost.ids_hidden
    shown = [phase for phase in cost.phases if phase != "ids" or has_ids]
    return {phase: _PHASES[phase][2 if ascii_only else 1] for phase in shown}


def phase_bar(shares: Mapping[str, float], width: int) -> str:
    """Return a bar of `width` characters for a sum of 1, each share in its own character."""
    text = ""
    edge = 0.0
    for mark, share in shares.items():
        edge += share
        text += mark * (round(min(edge, 1.0) * width) - len(text))
    return text.ljust(width)


def memory_remedies(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    """Return one sentence for every device of the task that holds more than it has room for.

    Each device is looked at by itself, with the rest of the plan as it is. The smallest shard is named that fits
    elsewhere and whose move is enough. Else it is the narrowest piece of a shard, cut by columns, that does the same.
    """
    used = plan.bytes_per_device(task)
    room = [limit - size for size, limit in zip(used, task.capacity_bytes, strict=True)]
    roomiest = max(range(task.num_devices), key=lambda device: room[device])
    sentences = []
    for device in range(task.num_devices):
        if room[device] >= 0:
            continue
        shards = [
            shard
            for shard in plan.on(device)
            if task.has_table(shard.table) and len(shard.devices) == 1 and shard.memory == "device"
        ]
        where = f"device {roomiest}, which has {format_bytes(max(room[roomiest], 0))} left"
        whole = [shard for shard in shards if -room[device] <= shard.bytes(task) <= room[roomiest]]
        cuts = [(columns, shard) for shard in shards if (columns := _columns_to_move(task, shard, -room[device]))]
        fitting = [(columns, shard) for columns, shard in cuts if _bytes(task, shard, columns) <= room[roomiest]]
        if whole:
            shard = min(whole, key=lambda shard: shard.bytes(task))
            sentences.append(f"device {device} fits when {_named(task, shard)} moves to {where}")
        elif fitting:
            columns, shard = min(fitting, key=lambda cut: _bytes(task, cut[1], cut[0]))
            sentences.append(
                f"device {device} fits when {_named(task, shard)} is cut, and {columns} of its {shard.num_columns} "
                f"columns ({format_bytes(_bytes(task, shard, columns))}) move to {where}"
            )
        else:
            sentences.append(
                f"device {device} needs more than one move or cut: it holds {format_bytes(-room[device])} too much, "
                f"and no device has room for more than {format_bytes(max(room[roomiest], 0))}"
            )
    return sentences


def _columns_to_move(task: ShardingTask, shard: Shard, excess: int) -> int:
    """Return how many columns of a shard must go at least, so that as many bytes do; 0 if some cannot stay."""
    for columns in range(COLUMN_UNIT, shard.num_columns, COLUMN_UNIT):
        if shard.bytes(task) - _bytes(task, shard, shard.num_columns - columns) >= excess:
            return columns
    return 0


def _bytes(task: ShardingTask, shard: Shard, columns: int) -> int:
    return task.block_bytes(task.table(shard.table), shard.num_rows, columns, first_row=shard.rows[0])


def _named(task: ShardingTask, shard: Shard) -> str:
    whole = shard.num_columns == task.table(shard.table).embedding_dim
    piece = "" if whole else f"columns {shard.columns[0]} to {shard.columns[1] - 1} of "
    return f"{piece}'{shard.table}' ({format_bytes(shard.bytes(task))})"


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
        """Whether it is cut and looked up as before, and only devices differ."""
        before, after = ([dataclasses.replace(s, devices=(0,)) for s in shards] for shards in (self.before, self.after))
        return before == after


def table_changes(task: ShardingTask, before: ShardingPlan, after: ShardingPlan) -> list[TableChange]:
    """Return the tables whose shards differ, in the task's order."""
    changes = []
    for table in task.tables:
        old, new = (plan.of_table(table.name) for plan in (before, after))
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
) -> str:
    """Draw what differs between two plans for `task`, called A and B, with their costs where known.

    For a terminal of `width` columns; with `ascii_only`, of characters that every terminal has. At most
    `MAX_LISTED` tables are listed, with the first `MAX_PIECES` pieces of each.
    """
    changes = table_changes(task, before, after)
    moved = sum(change.is_move for change in changes)
    lines = [
        f"task {task.name or task.digest[:12]}: plan {before.digest[:12]} (A), plan {after.digest[:12]} (B); "
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
        if comparison is not None:
            lines.append(textwrap.fill(comparison.sentence(), max(width, 40), subsequent_indent="  "))
        lines.append("")
    arrow = "->" if ascii_only else "→"
    listed = [_describe_change(change, arrow) for change in changes[:MAX_LISTED]]
    more = len(changes) - len(listed)
    if more:
        listed.append(f"... and {more} more table{'s' * (more > 1)}; --json lists them")
    lines += [textwrap.fill(line, max(width, 40), subsequent_indent="    ") for line in listed]
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


def _describe_change(change: TableChange, arrow: str) -> str:
    if change.is_move:
        if all(len(shard.devices) == 1 for shard in (*change.before, *change.after)):
            old, new = (
                _first_pieces([str(s.devices[0]) for s in shards], ", ") for shards in (change.before, change.after)
            )
            return f"moved '{change.table}': device {old} {arrow} {new}"
        old, new = (
            _first_pieces([format_devices(s.devices) for s in shards], " and ")
            for shards in (change.before, change.after)
        )
        return f"moved '{change.table}': {old} {arrow} {new}"
    old, new = (
        _first_pieces([f"{format_area(s.rows, s.columns)} on {_holders(s)}" for s in shards], " + ") or "nowhere"
        for shards in (change.before, change.after)
    )
    return f"cut   '{change.table}': {old} {arrow} {new}"


def _first_pieces(pieces: Sequence[str], joint: str) -> str:
    """Return the first `MAX_PIECES` joined, and how many more there are; "" for none."""
    more = len(pieces) - MAX_PIECES
    return joint.join(pieces[:MAX_PIECES]) + (f" and {more} more" if more > 0 else "")


def _holders(shard: Shard) -> str:
    """Return "3" or, of several devices, "devices 0, 4"; and the kernel, where rows are not in its memory."""
    held_by = str(shard.devices[0]) if len(shard.devices) == 1 else format_devices(shard.devices)
    if shard.memory == "device":
        return held_by
    cache = f" {shard.cache_load_factor:g}" if shard.cache_load_factor else ""
    return f"{held_by} ({shard.compute_kernel}{cache})"
