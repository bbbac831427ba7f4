"""Complete training steps of all devices on the CPU: their parts, how they add up, and the pace of the machine."""

import dataclasses
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.costs.fbgemm import pace
from shardgym.costs.fbgemm.jobs import ReferenceJob
from shardgym.costs.fbgemm.pace import Pace, shipped_reference, time_reference
from shardgym.costs.fbgemm.step import PARTS, PlanSteps, phases_of
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.link_model import LinkModel

A = EmbeddingTable("a", 1000, 16, 5.0, ZipfIds(s=1.05, lengths="poisson"))
B, C = EmbeddingTable("b", 500, 8, 3.0), EmbeddingTable("c", 200, 4, 1.0)


def task(tables=(A, B, C), devices=2, **changes):
    topology = Topology(num_devices=devices, memory_bytes=2**60)
    return ShardingTask(**{"tables": tables, "topology": topology, "batch_size": 65, **changes})


TASK = task()
APART = ShardingPlan.table_wise(TASK, [0, 1, 1])


@pytest.mark.measured
def test_gradients_are_the_same_normal_numbers_whatever_the_outputs_are():
    import torch

    from shardgym.costs.fbgemm.plan_on_rank import PlanOnRank

    held = PlanOnRank(StepPlan.of(TASK, APART), samples=[2, 1], number=1)
    gradients = held.gradient_like(torch.full((300, 10), 1e30))
    assert torch.equal(held.gradient_like(torch.zeros(300, 10)), gradients)
    assert 0.9 < float(gradients.std()) < 1.1


def test_a_device_enters_an_exchange_when_its_clock_says_so_and_leaves_with_the_last_one(monkeypatch):
    """Two devices, this one with 30 ms of work, the other with 10: it enters 20 ms later, on links half as fast.

    The machine takes half as long for work as one of pace 1, so exchanges do.
    """
    from shardgym.costs.fbgemm import step_rank
    from shardgym.costs.fbgemm.namespaces import ShapedLinks

    times = iter([0.0, 0.03, 0.03, 0.03])
    monkeypatch.setattr(step_rank.time, "thread_time", lambda: next(times))
    began = []

    def agree(tensor, op=None, group=None):
        del op
        if len(tensor) == 2:
            began.append(float(tensor[1]))
            tensor[0] = max(float(tensor[0]), -0.010)
        else:  # the other one is through 7 ms of its clock later
            assert group == "its group"
            tensor += 0.014

    monkeypatch.setattr(step_rank.dist, "all_reduce", agree)
    links = ShapedLinks.of(WIRE, dilation=1.0)
    clock = step_rank.Clock(timed_exchanges=True, links=links, pace=0.5)
    clock.work("forward")
    entered = []
    clock.exchange("output_exchange", lambda: entered.append(time.perf_counter()), [0, 0], "its group")
    assert entered[0] - began[0] >= 0.0399
    assert clock.parts_ms["forward"] == pytest.approx(30)
    assert clock.parts_ms["output_exchange"] >= 7


def steps(**parts):
    """One round of one step on two devices in which the parts named take so many ms on each, others nothing."""
    ms = np.zeros((1, 1, 2, len(PARTS)))
    for name, values in parts.items():
        ms[0, 0, :, PARTS.index(name)] = values
    sent = np.array([[0, 10], [30, 0]])[None, None]
    sent_bytes = {
        "lengths_exchange": 8 * sent, "values_exchange": 16 * sent, "output_exchange": 400 * sent,
        "gradient_exchange": 400 * sent.swapaxes(2, 3),
    }  # fmt: skip
    return PlanSteps(ms, sent_bytes)


WIRE = Topology(num_devices=2, memory_bytes=1, intra_bandwidth=1e6, intra_latency_ms=0.25)


