"""The cheapest assignment of whole tables within memory, which SurCo deploys."""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from shardgym.arguments import check_instance
from shardgym.arrays import Floats, Ints
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.tasks.task import ShardingTask

#: Nodes of the search tree at most: the same on a machine of any speed.
_NODES = 10_000
#: Costs and memory are scaled to this: HiGHS allows errors of a millionth, in any unit.
_SCALE = 1000.0


def cheapest_assignment(task: ShardingTask, costs: Floats) -> Ints:
    """Return the devices of whole tables that minimise added costs within the memory of every device.

    HiGHS proves the optimum, unless the search tree gets too large first.

    Args:
        task: the task.
        costs: of every table on every device, any finite numbers, shape (T, D); quantized, see `shardgym.costs.ties`.

    Returns:
        Shape (T,).

    Raises:
        InputError: costs of another shape, or not finite.
        NoFeasiblePlanError: no such assignment exists, or none was found.
    """
    check_instance("task", task, ShardingTask)
    tables, devices = task.num_tables, task.num_devices
    if np.shape(costs) != (tables, devices) or not np.isfinite(costs).all():
        raise InputError(f"costs: expected finite numbers of shape {(tables, devices)}, got shape {np.shape(costs)}")
    costs = quantized(costs)
    sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.int64)
    memory = np.array(task.capacity_bytes, dtype=np.int64)
    cheapest: Ints = np.argmin(costs, axis=1)
    if _fits(cheapest, sizes, memory):
        return cheapest
    # One variable per table and device, table after table; rows: each table once, then memory.
    places = np.arange(tables * devices)
    scale = _SCALE / float(memory.max())
    values = np.concatenate([np.ones(tables * devices), np.repeat(sizes * scale, devices)])
    rows = np.concatenate([places // devices, tables + places % devices])
    matrix = csr_array((values, (rows, np.concatenate([places, places]))))
    upper = np.concatenate([np.ones(tables), memory * scale])
    lower = np.concatenate([np.ones(tables), np.full(devices, -np.inf)])
    # Only differences on a table matter.
    excess = costs - costs.min(axis=1, keepdims=True)
    scaled = excess / (float(excess.max()) or 1.0) * _SCALE
    found = milp(
        scaled.ravel(), integrality=np.ones(len(places)), bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, lower, upper), options={"mip_rel_gap": 0.0, "node_limit": _NODES},
    )  # fmt: skip
    if found.x is not None:
        assigned: Ints = found.x.reshape(tables, devices).argmax(axis=1)
        if _fits(assigned, sizes, memory):
            return assigned
    raise NoFeasiblePlanError("no assignment of whole tables that fits into memory was found")


def _fits(assigned: Ints, sizes: Ints, memory: Ints) -> bool:
    used = np.zeros(len(memory), dtype=np.int64)
    np.add.at(used, assigned, sizes)
    return bool((used <= memory).all())
