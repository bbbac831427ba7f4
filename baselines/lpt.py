"""Longest processing time first with whole tables, by what the oracle says that each takes alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np

from baselines.greedy import place_greedily
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, MeasurementError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible, exceeds_devices
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask


class LPTWhole:
    """The longest table first, each to the device with the smallest sum of times that has room. No table is cut.

    The rule of Graham (1969), "Bounds on multiprocessing timing anomalies". A table's time is its forward and backward
    compute alone on a device. The oracle prices all tables in one query. On several devices, the sum of times is an
    estimate: fused kernels take less. Where all tables take equally long, larger ones go first. Of tables that are
    larger than all devices together, those that fit nowhere any more are in the memory of hosts, if the oracle prices
    that; the rule counts them as if they were not.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a table-wise plan; `seed` makes no difference, as nothing is drawn.

        Raises:
            NoFeasiblePlanError: a table fits nowhere; the message gives its bytes and the largest room left.
            InputError: an argument is of another kind, or `cost` cannot price tasks of this kind.
            MeasurementError: `cost` has no time for single tables.
        """
        check_solve_arguments(task, cost, seed)
        in_host = cost.host_memory and exceeds_devices(task)
        check_possible(task, in_host=in_host)
        return place_greedily(task, whole_table_ms(task, cost).tolist(), in_host=in_host)


def whole_table_ms(task: ShardingTask, cost: CostModel) -> Floats:
    """Return forward plus backward compute of every table alone on a device, quantized, shape (T,); see `alone_ms`."""
    return alone_ms(task, cost, [Shard.whole(table, 0) for table in task.tables])


def alone_ms(task: ShardingTask, cost: CostModel, shards: Sequence[Shard]) -> Floats:
    """Return forward plus backward compute of each of n shards alone on a device, in ms, quantized, shape (n,).

    A query is a plan for a made-up task, whose tables are the shards, one on each of as many devices. There is one
    query, or as many as it takes with `cost.max_devices` each.

    Args:
        task: of the shards.
        cost: the oracle.
        shards: with all rows of their tables; their devices do not matter.

    Raises:
        MeasurementError: `cost` has no time for them.
        InputError: `cost` cannot price tasks of this kind.
    """
    if not shards:
        return np.zeros(0)
    tables = tuple(
        dataclasses.replace(task.table(shard.table), name=f"shard {n}", embedding_dim=shard.num_columns)
        for n, shard in enumerate(shards)
    )
    most = cost.max_devices or len(tables)
    parts = []
    for start in range(0, len(tables), most):
        some = tables[start : start + most]
        apart = dataclasses.replace(
            task, tables=some, topology=task.topology.roomy(len(some)), step_memory=None, name=""
        )
        try:
            (answer,) = cost.evaluate(apart, [ShardingPlan.table_wise(apart, range(len(some)))])
        except InputError as error:  # of a table that its user knows by another name
            raise InputError(re.sub(r"'shard (\d+)'", lambda n: f"'{shards[int(n[1])].table}'", str(error))) from None
        if not answer.feasible:
            raise MeasurementError(f"cost '{cost.name}' has no time for single shards: {answer.reason}")
        parts.append(answer.compute_ms)
    return quantized(np.concatenate(parts))