def test_modelled_exchanges_are_priced_by_what_was_sent_and_the_early_device_waits():
    some = steps(group_ids=[1, 0], forward=[3, 8], backward=[9, 4])
    none = LinkModel(0.0, 0.0, 0.0, "toy", 0.0, 0.0, 1)
    free = task(topology=Topology(num_devices=2, memory_bytes=1, intra_latency_ms=0))
    assert phases_of(free, some, none).per_device.tolist() == [[1, 3, 4, 0, 9], [0, 8, 0, 0, 4]]
    links = LinkModel(0.5, 0.25, 1.0, "toy", 0.0, 0.0, 1)
    phases = phases_of(task(topology=WIRE), steps(forward=1, backward=1), links)
    # Busiest direction: 30 lengths and 60 ids of 8 bytes, 3,000 values of 4 bytes; 1,000 bytes take 1 ms.
    np.testing.assert_allclose(phases.per_device[:, 0], 1 + 0.24 + 1 + 0.48)
    np.testing.assert_allclose(phases.per_device[:, 2:4], 1 + 12)
    assert phases.noise == pytest.approx(0)


def test_noise_is_that_of_the_total():
    """The exchange of ids alone varies: where it is hidden, nothing of the total does."""
    calm, odd = (steps(values_exchange=[ms, ms], forward=[3, 8]) for ms in (2, 9))
    some = calm._replace(parts_ms=np.concatenate([calm.parts_ms, odd.parts_ms]))
    assert phases_of(TASK, some, None).noise > 0.1
    assert phases_of(TASK, some, None, ids_hidden=True).noise == 0


def test_timed_exchanges_count_as_they_are():
    some = steps(values_exchange=[3, 2], group_ids=[1, 0], forward=[3, 8], output_exchange=[6, 1], backward=[9, 4])
    assert phases_of(TASK, some, None).per_device.tolist() == [[4, 3, 6, 0, 9], [2, 8, 1, 0, 4]]
    late = phases_of(task(topology=WIRE), some, None, with_latency=True).per_device
    np.testing.assert_allclose(late[:, [0, 2, 3]], [[4.5, 6.25, 0.25], [2.5, 1.25, 0.25]])


@pytest.mark.parametrize("links", [None, LinkModel(0.5, 0.25, 1.0, "toy", 0.0, 0.0, 1)], ids=["timed", "modelled"])
def test_a_machine_of_half_the_pace_takes_twice_as_long_for_all_of_a_step(links):
    problem = task(topology=WIRE)
    fast = steps(group_ids=[1, 0], forward=[3, 8], output_exchange=[6, 1] if links is None else 0, backward=[9, 4])
    slow = fast._replace(parts_ms=2 * fast.parts_ms)
    expected = 2 * phases_of(problem, fast, links, with_latency=links is None).per_device
    found = phases_of(problem, slow, links, pace=2.0, with_latency=links is None).per_device
    np.testing.assert_allclose(found, expected)


def test_a_rank_that_keeps_freed_memory_gets_large_blocks_from_there():
    """In a process of its own, as it depends on what a process has freed before."""
    pytest.importorskip("fbgemm_gpu", reason="needs the extra 'cpu'")
    code = """
import ctypes, torch
from shardgym.costs.fbgemm.step_rank import keep_freed_memory
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info
def mapped_anew(mebibytes):
    before = mallinfo().hblkhd
    block = torch.empty(mebibytes * 2**20, dtype=torch.uint8)
    return mallinfo().hblkhd - before >= mebibytes * 2**20
print(mapped_anew(16), mapped_anew(24))
keep_freed_memory()
print(mapped_anew(30))
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment, text=True)
    assert done.stdout.split() == ["True", "True", "False"]


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
    now[0] += 3600
    group.factor = 1.0
    assert found.now() == pytest.approx(1.0)  # the times before the pause do not count


@pytest.mark.measured
def test_a_measured_cost_has_its_pace_and_can_be_taken_to_that_of_predictions():
    with make_cost("fbgemm", device="cpu", rounds=2, warmups=1, iterations=1, comm="modelled") as cost:
        (found,) = cost.evaluate(TASK, [APART])
        ((_, of_group),) = cost._groups.values()
    assert found.pace == of_group.now() != 1.0
    np.testing.assert_allclose(found.at_pace(1.0).per_device * found.pace, found.per_device)
    assert found.at_pace(1.0).pace == 1.0
    (predicted,) = make_cost("simulator").evaluate(TASK, [APART])
    assert predicted.at_pace(2.0) == dataclasses.replace(predicted, per_device=2 * predicted.per_device, pace=2.0)
