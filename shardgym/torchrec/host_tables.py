"""Tables that constraints keep in the memory of hosts: placed first, and the others by a solver."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shardgym.costs.base import CostModel
from shardgym.evaluation.solver import Solver, call_solver
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec.following import Rule


def solve_beside_host_tables(
    solver: Solver,
    task: ShardingTask,
    cost: CostModel,
    rules: Mapping[str, Rule],
    seed: int,
    time_limit_s: float | None = None,
) -> ShardingPlan:
    """Return a plan in which tables whose rules name kernels have the first of them.

    They are whole, those with most lookups first, each on the device that looks up least by then, among those that
    have room themselves and on their hosts. A solver places the other tables; without such rules it places all.

    Raises:
        NoFeasiblePlanError: the other tables do not fit.
    """
    asked = [table for table in task.tables if table.name in rules and rules[table.name].kernels]
    topology = task.topology
    if not asked:
        return call_solver(solver, task, cost, seed, time_limit_s=time_limit_s)
    lookups = [0.0] * task.num_devices
    host_room = [topology.host_memory_bytes] * topology.num_hosts
    room = list(task.capacity_bytes)
    shards = []
    for table in sorted(asked, key=lambda table: -table.pooling_factor * table.embedding_dim):
        kernel, share = rules[table.name].kernels[0]
        shard = dataclasses.replace(Shard.whole(table, 0), compute_kernel=kernel, cache_load_factor=share)
        size, host_size = shard.bytes(task), shard.host_bytes(task)
        allowed = rules[table.name].devices or range(task.num_devices)
        # Where it fits nowhere, the plan says of which memory how much is missing.
        device = min(
            sorted(allowed),
            key=lambda d: (host_size > host_room[topology.host_of(d)] or size > room[d], lookups[d]),
        )
        lookups[device] += table.pooling_factor * table.embedding_dim
        host_room[topology.host_of(device)] -= host_size
        room[device] -= size
        shards.append(dataclasses.replace(shard, devices=(device,)))
    others = [table for table in task.tables if table not in asked]
    group_size = None
    if others:
        left = dataclasses.replace(topology, host_memory_bytes=max(0, min(host_room)))
        rest = call_solver(solver, task.part(room, others, left), cost, seed, time_limit_s=time_limit_s)
        shards += rest.shards
        group_size = rest.group_size
    return ShardingPlan.of(task, shards, group_size)
