"""RecShard as a solver, and its mixed-integer program for the device and the split of every table."""

import contextlib
import itertools
import math
from collections.abc import Sequence

import numpy as np

from baselines.milp.linear_program import LinearProgram, Sum
from baselines.queries import IncumbentSearch, SearchRun
from baselines.recshard.search import Search
from neuroshard.row_splits import Split, splits_of
from shardgym.costs.base import CostModel, additive_costs
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import OutOfTime
from shardgym.plans.feasibility import ROOM_ADVICE, check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Times are scaled so that an even share of all of them is this much, and memory so that the largest has it: HiGHS
#: allows errors of a millionth, in any unit.
_SCALE = 1000.0
#: Splits of a table that the program mixes: with twice as many it takes two to three times as long.
_MOST_SPLITS = 6
#: Relative gap at which the program may end, and nodes of its tree at most, so that plans do not depend on speed.
_GAP = 0.02
_NODES = 200


def assign(
    task: ShardingTask, splits: Sequence[Sequence[Split]], column_ms: float, *, time_limit_s: float
) -> list[int] | None:
    """Return a device for every table that minimises the slowest device's time; None if no solution was found.

    Tables stay on one device, within the memory of devices and hosts. The program mixes a table's splits without
    integers: because their savings per byte fall, mixtures of adjacent splits are optimal. `column_ms` is the time of a
    device to exchange one column.
    """
    devices = range(task.num_devices)
    topology = task.topology
    fastest = sum(of_table[-1].ms for of_table in splits)
    columns = [column_ms * table.embedding_dim * table.num_features for table in task.tables]
    per_ms = _SCALE / max((fastest + sum(columns)) / task.num_devices, 1e-9)
    per_byte = _SCALE / max(task.capacity_bytes)
    per_host_byte = _SCALE / max(topology.host_memory_bytes, 1)
    program = LinearProgram()
    slowest = program.variable()
    busy = [slowest * -1.0 for _ in devices]
    used = [Sum() for _ in devices]
    on_host = [Sum() for _ in range(topology.num_hosts)]
    places = []
    for n, of_table in enumerate(map(_some, splits)):
        chosen = [program.flag() for _ in devices]
        program.equal(Sum.of(chosen), 1.0)
        places.append([place.number for place in chosen])
        for device, place in zip(devices, chosen, strict=True):
            host = topology.host_of(device)
            busy[device] += place * ((of_table[0].ms + columns[n]) * per_ms)
            used[device] += place * (of_table[0].device_bytes * per_byte)
            on_host[host] += place * (of_table[0].host_bytes * per_host_byte)
            for before, after in itertools.pairwise(of_table):
                part = program.variable(1.0)
                program.at_most(part, place)
                busy[device] += part * ((after.ms - before.ms) * per_ms)
                used[device] += part * ((after.device_bytes - before.device_bytes) * per_byte)
                on_host[host] += part * ((after.host_bytes - before.host_bytes) * per_host_byte)
    for device in devices:
        program.at_most(busy[device])
        program.at_most(used[device], task.capacity_bytes[device] * per_byte)
    for terms in on_host:
        program.at_most(terms, topology.host_memory_bytes * per_host_byte)
    found = program.minimise(slowest, gap=_GAP, nodes=_NODES, time_limit_s=time_limit_s)
    if found.values is None:
        return None
    return [int(np.argmax(found.values[chosen])) for chosen in places]


def _some(splits: Sequence[Split]) -> list[Split]:
    """Return a few of a table's splits, the first and the last among them, about as far from each other in time."""
    if len(splits) <= _MOST_SPLITS:
        return list(splits)
    times = np.array([split.ms for split in splits])
    wanted = np.linspace(times[0], times[-1], _MOST_SPLITS)
    places = sorted({int(np.argmin(np.abs(times - ms))) for ms in wanted} | {0, len(splits) - 1})
    return [splits[place] for place in places]


class RecShard(IncumbentSearch):
    """Places each table on one device, with popular rows in device memory and the others in host memory.

    RecShard (Sethi et al., "RecShard: Statistical Feature-Based Memory Optimization for Industry-Scale Neural
    Recommendation", ASPLOS 2022) splits rows by frequency over memory tiers. One mixed-integer program over all tables
    and devices minimises the slowest device's time by the bandwidth of each tier. We know only the paper's abstract,
    and no code; the rest is our own:

    - The oracle prices splits, not bytes over bandwidth. Each table has some 30 splits, of which the solver keeps those
      that save the most time per byte (`neuroshard/row_splits.py`).
    - The program mixes splits freely (`assign`). Each device then spends memory where it saves the most time.
    - A local search moves and swaps tables between devices as long as that makes the plan cheaper.
    - If rows are ordered by frequency, tables are cut: popular rows have kernel `fused`, the others `fused_uvm`.
      Otherwise, where the paper remaps rows, the table has kernel `fused_uvm_caching` with a cache of as many rows.

    All rows stay in device memory if hosts have none or the oracle does not price it. There is no SSD tier.

    Args:
        row_cuts: whether tables may be cut by rows. Without cuts, plans can be exported to TorchRec, which has one
            kernel per table.
    """

    def __init__(self, *, row_cuts: bool = True) -> None:
        self.row_cuts = row_cuts

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` if the cost is not additive."""
        additive_costs(cost, "recshard")

    def check_task(self, task: ShardingTask, cost: CostModel) -> None:
        """See `IncumbentSearch`; rows may be in host memory."""
        check_possible(task, in_host=_in_host(task, cost))

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """See `IncumbentSearch`; deterministic."""
        del start
        task = run.task
        budget = run.budget
        costs = additive_costs(run.cost, "recshard")
        splits = splits_of(task, costs, in_host=_in_host(task, run.cost), row_cuts=self.row_cuts)
        search = Search(task, costs, splits, run.incumbent)
        search.offer(search.greedy())
        limit_s = budget.left_s if budget.limited else math.inf
        if limit_s > 0:
            search.offer(assign(task, search.splits, search.column_ms, time_limit_s=limit_s))
        with contextlib.suppress(OutOfTime):
            search.improve(budget)
        if run.incumbent.cost_ms == math.inf:
            raise NoFeasiblePlanError(
                "recshard found no plan: whole tables on single devices do not fit, even with rows in host memory; "
                f"{ROOM_ADVICE}, or use a solver that cuts columns"
            )


def _in_host(task: ShardingTask, cost: CostModel) -> bool:
    return cost.host_memory and task.topology.host_memory_bytes > 0
