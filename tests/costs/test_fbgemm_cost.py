"""FbgemmCost as a whole, on tasks that take milliseconds, and how it lives through failing processes."""

import dataclasses
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from shardgym import EmbeddingTable, PlanCost, RecordedIds, Shard, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.costs.fbgemm import cost as cost_module
from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.cost import device_notes, why_not_measured
from shardgym.costs.fbgemm.jobs import HOST_WAITED, StepTimes
from shardgym.costs.fbgemm.step import PARTS, RankSteps, StepJob
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.fbgemm.workers import Workers
from shardgym.costs.link_model import shipped_model
from shardgym.errors import InputError, MeasurementError, MissingDependencyError
from shardgym.processes import Child

A, B, C = EmbeddingTable("a", 1000, 16, 5.0), EmbeddingTable("b", 500, 8, 3.0), EmbeddingTable("c", 200, 4, 1.0)
QUICK = {"rounds": 2, "warmups": 0, "iterations": 2}


def task(tables=(A, B, C), devices=2, **changes):
    topology = Topology(num_devices=devices, memory_bytes=2**60, intra_bandwidth=4e9, inter_bandwidth=4e9)
    return ShardingTask(**{"tables": tables, "topology": topology, "batch_size": 64, **changes})


TASK = task()
APART, TOGETHER = ShardingPlan.table_wise(TASK, [0, 1, 1]), ShardingPlan.table_wise(TASK, [0, 0, 0])
DOMAINS = task(topology=Topology(num_devices=4, memory_bytes=2**60, fast_domain_size=2, inter_bandwidth=4e9))


@pytest.fixture(scope="module")
def cost():
    """One group of two processes, and one of four."""
    with make_cost("fbgemm", **QUICK) as model:
        yield model


@pytest.mark.parametrize(("device", "extra"), [("cpu", "cpu"), ("cuda", "gpu")])
def test_a_missing_fbgemm_names_the_extra(monkeypatch, device, extra):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=rf"shardgym\[{extra}\]"):
        make_cost("fbgemm", device=device)


