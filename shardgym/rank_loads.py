"""Lookups and distinct rows of each device of a plan: as expected, and as a stream of ids has them, id by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from shardgym.arguments import check_instance
from shardgym.arrays import Floats
from shardgym.bags import Bags, check_bags
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.row_access import access_share, distinct_rows
from shardgym.shard import Shard
from shardgym.task import ShardingTask


class RankLoads(NamedTuple):
    """What devices look up in one batch.

    Attributes:
        lookups: ids that a device looks up in its shards, shape (D,). Pieces of columns look up the same ids each.
        distinct_rows: different rows of its shards among them, shape (D,).
    """

    lookups: Floats
    distinct_rows: Floats


def expected_loads(task: ShardingTask, plan: ShardingPlan) -> RankLoads:
    """Return what devices are expected to look up, as costs take it.

    Raises:
        InputError: the plan is for another task, or these are no task and plan.
        InfeasiblePlanError: the plan is infeasible.
    """
    _check(task, plan)
    loads = RankLoads(np.zeros(task.num_devices), np.zeros(task.num_devices))
    for shard in plan.shards:
        table = task.table(shard.table)
        served = 1 / len(shard.devices)
        of_range = task.batch_size * table.pooling_factor * access_share(table, *shard.rows)
        loads.lookups[list(shard.devices)] += served * of_range
        loads.distinct_rows[list(shard.devices)] += distinct_rows(table, task.batch_size, *shard.rows, served)
    return loads


def replayed_loads(task: ShardingTask, plan: ShardingPlan, stream: Mapping[str, Bags]) -> RankLoads:
    """Return what devices look up in one batch of ids, counted id by id.

    Samples are in the order of devices: the first ones are those of device 0. What several devices hold each of them
    looks up for the samples of its own part of the devices.

    Args:
        task: the task.
        plan: a plan for it.
        stream: ids of a batch, by the name of the table.

    Raises:
        InputError: the stream lacks a table or has one that the task has not, or its ids are not those of a batch of
            the table; or the plan is for another task.
        InfeasiblePlanError: the plan is infeasible.
    """
    _check(task, plan)
    for table in task.tables:
        if table.name not in stream:
            raise InputError(f"stream: has no ids of table '{table.name}', expected those of every table of the task")
        check_bags(table.name, table.num_embeddings, stream[table.name], task.batch_size)
    unknown = next((name for name in stream if not task.has_table(name)), None)
    if unknown is not None:
        raise InputError(f"stream: has ids of table '{unknown}', which is not in the task")
    loads = RankLoads(np.zeros(task.num_devices), np.zeros(task.num_devices))
    for shard in plan.shards:
        first, stop = shard.rows
        for device, ids in _looked_up(task, shard, stream[shard.table]):
            hits = ids[(ids >= first) & (ids < stop)]
            loads.lookups[device] += len(hits)
            loads.distinct_rows[device] += len(np.unique(hits))
    return loads


def _looked_up(task: ShardingTask, shard: Shard, bags: Bags) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each device that holds a shard, and the ids of the samples that it looks up."""
    ends = np.concatenate([[0], np.cumsum(bags.lengths)])
    parts = np.arange(len(shard.devices) + 1) * task.batch_size // len(shard.devices)
    for part, device in enumerate(shard.devices):
        yield device, bags.indices[ends[parts[part]] : ends[parts[part + 1]]]


def _check(task: ShardingTask, plan: ShardingPlan) -> None:
    check_instance("task", task, ShardingTask)
    check_instance("plan", plan, ShardingPlan)
    plan.validate(task)
