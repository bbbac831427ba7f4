"""What a training step takes on each device under a plan, by what it is for."""

from __future__ import annotations

import dataclasses
import textwrap
from typing import NamedTuple

from tabulate import tabulate

from shardgym.plan import ShardingPlan
from shardgym.step_memory import StepMemory
from shardgym.task import ShardingTask, format_bytes


class StepParts(NamedTuple):
    """Bytes in the memory of a device in the hottest batch of its shards.

    Attributes:
        device: its number.
        weights: of its shards, and caches of rows in the memory of the host.
        optimizer: their states.
        ids: inputs of its own samples, and what its shards receive.
        outputs: values and gradients of its shards and of its own samples, and dense gradients of replicas.
        quantizer: what a quantiser makes of values.
        reserved: for the dense part of the model and the framework.
        total: all of it.
        average_total: the same in an average batch.
        memory_bytes: of the device.
    """

    device: int
    weights: int
    optimizer: int
    ids: int
    outputs: int
    quantizer: int
    reserved: int
    total: int
    average_total: int
    memory_bytes: int


def step_parts(task: ShardingTask, plan: ShardingPlan) -> list[StepParts]:
    """Return what each device has in memory; by the defaults of `StepMemory` where the task has none.

    Raises:
        InputError: recorded ids of a table cannot be read.
    """
    if task.step_memory is None:
        task = dataclasses.replace(task, step_memory=StepMemory())
    average = plan.memory_per_device(task, hottest=False)
    found = []
    for device, held in enumerate(plan.memory_per_device(task)):
        shards = [shard.device_bytes(task) for shard in plan.on(device) if task.has_table(shard.table)]
        inputs, joined = task.own_parts(device)
        found.append(
            StepParts(
                device,
                held.weights,
                held.optimizer,
                inputs + sum(shard.ids for shard in shards),
                joined + sum(shard.outputs for shard in shards),
                sum(shard.quantizer for shard in shards),
                held.reserved,
                held.total,
                average[device].total,
                task.topology.memory_bytes[device],
            )
        )
    return found


def render_step_parts(task: ShardingTask, parts: list[StepParts], *, width: int) -> str:
    """Draw what devices have in memory for a terminal of `width` columns; the device that has least left is named."""
    rows = [
        {
            "device": str(part.device),
            "weights": format_bytes(part.weights),
            "optimizer": format_bytes(part.optimizer),
            "ids": format_bytes(part.ids),
            "outputs": format_bytes(part.outputs),
            "quantiser": format_bytes(part.quantizer),
            "reserved": format_bytes(part.reserved),
            "hottest batch": format_bytes(part.total),
            "average batch": format_bytes(part.average_total),
        }
        for part in parts
    ]
    table = tabulate(rows, "keys", "simple", colalign=["right"] * len(rows[0]), disable_numparse=True)
    fullest = min(parts, key=lambda part: part.memory_bytes - part.total)
    left = fullest.memory_bytes - fullest.total
    verdict = f"{format_bytes(left)} left" if left >= 0 else f"{format_bytes(-left)} missing"
    remarks = [
        f"device {fullest.device} has least left in its hottest batch: {format_bytes(fullest.total)} of "
        f"{format_bytes(fullest.memory_bytes)}, {verdict}"
    ]
    if task.step_memory is None:
        remarks.append(
            "the task has no step_memory: copies are those of TorchRec, nothing is reserved, and whether the plan is "
            "feasible is asked of weights and states alone"
        )
    return "\n".join([table, *(textwrap.fill(text, max(width, 40), subsequent_indent="  ") for text in remarks)])
