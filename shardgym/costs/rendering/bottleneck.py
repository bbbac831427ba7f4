"""The bottleneck of a plan: the device that the others wait for, why, and the tables behind it.

In the forward exchange all devices wait for the last one, and the wait counts as forward communication. A step takes
the longest time until a device enters that exchange, plus the longest time from then on. One device or two set these
times; the others only wait. So the device with the largest sum may have waited for the bottleneck device.

Where ids are not hidden (`shardgym.costs.links.exchange_times`), devices are busy with ids and forward compute before
that exchange; where they are, with compute and the exchange of gradients. Some costs know no wait, `torchrec_rating`
for one: each device takes its own sum. A cost that has no ids does not say which of the three it is, and its times do:
without the wait, pooled values take about as long forward as their gradients take backward.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.links import wait_ms
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.shard_keys import output_widths, values_sent
from shardgym.errors import format_ranges
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: What sets a device apart: its lookups, the values that it sends, or an exchange that these do not explain.
Cause = Literal["compute", "sent", "other"]

_EXPLANATIONS: dict[Cause, str] = {
    "compute": "its compute sets it apart",
    "sent": "the values that it sends set it apart",
    "other": "what others send to it sets it apart: it sends no more values than the mean",
}

_EVEN_SHARE = 0.01  #: of the step, below which devices count as even
_SHOWN_MS = 0.0005  #: below which a time is written as 0.000
_LEAST_WAIT = 0.5  #: of the time until the last device is ready, that a measured wait has at least; the rest is noise
_MAX_NAMED_TABLES = 5


class Bottleneck(NamedTuple):
    """The bottleneck device of a step."""

    device: int
    compute_ms: Floats  #: forward plus backward, of every device, shape (D,)
    exchange_ms: Floats  #: all exchanges without the wait for the last device, shape (D,)
    wait_ms: Floats  #: for the last device, shape (D,)
    #: How much longer the step is for this device than for the next: the most that unloading it can gain while what
    #: others send to it stays the same.
    margin_ms: float
    cause: Cause  #: what it has more of than the mean device


def find_bottleneck(cost: PlanCost, sent_values: Sequence[float]) -> Bottleneck:
    """Find the device that the step is longest for; of several alike, the one with most compute and exchange.

    Args:
        cost: cost of a feasible plan.
        sent_values: values that each device sends for a sample, shape (D,).
    """
    ids, forward, forward_comm, backward_comm, backward = cost.per_device.T
    compute = forward + backward
    busy, wait = _busy_and_wait(cost)
    sent = forward_comm - np.minimum(wait, forward_comm)
    counted = 0.0 if cost.ids_hidden else ids
    exchange = counted + sent + backward_comm
    after = compute + exchange - busy
    margins = _margin_of_largest(busy) + _margin_of_largest(after) if wait.any() else _margin_of_largest(busy + after)
    device = int(np.lexsort((-compute - exchange, -margins))[0])

    # Where nothing exceeds the mean, what takes longer counts as the cause.
    more_compute = compute[device] - compute.mean()
    more_exchange = exchange[device] - exchange.mean()
    if max(more_compute, more_exchange) <= 0:
        more_compute = compute[device]
        more_exchange = exchange[device]
    of_exchange: Cause = "sent" if sent_values[device] >= np.mean(sent_values) else "other"
    cause: Cause = "compute" if more_compute >= more_exchange else of_exchange
    return Bottleneck(device, compute, exchange, wait, float(margins[device]), cause)


def _busy_and_wait(cost: PlanCost) -> tuple[Floats, Floats]:
    """Return how long devices are busy before the forward exchange and wait in it, in ms, each of shape (D,)."""
    ids, forward, forward_comm, backward_comm, backward = cost.per_device.T
    whole = forward + backward + backward_comm
    if ids.any():
        busy = whole if cost.ids_hidden else ids + forward
        wait = wait_ms(busy)
        is_waiting = bool((forward_comm >= _LEAST_WAIT * wait).all())
        return busy, wait if is_waiting else np.zeros_like(wait)
    tried = [(whole, wait_ms(whole)), (forward, wait_ms(forward)), (whole, np.zeros_like(whole))]
    # Without the wait, pooled values take as long as gradients, but for what is the same on all devices.
    spreads = [float(np.ptp(forward_comm - wait - backward_comm)) for _, wait in tried]
    return tried[int(np.argmin(spreads))]


def _margin_of_largest(values: Floats) -> Floats:
    """Return by how much the largest of `values` exceeds the second at its place, and 0 elsewhere, shape (D,)."""
    second = np.sort(values)[-2] if len(values) > 1 else 0.0
    return np.where(np.arange(len(values)) == values.argmax(), values - second, 0.0)


def describe_bottleneck(task: ShardingTask, plan: ShardingPlan, cost: PlanCost | None) -> list[str]:
    """Return lines on the fullest and the slowest device, by lookups without a cost, and on tables responsible."""
    used = [held.total for held in plan.memory_per_device(task)]
    shares = [size / limit for size, limit in zip(used, task.topology.memory_bytes, strict=True)]
    fullest = shares.index(max(shares))
    lines = [f"fullest: device {fullest}, {100 * shares[fullest]:.1f} % of its memory"]
    idle = [device for device in range(task.num_devices) if not plan.on(device)]
    if idle:
        lines.append(f"idle: {len(idle)} of {task.num_devices} devices hold nothing: {format_ranges(idle)}")

    if cost is None:
        loads = device_loads(task, plan)
        busiest = loads.index(max(loads))
        return [
            *lines,
            f"busiest: device {busiest}, {_as_times_mean(loads, busiest)} values looked up per sample",
            f"tables responsible on device {busiest}: {_name_tables(task, plan.on(busiest), 'lookups')}",
        ]

    sent_values = output_widths(task, plan)
    found = find_bottleneck(cost, sent_values)
    excess_ms = max(float(times[found.device] - times.mean()) for times in (found.compute_ms, found.exchange_ms))
    is_even = excess_ms < _EVEN_SHARE * cost.total_ms
    why = f"devices are even within {100 * _EVEN_SHARE:.0f} % of the step" if is_even else _EXPLANATIONS[found.cause]
    waited = float(found.wait_ms[cost.slowest_device])
    waits = f", waiting {waited:.3f} ms for the outputs of device {(found.wait_ms == 0).argmax()}"
    slowest = f"slowest: device {cost.slowest_device}, {cost.total_ms:.3f} ms{waits if waited >= _SHOWN_MS else ''}"
    if is_even and found.margin_ms < _SHOWN_MS:
        return [*lines, slowest, f"bottleneck: no device, {why}"]
    compute, exchange = (
        f"{times[found.device]:.3f} ms, {_as_times_mean(times.tolist(), found.device)}"
        for times in (found.compute_ms, found.exchange_ms)
    )
    is_longer = found.margin_ms >= _SHOWN_MS
    longer = f", the step is {found.margin_ms:.3f} ms longer than for the next device" if is_longer else ""
    lines += [
        slowest,
        f"bottleneck: device {found.device}{longer}; its compute {compute}; "
        f"its exchange without waiting {exchange}; {why}",
    ]
    if found.cause != "other":
        named = _name_tables(task, plan.on(found.device), "lookups" if found.cause == "compute" else "values sent")
        lines.append(f"tables responsible on device {found.device}: {named}")
    else:
        widest = sent_values.index(max(sent_values))
        lines.append(f"most values sent: device {widest}, {_name_tables(task, plan.on(widest), 'values sent')}")
    return lines


def _as_times_mean(values: Sequence[float], device: int) -> str:
    mean = sum(values) / len(values)
    return f"{values[device] / mean:.2f} times the mean" if mean else "as on all devices"


def _name_tables(task: ShardingTask, shards: Sequence[Shard], unit: Literal["lookups", "values sent"]) -> str:
    load_of = _values_per_sample if unit == "lookups" else values_sent
    loads = [(shard, load) for shard in shards if (load := load_of(task, shard))]
    total = sum(load for _, load in loads)
    named = [
        f"'{shard.table}' {100 * load / total:.0f} % ({shard.num_rows} rows x {shard.num_columns} columns)"
        for shard, load in sorted(loads, key=lambda pair: -pair[1])[:_MAX_NAMED_TABLES]
    ]
    if len(loads) > _MAX_NAMED_TABLES:
        named.append(f"{len(loads) - _MAX_NAMED_TABLES} more")
    return ", ".join(named) + f" of its {unit}" if named else f"none, it has no {unit}"


def _values_per_sample(task: ShardingTask, shard: Shard) -> float:
    """Return what a holder looks up, rows being equally likely; 0 for a table that the task lacks, so it is drawn."""
    if not task.has_table(shard.table):
        return 0.0
    table = task.table(shard.table)
    return table.pooling_factor * shard.num_rows / table.num_embeddings * shard.num_columns / len(shard.devices)


def device_loads(task: ShardingTask, plan: ShardingPlan) -> list[float]:
    """Return the values that every device looks up, per sample of the batch; devices with copies share the samples."""
    return [sum(_values_per_sample(task, shard) for shard in plan.on(d)) for d in range(task.num_devices)]
