"""What there is to say of a drawn plan: the fullest device, the slowest, and the tables that make it so."""

from __future__ import annotations

from collections.abc import Sequence

from shardgym.costs.plan_cost import PlanCost
from shardgym.plan import Shard, ShardingPlan
from shardgym.rendering.critical import Critical, critical
from shardgym.rendering.load import column_shares, device_columns, device_loads, lookup_shares
from shardgym.task import ShardingTask

_NAMED_TABLES = 5

#: Share of the step below which nothing is said to set a device apart.
_EVEN = 0.01

_CAUSES = {
    "compute": "its compute sets it apart",
    "columns": "the columns that it sends set it apart",
    "other": "its exchange sets it apart, though it sends no more columns than the mean: what others send to it",
}


def remarks(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None) -> list[str]:
    """Return lines, the first of which is empty.

    Args:
        task: the task.
        plan: feasible or not.
        cost: its cost where it has times.
    """
    used = plan.bytes_per_device(task)
    shares = [size / limit for size, limit in zip(used, task.topology.memory_bytes, strict=True)]
    fullest = shares.index(max(shares))
    lines = ["", f"fullest: device {fullest}, {100 * shares[fullest]:.1f} % of its memory"]
    return lines + (_busiest(task, plan) if cost is None else _slowest(task, plan, cost))


def _busiest(task: ShardingTask, plan: ShardingPlan) -> list[str]:
    loads = device_loads(task, plan)
    worst = loads.index(max(loads))
    return [
        f"busiest: device {worst}, {_times_mean(loads, worst)} values looked up per sample",
        _by_lookups(task, plan, worst),
    ]


def _slowest(task: ShardingTask, plan: ShardingPlan, cost: PlanCost) -> list[str]:
    """Name the device with the largest sum, the one that holds up the step, and its tables."""
    columns = device_columns(task, plan)
    found = critical(cost, columns)
    is_even = found.excess_ms < _EVEN * cost.total_ms
    why = f"devices are even within {100 * _EVEN:.0f} % of the step" if is_even else _CAUSES[found.cause]
    lines = [f"slowest: device {cost.slowest_device}, {cost.total_ms:.3f} ms", f"{_held_up(found)}; {why}"]
    if found.cause == "compute":
        return [*lines, _by_lookups(task, plan, found.device)]
    if found.cause == "columns":
        named = _named(column_shares(plan, found.device), "columns")
        return [*lines, f"tables responsible on device {found.device}: {named}"]
    widest = columns.index(max(columns))
    return [*lines, f"most columns: device {widest}, {_named(column_shares(plan, widest), 'columns')}"]


def _held_up(found: Critical) -> str:
    """Give what the device adds to the step and both parts of its own time, which the wait for others is no part of."""
    worst, parts = found.device, (found.compute_ms, found.exchange_ms)
    compute, exchange = (f"{times[worst]:.3f} ms, {_times_mean(times.tolist(), worst)}" for times in parts)
    return (
        f"held up by: device {worst}, the step is {found.alone_ms:.3f} ms longer than for the next device; "
        f"its compute {compute}; its exchange without waiting {exchange}"
    )


def _by_lookups(task: ShardingTask, plan: ShardingPlan, device: int) -> str:
    return f"tables responsible on device {device}: {_named(lookup_shares(task, plan, device), 'lookups')}"


def _times_mean(values: Sequence[float], worst: int) -> str:
    mean = sum(values) / len(values)
    return f"{values[worst] / mean:.2f} times the mean" if mean else "as all"


def _named(shards: Sequence[tuple[Shard, float]], what: str) -> str:
    """Name the shards with most of a device's lookups or columns."""
    named = [
        f"'{shard.table}' {100 * share:.0f} % ({shard.num_rows} rows x {shard.num_columns} columns)"
        for shard, share in shards[:_NAMED_TABLES]
    ]
    more = [f"{len(shards) - _NAMED_TABLES} more"] if len(shards) > _NAMED_TABLES else []
    return ", ".join(named + more) + f" of its {what}" if named else "none, it holds no shard"
