"""Which table costs what, and what one more cut would bring, by a cost model that adds up."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import NamedTuple

import numpy as np
from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.links import pooled_widths
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.rendering.bottleneck import find_bottleneck
from shardgym.shard import COLUMN_UNIT, Shard
from shardgym.task import ShardingTask, format_bytes

#: Tables that are listed.
MAX_TABLES = 20
#: Shards of the device that holds up the step for which a cut is tried, and devices that half of each may go to.
_MOST_CUTS = 20
_MOST_TARGETS = 8


class TableCost(NamedTuple):
    """What one table costs.

    Attributes:
        table: its name.
        devices: that hold its shards, in their order.
        size_bytes: of all its shards, optimiser state included.
        ms: by how much the compute of its devices would shrink without it.
        after_cut_ms: what a step takes at best when its costliest shard on the device that holds up the step is halved
            by columns and one half moves; None where nothing was tried, or nothing fits.
        compute_kernels: of its shards, each once, by name.
    """

    table: str
    devices: tuple[int, ...]
    size_bytes: int
    ms: float
    after_cut_ms: float | None
    compute_kernels: tuple[str, ...]


def table_costs(task: ShardingTask, plan: ShardingPlan, model: CostModel, cost: PlanCost) -> list[TableCost]:
    """Return what every table of a feasible plan costs by the model that its cost is of, the costliest first.

    Raises:
        InputError: the model scores whole plans only.
    """
    ms = dict(zip(plan.shards, _marginal_ms(task, plan, model).tolist(), strict=True))
    after_cut = _after_cuts(task, plan, model, cost, ms)
    found = []
    for table in task.tables:
        shards = plan.of_table(table.name)
        size = sum(shard.bytes(task) * len(shard.devices) for shard in shards)
        devices = tuple(device for shard in shards for device in shard.devices)
        total = sum(ms[shard] for shard in shards)
        kernels = tuple(sorted({shard.compute_kernel for shard in shards}))
        found.append(TableCost(table.name, devices, size, total, after_cut.get(table.name), kernels))
    return sorted(found, key=lambda cost: -cost.ms)


def _marginal_ms(task: ShardingTask, plan: ShardingPlan, model: CostModel) -> Floats:
    """Return by how much the compute of its devices would shrink without each shard, shape (number of shards,)."""
    prices = model.additive()
    if prices is None:
        raise InputError(
            f"cost '{model.name}' scores whole plans only: what tables cost needs one that adds up, such as "
            "'roofline', 'torchrec_rating' or 'simulator'"
        )
    batch = prices.batch(task, [plan])
    latents = prices.latents(batch.shards)
    devices = batch.devices
    sums = np.zeros((task.num_devices, latents.shape[1]))
    np.add.at(sums, devices, latents)
    counts = np.bincount(devices, minlength=task.num_devices).astype(np.float64)
    before = prices.device_ms(sums, counts).sum(axis=-1)[devices]
    saved = before - prices.device_ms(sums[devices] - latents, counts[devices] - 1).sum(axis=-1)
    firsts = np.cumsum([0, *(len(shard.devices) for shard in plan.shards[:-1])])
    return np.asarray(np.add.reduceat(saved, firsts))


def _after_cuts(
    task: ShardingTask, plan: ShardingPlan, model: CostModel, cost: PlanCost, ms: dict[Shard, float]
) -> dict[str, float]:
    """Return what a step takes at best after one more cut of a table, by table; see `TableCost`."""
    found = find_bottleneck(cost, pooled_widths(task, plan))
    busy = found.compute_ms + found.exchange_ms
    targets = [device for device in np.argsort(busy, kind="stable").tolist() if device != found.device][:_MOST_TARGETS]
    costliest: dict[str, Shard] = {}
    for shard in sorted(plan.on(found.device), key=lambda shard: -ms[shard]):
        if shard.num_columns >= 2 * COLUMN_UNIT and len(shard.devices) == 1:
            costliest.setdefault(shard.table, shard)
    tried = [(shard, target) for shard in list(costliest.values())[:_MOST_CUTS] for target in targets]
    plans = [_cut(task, plan, shard, target) for shard, target in tried]
    best: dict[str, float] = {}
    for (shard, _), other in zip(tried, model.evaluate(task, plans), strict=True):
        if other.feasible:
            best[shard.table] = min(best.get(shard.table, np.inf), other.total_ms)
    return best


def _cut(task: ShardingTask, plan: ShardingPlan, shard: Shard, target: int) -> ShardingPlan:
    start, end = shard.columns
    middle = start + COLUMN_UNIT * (shard.num_columns // COLUMN_UNIT // 2)
    halves = (
        dataclasses.replace(shard, columns=(start, middle), devices=(target,)),
        dataclasses.replace(shard, columns=(middle, end)),
    )
    return ShardingPlan.of(task, [*(other for other in plan.shards if other != shard), *halves])


def render_table_costs(costs: list[TableCost], cost: PlanCost, device: int, *, width: int) -> str:
    """Draw the costliest tables of a plan, whose step `device` holds up, for a terminal of `width` columns.

    Kernels are listed where tables have others than `fused`, as rows are then elsewhere than on devices.
    """
    leaves_devices = any(table.compute_kernels != ("fused",) for table in costs)
    rows = [
        {
            "table": table.table,
            "on devices": ", ".join(map(str, table.devices)),
            **({"kernel": ", ".join(table.compute_kernels)} if leaves_devices else {}),
            "memory": format_bytes(table.size_bytes),
            "ms": f"{table.ms:.3f}",
            "one more cut": _change(table.after_cut_ms, cost.total_ms),
        }
        for table in costs[:MAX_TABLES]
    ]
    colalign = ["left"] * (2 + leaves_devices) + ["right"] * 3
    lines = [tabulate(rows, "keys", "simple", colalign=colalign, disable_numparse=True)]
    if len(costs) > MAX_TABLES:
        lines.append(f"... and {len(costs) - MAX_TABLES} more tables that cost less; --json has all")
    remarks = [
        f"ms: by how much the compute of its devices would shrink without the table, {cost.origin}",
        f"one more cut: the step, of {cost.total_ms:.3f} ms, when the table's shard on device {device}, which holds it "
        "up, is halved and one half moves to where that helps most",
    ]
    return "\n".join(lines + [textwrap.fill(remark, max(width, 40), subsequent_indent="  ") for remark in remarks])


def _change(after_ms: float | None, before_ms: float) -> str:
    return "-" if after_ms is None else f"{100 * (after_ms / before_ms - 1):+.1f} %"
