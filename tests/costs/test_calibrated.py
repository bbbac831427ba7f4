"""A cost at the level of a cluster: compute, exchanges and the fixed part of a step."""

import dataclasses
import json

import numpy as np
import pytest

from shardgym import EmbeddingTable, InputError, Shard, ShardingPlan, ShardingTask, Topology, make_cost, make_solver
from shardgym.costs.calibrated import CalibratedCost, Calibration
from shardgym.plans.migration import rebound

LEVELS = Calibration("roofline", "cpu-core", "cpu-x", compute=2.0, exchange=3.0, fixed_ms=5.0)


def task_and_plans(topology):
    """Four tables, whole, and with rows cut, a copy everywhere, and columns cut."""
    tables = tuple(EmbeddingTable(f"t{n}", 4000 * (n + 1), 32, pooling_factor=4.0 * (n + 1)) for n in range(4))
    task = ShardingTask(tables, topology, 4096)
    rows = [Shard("t3", (4000 * n, 4000 * n + 4000), (0, 32), (n,)) for n in range(4)]
    columns = [Shard("t2", (0, 12_000), (0, 16), (1,)), Shard("t2", (0, 12_000), (16, 32), (2,))]
    mixed = [*rows, *columns, Shard.whole(tables[0], 0, 1, 2, 3), Shard.whole(tables[1], 3)]
    return task, [ShardingPlan.table_wise(task, [0, 1, 2, 3]), ShardingPlan.of(task, mixed)]


def test_compute_exchanges_and_the_rest_have_levels_of_their_own():
    task, plans = task_and_plans(Topology(4, (2**30,) * 4, fast_domain_size=2, inter_bandwidth=1e8))
    ours = task.topology
    # The same where links are slower by the ratio of both levels.
    slower = dataclasses.replace(
        ours, intra_bandwidth=ours.intra_bandwidth / 1.5, inter_bandwidth=ours.inter_bandwidth / 1.5,
        intra_latency_ms=ours.intra_latency_ms * 1.5, inter_latency_ms=ours.inter_latency_ms * 1.5,
    )  # fmt: skip
    other = dataclasses.replace(task, topology=slower)
    expected = make_cost("roofline").evaluate(other, [rebound(plan, other) for plan in plans])
    cost = CalibratedCost(make_cost("roofline"), LEVELS)
    for found, one in zip(cost.evaluate(task, plans), expected, strict=True):
        levelled = 2.0 * one.per_device + np.array([0.0, 0.0, 5.0, 0.0, 0.0])
        np.testing.assert_allclose(found.per_device, levelled, rtol=1e-12)
        assert (found.cost, found.hardware) == ("calibrated", "cpu-x-modelled")


@pytest.mark.parametrize(("name", "preset"), [("roofline", "cpu"), ("gpu", "dgx-a100")])
def test_levels_of_one_change_nothing_and_searches_find_the_same(name, preset):
    task, plans = task_and_plans(Topology.preset(preset, 4))
    base = make_cost(name)
    cost = CalibratedCost(base, Calibration(name, task.topology.device, "x", 1.0, 1.0, 0.0))
    for found, one in zip(cost.evaluate(task, plans), base.evaluate(task, plans), strict=True):
        np.testing.assert_allclose(found.per_device, one.per_device, rtol=1e-12)
        assert found.notes == one.notes
    solver = make_solver("neuroshard_plus")
    assert solver.solve(task, cost) == solver.solve(task, base)


def test_a_calibration_is_of_a_cost_and_of_devices(tmp_path):
    task, plans = task_and_plans(Topology.preset("dgx-a100", 4))
    with pytest.raises(InputError, match="calibration: made for cost 'roofline', got cost 'gpu'"):
        CalibratedCost(make_cost("gpu"), LEVELS)
    with pytest.raises(InputError, match="calibration: made for 'cpu-core', the task is for 'a100'"):
        CalibratedCost(make_cost("roofline"), LEVELS).evaluate(task, plans)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"calibration": LEVELS.to_dict()}))
    assert Calibration.of_result(path) == LEVELS
    path.write_text(json.dumps({"calibration": None}))
    with pytest.raises(InputError, match="expected a result of 'shardgym compare' with a calibration"):
        Calibration.of_result(path)
