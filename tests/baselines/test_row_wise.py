"""Rows cut evenly over all devices: where that pays, never where it does not, and so that TorchRec takes the plans."""

import dataclasses

import pytest
from baseline_tasks import task_of

from neuroshard.plus.solver import RowWise
from shardgym import NoFeasiblePlanError, make_cost, make_solver

RATING = make_cost("torchrec_rating")
PLUS = make_solver("neuroshard_plus", kicks=4, sharding_types=[])
SOLVER = RowWise(kicks=4)


def rows_of(task, plan):
    """Shards by rows of every table that is cut so."""
    cut = [shard for shard in plan.shards if shard.num_rows < task.table(shard.table).num_embeddings]
    return {name: [s.rows for s in cut if s.table == name] for name in {s.table for s in cut}}


def rating_ms(task, solver):
    return RATING.evaluate(task, [solver.solve(task, RATING)])[0].total_ms


def test_a_hot_table_is_cut_by_rows_and_the_others_stay():
    task = task_of([(1001, 64, 300.0), *[(1000, 128, 1.0)] * 8], (2**30,) * 4)
    plan = SOLVER.solve(task, RATING)
    plan.validate(task)
    assert rows_of(task, plan) == {"t0": [(0, 251), (251, 502), (502, 753), (753, 1001)]}
    assert [shard.devices[0] for shard in plan.shards if shard.table == "t0"] == [0, 1, 2, 3]
    assert rating_ms(task, SOLVER) < 0.8 * rating_ms(task, PLUS)


def test_a_table_that_only_rows_make_fit():
    """Four columns are the narrowest piece, and take more than a device has."""
    task = task_of([(1000, 4, 1.0), (10, 4, 1.0)], (8_400, 8_400))
    with pytest.raises(NoFeasiblePlanError):
        PLUS.solve(task, RATING)
    plan = SOLVER.solve(task, RATING)
    plan.validate(task)
    assert set(rows_of(task, plan)) >= {"t0"}
    tight = dataclasses.replace(task, topology=dataclasses.replace(task.topology, memory_bytes=(16_200, 100)))
    assert "t0" not in rows_of(tight, SOLVER.solve(tight, RATING))


@pytest.mark.torchrec
def test_torchrec_takes_its_plans():
    pytest.importorskip("torchrec", reason="needs TorchRec")
    from shardgym.torchrec import from_torchrec, to_torchrec

    task = task_of([(1000, 64, 300.0), *[(1000, 128, 1.0)] * 8], (2**30,) * 4)
    plan = SOLVER.solve(task, RATING)
    exported = to_torchrec(plan, task)
    assert exported.plan[""]["t0"].sharding_type == "row_wise"
    assert from_torchrec(exported, task) == plan
