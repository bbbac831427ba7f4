"""One plan: devices by memory and cost, the worst device, and the tables that make it so."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from tabulate import tabulate

from shardgym.costs.plan_cost import PlanCost
from shardgym.plan import ShardingPlan, plan_problems
from shardgym.rendering.bars import bar, mebibytes, stacked
from shardgym.rendering.load import device_columns, device_loads
from shardgym.rendering.remarks import remarks
from shardgym.task import ShardingTask


class _Detail(NamedTuple):
    """What a table shows."""

    bar_width: int
    phases: bool = True
    counts: bool = True


#: Tried in turn until the table fits the terminal.
_DETAILS = (
    *(_Detail(width) for width in (24, 16, 10, 6, 0)),
    *(_Detail(width, phases=False) for width in (24, 16, 10, 6, 0)),
    *(_Detail(width, phases=False, counts=False) for width in (10, 6, 0)),
)
_PHASE_HEADERS = ("fwd comp", "fwd comm", "bwd comm", "bwd comp")


def render_plan(
    task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None = None, *, width: int = 100, ascii_only: bool = False
) -> str:
    """Draw a plan.

    Args:
        task: the task that the plan is for.
        plan: feasible or not; problems are listed.
        cost: its cost, where known; one line says so where the cost model gave none.
        width: columns of the terminal.
        ascii_only: draw bars with characters that every terminal has.
    """
    scored = cost if cost is not None and cost.feasible else None
    parts = [_heading(task, plan, width), _table(task, plan, scored, width, ascii_only)]
    parts += [_wrapped(line, width) for line in remarks(task, plan, scored)]
    if scored is not None:
        parts.append(_legend(scored, width, ascii_only))
    elif cost is not None:
        parts.append(f"cost: none by {cost.cost}, because of the following")
    problems = list(plan_problems(task, plan.shards))
    if not problems and cost is not None and cost.reason is not None:
        problems = [cost.reason]
    parts += [_wrapped(f"problem: {problem}", width) for problem in problems]
    return "\n".join(parts)


def _heading(task: ShardingTask, plan: ShardingPlan, width: int) -> str:
    text = (
        f"plan {plan.digest[:12]} for task {task.name or task.digest[:12]}: {task.num_tables} tables in "
        f"{len(plan.shards)} shards on {task.num_devices} devices, batch {task.batch_size}, {task.precision}, "
        f"{task.optimizer}"
    )
    return _wrapped(text, width) + "\n"


def _wrapped(text: str, width: int) -> str:
    return textwrap.fill(text, max(width, 40), subsequent_indent="  ")


def _table(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None, width: int, ascii_only: bool) -> str:
    """Render with the most detail that fits."""
    for detail in _DETAILS:
        text = _draw(task, plan, cost, detail, ascii_only)
        if max(map(len, text.splitlines())) <= width:
            break
    return text


def _draw(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None, detail: _Detail, ascii_only: bool) -> str:
    used, loads, columns = plan.bytes_per_device(task), device_loads(task, plan), device_columns(task, plan)
    rows: list[dict[str, str]] = []
    for device in range(task.num_devices):
        shards, share = plan.on(device), used[device] / task.topology.memory_bytes[device]
        cells = {"device": str(device), "shards": str(len(shards))}
        if detail.counts:
            cells |= {"columns": str(columns[device]), "values/sample": f"{loads[device]:.0f}"}
        cells |= {"memory": mebibytes(used[device]), "used": f"{100 * share:.1f} %"}
        if detail.bar_width:
            cells["bar"] = bar(share, detail.bar_width, ascii_only)
        rows.append(cells | (_cost_cells(cost, device, detail, ascii_only) if cost is not None else {}))
    align = ["left" if header in ("bar", "time") else "right" for header in rows[0]]
    return tabulate(rows, "keys", "simple", colalign=align, disable_numparse=True)


def _cost_cells(cost: PlanCost, device: int, detail: _Detail, ascii_only: bool) -> dict[str, str]:
    times = [float(ms) for ms in cost.per_device[device]]
    phases = zip(_PHASE_HEADERS, times, strict=True) if detail.phases else ()
    cells = {header: f"{ms:.3f}" for header, ms in phases} | {"total ms": f"{sum(times):.3f}"}
    if detail.bar_width:
        longest = cost.total_ms or 1.0
        cells["time"] = stacked([ms / longest for ms in times], detail.bar_width, ascii_only)
    return cells


def _legend(cost: PlanCost, width: int, ascii_only: bool) -> str:
    marks = "FfbB" if ascii_only else "█▓▒░"
    phases = ", ".join(f"{mark} {name}" for mark, name in zip(marks, _PHASE_HEADERS, strict=True))
    noise = f", standard error {100 * cost.noise:.1f} %" if cost.noise else ""
    text = (
        f"cost: {cost.cost} {cost.version} on {cost.hardware}, compute {cost.compute}, communication "
        f"{cost.communication}{noise}; time bars: {phases}"
    )
    return _wrapped(text, width)
