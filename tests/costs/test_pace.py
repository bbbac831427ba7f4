"""The pace of a machine: fixed work, timed again now and then, over what it takes at pace 1."""

import dataclasses

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.fbgemm import pace
from shardgym.costs.fbgemm.jobs import ReferenceJob
from shardgym.costs.fbgemm.pace import Pace, shipped_reference, time_reference


class Group:
    """Devices that take so many times what the reference says, and a third round as long once in a while."""

    def __init__(self, factor):
        self.factor = factor
        self.asked: list[ReferenceJob] = []

    def ask(self, job):
        self.asked.append(job)
        return [[self._times(own) for own in of_rank] for of_rank in job.of_ranks]

    def _times(self, job):
        number = min(int(shard.table.name.removeprefix("reference-")) for shard in job.shard_set.shards) // 5
        ms = self.factor * shipped_reference().compute_ms[number]
        times = np.tile([0.25 * ms, 0.75 * ms], (job.iterations, 1))
        times[-1] *= 3  # somebody else had the core
        return times


@pytest.mark.parametrize("devices", [1, 3, 8, 16])
def test_all_shard_sets_of_the_reference_are_timed_on_any_number_of_devices(devices):
    group = Group(1.5)
    np.testing.assert_allclose(time_reference(group, devices), 1.5 * np.array(shipped_reference().compute_ms))
    job = group.asked[0]
    assert len(job.of_ranks) == devices
    assert len({own.shard_set for of_rank in job.of_ranks for own in of_rank}) == 12


def test_the_pace_of_a_run_is_the_median_of_the_last_times_and_is_looked_at_once_a_minute(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: now[0])
    group = Group(1.5)
    found = Pace(group, 4)
    assert found.now() == pytest.approx(1.5)
    asked = len(group.asked)
    group.factor = 2.0
    now[0] += 50
    found.now()
    assert len(group.asked) == asked
    paces = []
    for _ in range(9):
        now[0] += 61
        paces.append(found.now())
    assert paces[0] == pytest.approx(1.5)
    assert paces[-1] == pytest.approx(2.0)


@pytest.mark.measured
def test_a_measured_cost_has_its_pace_and_can_be_taken_to_that_of_predictions():
    tables = tuple(EmbeddingTable(f"t{n}", 1000, 16, 3.0) for n in range(3))
    task = ShardingTask(tables=tables, topology=Topology(num_devices=2, memory_bytes=2**40), batch_size=512)
    with make_cost("fbgemm", device="cpu", rounds=2, warmups=1, iterations=1, comm="modelled") as cost:
        (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1, 1])])
        ((_, of_group),) = cost._groups.values()
    assert found.pace == of_group.now() != 1.0
    np.testing.assert_allclose(found.at_pace(1.0).per_device * found.pace, found.per_device)
    assert found.at_pace(1.0).pace == 1.0
    (predicted,) = make_cost("simulator").evaluate(task, [ShardingPlan.table_wise(task, [0, 1, 1])])
    assert predicted.at_pace(2.0) == dataclasses.replace(predicted, per_device=2 * predicted.per_device, pace=2.0)