def test_settings_make_the_same_model_again_and_survive_pickling(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    model = make_cost("fbgemm", rounds=3, comm="modelled")
    assert make_cost("fbgemm", **model.settings()).settings() == model.settings()
    assert pickle.loads(pickle.dumps(model)).settings() == model.settings()


@pytest.mark.parametrize(
    ("device", "hardware", "is_noted"),
    [
        ("cpu-core", "cpu-amd-epyc-8c", False), ("a100", "cpu-amd-epyc-8c", True), ("h200", "cuda-nvidia-h200", False),
        ("cpu-core", "cuda-nvidia-h200", True),
    ],
)  # fmt: skip
def test_compute_on_other_hardware_than_the_tasks_is_noted(toy_task, device, hardware, is_noted):
    other = dataclasses.replace(toy_task, topology=dataclasses.replace(toy_task.topology, device=device))
    note = f"task is for '{device}' devices; compute was measured on {hardware}"
    assert device_notes(other, hardware) == ((note,) if is_noted else ())


@pytest.mark.measured
def test_plans_are_measured_together_and_say_how(cost):
    missing = ShardingPlan.of(TASK, [Shard.whole(A, 0), Shard.whole(B, 0)])
    unmeasured, apart, together = cost.evaluate(TASK, [missing, APART, TOGETHER])
    assert "table 'c'" in unmeasured.reason
    assert (apart.per_device > 0).all()
    # Whoever comes first in the backward exchange waits for the other.
    assert (apart.per_device[:, 3] > shipped_model().start_ms + shipped_model().peer_ms).all()
    for measured in (apart, together):
        assert measured.per_device.shape == (2, 5)
        assert measured.total_ms == measured.per_device.sum(axis=1).max()
        assert (measured.compute, measured.communication, measured.repeats) == ("measured", "modelled", 4)
        assert 0 <= measured.noise < 10
        assert PlanCost.from_json(measured.to_json()) == measured
    assert apart.session == together.session
    assert apart.hardware == cost.hardware == cost._groups[2, 2, None][0].facts[0]["hardware"]
    assert "CPU time" in apart.notes[0]
    assert "modelled for links of 'ethernet' with 4e+09 bytes/s" in apart.notes[1]


@pytest.mark.measured
def test_all_ways_of_exchange_make_a_step(cost):
    """`a` is cut by rows over all devices, `b` within a domain, `c` is replicated."""
    problem = dataclasses.replace(DOMAINS, optimizer="adagrad", precision="fp16")
    shards = [Shard("a", (250 * d, 250 * d + 250), (0, 16), d) for d in range(4)]
    shards += [Shard("b", (0, 100), (0, 8), 2), Shard("b", (100, 500), (0, 8), 3), Shard.whole(C, 0, 1, 2, 3)]
    (mixed,) = cost.evaluate(problem, [ShardingPlan.of(problem, shards)])
    assert (mixed.per_device > 0).all()
    # Two exchanges more each way, and an all-reduce; the exchange of whole tables there is none of.
    start_ms = shipped_model().start_ms
    assert (mixed.per_device[:, 2] > 3 * start_ms).all()
    assert (mixed.per_device[:, 3] > 5 * start_ms).all()


def test_replicas_in_groups_and_tiers_are_refused_with_the_reason(cost):
    rest = [Shard.whole(B, 0, 1, 2, 3), Shard.whole(C, 0, 1, 2, 3)]
    grouped = ShardingPlan.of(DOMAINS, [Shard.whole(A, 0, 2), *rest], group_size=2)
    tiers = ShardingPlan.of(DOMAINS, [Shard.whole(A, 0, 2), *rest])
    reasons = [found.reason for found in cost.evaluate(DOMAINS, [grouped, tiers])]
    assert "does not support 2D parallelism, but the plan has group_size 2:" in reasons[0]
    assert reasons[1].startswith("table 'a' is in tiers")


def test_links_that_no_process_can_have_are_not_measured():
    with make_cost("fbgemm", comm="measured") as strict, pytest.raises(InputError, match="links of 4e"):
        strict.evaluate(TASK, [APART])
    slow = Topology(num_devices=4, memory_bytes=1, fast_domain_size=2, intra_bandwidth=1e8, inter_bandwidth=5e6)
    assert why_not_measured(slow).startswith("the task has links of 5e+06 bytes/s")


@pytest.mark.measured
@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_devices_leave_exchanges_when_the_widest_one_is_through():
    """Narrow devices leave the exchange of pooled values, and that of gradients, when the widest one does."""
    tables = tuple(EmbeddingTable(f"t{width}", 50, width, 1.0) for width in (4, 64, 512))
    links = Topology(num_devices=3, memory_bytes=2**60, intra_bandwidth=0.25e9, inter_bandwidth=0.25e9)
    problem = task(tables=tables, topology=links, batch_size=2048)
    with make_cost("fbgemm", rounds=3, warmups=1, iterations=3) as cost:
        (measured,) = cost.evaluate(problem, [ShardingPlan.table_wise(problem, [0, 1, 2])])
    assert measured.communication == "measured"
    assert "tcp_wmem 4096 32768 32768" in measured.notes[1]
    # All wait for the widest device, whose link has 512 columns of two thirds of the samples to pass.
    widest_ms = 4 * 512 * 2048 * 2 / 3 / 0.25e9 * 1e3
    clocks = measured.per_device.cumsum(axis=1)
    for exchange in (2, 3):
        assert np.ptp(clocks[:, exchange]) < 0.15 * widest_ms
        assert measured.per_device[2, exchange] > 0.85 * widest_ms


def test_what_cannot_be_measured_on_cpus_is_bad_input(cost):
    many, adam = task(devices=500), task(optimizer="adam")
    with pytest.raises(InputError, match="a process for each of 500 devices"):
        cost.evaluate(many, [ShardingPlan.table_wise(many, [0, 1, 2])])
    with pytest.raises(InputError, match="no CPU kernel"):
        cost.evaluate(adam, [ShardingPlan.table_wise(adam, [0, 0, 1])])


def pids(model):
    return [process.pid for group, _ in model._groups.values() for process in group._processes]


@pytest.mark.measured
def test_jobs_that_are_refused_leave_their_process_alive_and_one_device_has_nobody_to_exchange_with(monkeypatch):
    monkeypatch.delenv("SHARDGYM_DATA", raising=False)
    enormous = task(tables=(EmbeddingTable("enormous", 2**36, 64),), devices=1)
    recorded = RecordedIds("absent.pt", "t000", samples=64, batch_size=64, sha256="0" * 64)
    lost = task(tables=(EmbeddingTable("r", 10, 4, 1.0, recorded),), devices=1)
    single = task(devices=1)
    with make_cost("fbgemm", **QUICK) as cost:
        cost.evaluate(single, [ShardingPlan.table_wise(single, [0, 0, 0])])
        before = pids(cost)
        refused = [cost.evaluate(t, [ShardingPlan.table_wise(t, [0])])[0].reason for t in (enormous, lost)]
        (alone,) = cost.evaluate(single, [ShardingPlan.table_wise(single, [0, 0, 0])])
        assert pids(cost) == before
        assert list(cost._groups) == [(1, 1, None)]  # no link of its own, which would take root
        cost.close()
        assert pids(cost) == []
    assert f"needs {2**36 * 64 * 4}"[:12] in refused[0]
    assert "bytes are available" in refused[0]
    assert "absent.pt" in refused[1]
    assert "SHARDGYM_DATA" in refused[1]
    assert alone.communication == "measured"
    assert alone.total_ms > alone.compute_ms.sum() > 0


@pytest.mark.measured
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "killed by signal 9 (SIGKILL)"), (signal.SIGSTOP, "took longer than 3 s")]
)
def test_a_process_that_dies_or_hangs_fails_its_own_plan_and_all_are_replaced(cost, monkeypatch, number, reason):
    """Processes that are given steps of a plan stop before they can answer, and get a signal then."""
    cost.evaluate(TASK, [APART])
    before = pids(cost)
    send = Child.send

    def send_and_signal(self, message):
        chosen = isinstance(message, StepJob) and message.plan == StepPlan.of(TASK, TOGETHER)
        if chosen:
            os.kill(self.pid, signal.SIGSTOP)
        send(self, message)
        if chosen:
            os.kill(self.pid, number)

    monkeypatch.setattr(Child, "send", send_and_signal)
    monkeypatch.setattr(cost._groups[2, 2, None][0], "_timeout_s", 3.0 if number == signal.SIGSTOP else 60.0)
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert apart.feasible
    assert together.reason.startswith("could not be measured: device ")
    assert reason in together.reason
    assert together.total_ms == np.inf
    assert not set(before[-2:]) & set(pids(cost))


