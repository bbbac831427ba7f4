"""The cheapest assignment against every assignment."""

import itertools

import numpy as np
import pytest

from baselines.surco.assignment import cheapest_assignment
from shardgym import EmbeddingTable, ShardingTask, Topology
from shardgym.errors import InputError, NoFeasiblePlanError

SHAPES = [(3000, 16, 12.0), (9000, 8, 3.0), (500, 32, 20.0), (20_000, 4, 1.0), (4000, 16, 6.0), (800, 64, 2.0)]


def make_task(memory_bytes):
    tables = tuple(EmbeddingTable(f"t{n}", *shape) for n, shape in enumerate(SHAPES))
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes))
    return ShardingTask(tables, topology, batch_size=512)


@pytest.mark.parametrize("memory", [[2**30] * 3, [600_000, 400_000, 400_000], [500_000, 450_000, 400_000]])
def test_the_cheapest_assignment_is_the_best_of_all(memory):
    task = make_task(memory)
    costs = np.random.default_rng(0).normal(size=(6, 3)) + np.array([0.0, 0.5, 1.0])
    sizes = [task.table_bytes(table) for table in task.tables]

    def added(devices):
        used = np.bincount(devices, weights=sizes, minlength=3)
        return costs[range(6), devices].sum() if (used <= memory).all() else np.inf

    best = min(itertools.product(range(3), repeat=6), key=lambda devices: added(list(devices)))
    assert cheapest_assignment(task, costs).tolist() == list(best)


def test_assignments_that_cannot_be_are_refused():
    task = make_task([300_000, 300_000])
    with pytest.raises(NoFeasiblePlanError, match="no assignment of whole tables"):
        cheapest_assignment(task, np.ones((6, 2)))
    with pytest.raises(InputError, match=r"costs: expected finite numbers of shape \(6, 2\), got shape \(6, 3\)"):
        cheapest_assignment(task, np.ones((6, 3)))
