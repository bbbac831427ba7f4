"""The benchmark of plans under drift: what it counts."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost, make_solver


def tasks():
    topology = dataclasses.replace(Topology.preset("dgx-h100", 4, 2**34), fast_domain_size=2)
    rng = np.random.default_rng(0)
    tables = tuple(
        EmbeddingTable(f"t{n}", 20_000 * int(rng.integers(5, 50)), 32, pooling_factor=float(rng.uniform(1, 60)))
        for n in range(6)
    )
    turned = [table.pooling_factor for table in tables[::-1]]
    later = tuple(dataclasses.replace(t, pooling_factor=f) for t, f in zip(tables, turned, strict=True))
    return [ShardingTask(tables, topology, 65536), ShardingTask(later, topology, 65536)]


def test_jobs_are_compared_with_the_one_that_keeps_its_plan(tool):
    solver = make_solver("neuroshard_plus", kicks=2)
    rows = tool.compared([tasks()], [1], solver, make_cost("gpu"), make_cost("gpu"))
    assert [row["job"] for row in rows] == ["keep", "anew", "migrate"]
    kept, anew, near = rows
    assert (kept["all time / keep"], kept["GiB moved"]) == (1.0, "0.00")
    assert anew["all time / keep"] > 1
    assert anew["ms per step"] < kept["ms per step"]
    assert near["all time / keep"] <= 1


def test_moves_of_a_job_add_up(tool):
    first, second = tasks()
    plans = [ShardingPlan.table_wise(task, devices) for task, devices in ((first, [0] * 6), (second, [1, 2, *[0] * 4]))]
    found = tool.drifted([first, second], plans, make_cost("gpu"))
    inside, between = (table.num_embeddings * 128 for table in first.tables[:2])
    assert (found.moved_bytes, found.inter_bytes) == (inside + between, between)
    assert found.transfer_ms == pytest.approx(between / 50e9 * 1e3)
    assert found.total_ms(10) == pytest.approx(10 * sum(found.step_ms) + found.transfer_ms)