def test_where_links_cannot_be_shaped_settings_say_that_exchanges_are_modelled(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(namespaces, "why_not", lambda: "needs root")
    assert make_cost("fbgemm").settings()["comm"] == "modelled"
    assert make_cost("fbgemm", comm="measured").settings()["comm"] == "measured"
    assert make_cost("fbgemm", device="cuda").settings()["comm"] == "auto"
    monkeypatch.setattr(namespaces, "why_not", lambda: "")
    assert make_cost("fbgemm").settings()["comm"] == "auto"


@pytest.mark.measured
def test_ranks_have_the_cores_of_the_tag_and_meet_in_any_folder(monkeypatch, tmp_path):
    usable = sorted(os.sched_getaffinity(0))
    (tmp_path / "a#b").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a#b"))
    os.sched_setaffinity(0, usable[:1])
    try:
        with make_cost("fbgemm", **QUICK, comm="modelled") as cost:
            (found,) = cost.evaluate(TASK, [APART])
            assert {tuple(os.sched_getaffinity(pid)) for pid in pids(cost)} == {tuple(usable[:1])}
    finally:
        os.sched_setaffinity(0, usable)
    assert found.hardware.endswith("-1c")
    assert [path.name for path in tmp_path.rglob("*")] == ["a#b"]


@pytest.mark.measured
def test_processes_that_measure_have_nothing_of_the_shell_that_chooses_kernels_or_allocators(monkeypatch):
    for name in ("FBGEMM_NO_ASMJIT", "MALLOC_ARENA_MAX", "OF_THE_SHELL"):
        monkeypatch.setenv(name, "1")
    group = Workers("processes_toys", [{"device": "cpu"}], {"FBGEMM_PINNED": "2"}, 60.0, new_interpreters=False)
    asked = ("FBGEMM_NO_ASMJIT", "MALLOC_ARENA_MAX", "OF_THE_SHELL", "FBGEMM_PINNED")
    assert [group.ask(name) for name in asked] == [[None], [None], ["1"], ["2"]]
    at_start = Path(f"/proc/{group._processes[0].pid}/environ").read_text()  # as its libraries found it
    assert "OF_THE_SHELL" in at_start
    assert "MALLOC_ARENA_MAX" not in at_start
    group.close()


@pytest.mark.measured
def test_programs_that_measure_take_turns():
    group = Workers("processes_toys", [{"device": "cpu"}], {}, 60.0, new_interpreters=False)
    with pytest.raises(MeasurementError, match="BlockingIOError"):  # another one's turn
        group.ask("lock")
    assert group.ask(3) == [6]  # nobody's turn
    group.close()


def test_a_broken_fbgemm_is_one_clear_line(tmp_path):
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('fbgemm_gpu_py.so: undefined symbol: _ZN5torch')")
    code = """
import shardgym
task = shardgym.load_suite("tiny-v1")[0]
shardgym.make_cost("fbgemm").evaluate(task, [shardgym.ShardingPlan.table_wise(task, [0] * len(task.tables))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    reason = done.stderr.splitlines()[-1]
    assert "MeasurementError: FBGEMM does not work here" in reason
    assert "undefined symbol" in reason
    assert "doctor" in reason


class ToyWorkers(Workers):
    """Kernels take 1 ms, with a wait in the second round of the table `a`; parts of steps take 1 ms each."""

    def __init__(self, size=1):
        super().__init__("toy", [{"device": "cuda"}] * size, {}, 1.0, new_interpreters=True)
        self.facts = [{"hardware": "cuda-toy", "real_time": True}] * size
        self.seen = set()
        self.batches = []

    def start(self):
        """There is nothing to start."""

    def ask(self, job):
        if isinstance(job, StepJob):
            self.batches.append(job.batches)
            steps = len(job.batches) - job.warmups
            return [RankSteps(np.ones((steps, len(PARTS))), {})] * len(self.facts)
        waited = job.shard_set in self.seen and job.shard_set.shards[0].table.name == "a"
        self.seen.add(job.shard_set)
        return [StepTimes(np.ones((job.iterations, 2)), (HOST_WAITED,) if waited else ())]


@pytest.fixture
def cuda_cost(monkeypatch):
    monkeypatch.setattr(cost_module, "step_ranks", lambda size, *_: ToyWorkers(size))
    monkeypatch.setattr(cost_module, "_visible_gpus", lambda: 2)
    monkeypatch.setattr(cost_module, "require_fbgemm", lambda device: None)
    model = make_cost("fbgemm", device="cuda", **QUICK)
    model._timer = ToyWorkers()
    return model


def test_with_fewer_gpus_kernels_are_timed_alone_and_exchanges_modelled(cuda_cost):
    three = task(devices=3)
    apart, together = (ShardingPlan.table_wise(three, devices) for devices in ([0, 1, 1], [1, 0, 0]))
    replicated = ShardingPlan.of(three, [Shard.whole(A, 0, 1, 2), Shard.whole(B, 0), Shard.whole(C, 1)])
    *found, refused = cuda_cost.evaluate(three, [apart, together, replicated])
    for cost in found:
        assert cost.notes[:2] == (HOST_WAITED, "communication from the link model of 'ethernet'")
        assert cost.communication == "modelled"
        assert not cost.per_device[:, 0].any()  # no ids are exchanged
        assert cost.per_device[:, [1, 4]].tolist() == [[1, 1], [1, 1], [0, 0]]
    assert not cuda_cost.replicas  # so environments do not offer them
    assert refused.reason.startswith("cost 'fbgemm' prices no replicas, but table 'a' is held by devices 0, 1, 2: ")


def test_with_as_many_gpus_as_devices_they_take_complete_steps(cuda_cost, monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    (found,) = cuda_cost.evaluate(TASK, [APART])
    assert found.communication == "measured"
    assert found.per_device.tolist() == [[5, 1, 7, 7, 2]] * 2
    assert found.notes[0] == "complete steps on this machine's GPUs: the task's links are not used"
    assert "NCCL_ALGO=Ring" in found.notes


def test_ids_of_a_plan_do_not_depend_on_what_was_measured_before(cuda_cost):
    cuda_cost.evaluate(TASK, [TOGETHER, APART])
    cuda_cost.evaluate(TASK, [APART])
    ((group, _),) = cuda_cost._groups.values()
    assert sorted(group.batches[:4]) == [(0, 1), (0, 1), (2, 3), (2, 3)]
    assert group.batches[4:] == [(0, 1), (2, 3)]


@pytest.mark.measured
def test_cuda_without_a_gpu_is_bad_input():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with make_cost("fbgemm", **QUICK, device="cuda") as model, pytest.raises(InputError, match="no CUDA device"):
        print(model.hardware)
