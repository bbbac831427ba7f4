"""FbgemmCost as a whole, on tasks that take milliseconds, and how it lives through failing workers."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from shardgym.costs import make_cost
from shardgym.costs.fbgemm.jobs import HOST_WAITED, ShardSet, StepTimes, TimingJob
from shardgym.costs.fbgemm.machine import usable_cores
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.errors import InputError, MeasurementError
from shardgym.plan import Shard, ShardingPlan
from shardgym.table import EmbeddingTable, RecordedIds
from shardgym.task import ShardingTask
from shardgym.topology import Topology

pytestmark = pytest.mark.measured

A, B, C = EmbeddingTable("a", 1000, 16, 5.0), EmbeddingTable("b", 500, 8, 3.0), EmbeddingTable("c", 200, 4, 1.0)
QUICK = {"rounds": 2, "warmups": 0, "iterations": 2}


def task(tables=(A, B, C), devices=2, **changes):
    topology = Topology(num_devices=devices, memory_bytes=2**60)
    return ShardingTask(**{"tables": tables, "topology": topology, "batch_size": 64, **changes})


TASK = task()
APART, TOGETHER = ShardingPlan.table_wise(TASK, [0, 1, 1]), ShardingPlan.table_wise(TASK, [0, 0, 0])


@pytest.fixture(scope="module")
def cost():
    with make_cost("fbgemm", **QUICK) as model:
        yield model


def test_every_device_gets_four_times_and_an_empty_one_no_compute(cost):
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert apart.per_device.shape == (2, 5)
    assert (apart.per_device[:, 1:] > 0).all()
    assert not apart.per_device[:, 0].any()  # version 1 exchanges no ids
    assert (together.per_device[:, 2:4] > 0).all()
    assert together.per_device[1, [1, 4]].tolist() == [0, 0]
    assert np.isfinite(together.total_ms)


class ToyPool:
    """Times of 1 ms; in the second round, those of the table `a` include waiting."""

    def facts(self):
        return {"hardware": "cuda-toy"}

    def run(self, jobs, ahead=0):
        seen = set()
        for job in jobs:
            waited = job.shard_set in seen and any(shard.table.name == "a" for shard in job.shard_set.shards)
            seen.add(job.shard_set)
            yield job, StepTimes(np.ones((job.iterations, 2)), (HOST_WAITED,) if waited else ())

    def close(self):
        """There is nothing to end."""


def test_a_plan_says_when_times_of_its_devices_include_waiting_for_the_host():
    other = task(tables=(B, C))
    with make_cost("fbgemm", comm="modelled", **QUICK) as cost:
        cost._pool = ToyPool()
        apart, together = cost.evaluate(TASK, [APART, TOGETHER])
        (without,) = cost.evaluate(other, [ShardingPlan.table_wise(other, [0, 1])])
    assert [note for note in apart.notes if "waited" in note] == [HOST_WAITED]
    assert [note for note in together.notes if "waited" in note] == [HOST_WAITED]
    assert not [note for note in without.notes if "waited" in note]


def test_a_cost_says_how_it_came_about(cost):
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert (apart.compute, apart.communication, apart.repeats) == ("measured", "measured", 4)
    assert apart.hardware == cost.hardware
    assert apart.session == together.session != cost.evaluate(TASK, [APART])[0].session
    assert 0 <= apart.noise < 10


def test_column_and_row_shards_are_measured(cost):
    shards = [Shard("a", (0, 300), (0, 16), 0), Shard("a", (300, 1000), (0, 4), 0)]
    shards += [Shard("a", (300, 1000), (4, 16), 1), Shard.whole(B, 1), Shard.whole(C, 1)]
    (measured,) = cost.evaluate(TASK, [ShardingPlan.of(TASK, shards)])
    assert measured.reason is None
    assert (measured.per_device[:, [1, 4]] > 0).all()


def test_equal_contents_are_measured_once_and_give_equal_times(cost):
    swapped = ShardingPlan.table_wise(TASK, [1, 0, 0])
    one, other = cost.evaluate(TASK, [APART, swapped])
    assert one.per_device[:, [1, 4]].tolist() == other.per_device[::-1, [1, 4]].tolist()


def test_an_infeasible_plan_costs_infinity_and_no_measurement(cost):
    missing = ShardingPlan.of(TASK, [Shard.whole(A, 0), Shard.whole(B, 0)])
    costs = cost.evaluate(TASK, [missing, APART])
    assert "table 'c'" in costs[0].reason
    assert (costs[0].compute, costs[0].communication) == ("measured", "measured")
    assert costs[1].feasible


def test_the_exchange_is_modelled_where_the_machine_lacks_devices(cost):
    many = task(devices=4 * len(usable_cores()) + 1)
    (modelled,) = cost.evaluate(many, [ShardingPlan.table_wise(many, [0, 1, 2])])
    assert modelled.communication == "modelled"
    assert modelled.notes == ("communication from the link model of 'loopback'",)
    assert modelled.feasible


def test_a_task_for_other_devices_says_what_was_measured_instead(cost):
    topology = Topology(num_devices=2, memory_bytes=2**60, device="a100")
    other = task(topology=topology)
    (measured,) = cost.evaluate(other, [ShardingPlan.table_wise(other, [0, 1, 1])])
    assert measured.notes[0] == f"task is for 'a100' devices; compute was measured on {cost.hardware}"


def test_links_of_the_task_that_play_no_part_are_noted(cost):
    slow = task(topology=Topology(num_devices=2, memory_bytes=2**60, interconnect="wire", intra_bandwidth=1e6))
    (measured,) = cost.evaluate(slow, [ShardingPlan.table_wise(slow, [0, 1, 1])])
    note = f"measured communication is that of {cost.hardware}: the task's links ('wire') play no part"
    assert measured.notes[-1] == note
    with make_cost("fbgemm", **QUICK, comm="modelled") as model:
        (modelled,) = model.evaluate(slow, [ShardingPlan.table_wise(slow, [0, 1, 1])])
    assert modelled.notes == ("communication from the link model of 'wire'",)


def test_one_device_has_nobody_to_exchange_with(cost):
    single = task(devices=1)
    (alone,) = cost.evaluate(single, [ShardingPlan.table_wise(single, [0, 0, 0])])
    assert alone.per_device[:, 2:4].tolist() == [[0, 0]]


def test_the_same_plan_given_twice_has_one_cost(cost):
    first, again = cost.evaluate(TASK, [APART, APART])
    assert first == again


def test_two_workers_share_the_work():
    with make_cost("fbgemm", **QUICK, workers=2, comm="modelled") as model:
        assert all(c.feasible for c in model.evaluate(TASK, [APART, TOGETHER]))
        assert len(set(worker_pids(model))) == 2


def worker_pids(model):
    return [worker.process.pid for worker in model._pool._workers if worker.process is not None]


def signal_while_measuring(monkeypatch, victim, number):
    """Let the worker that is given `victim` stop before it can answer, and send it a signal then."""
    send = ChildProcess.send

    def send_and_signal(self, message):
        chosen = isinstance(message, TimingJob) and message.shard_set == victim
        if chosen:
            os.kill(self.pid, signal.SIGSTOP)
        send(self, message)
        if chosen:
            os.kill(self.pid, number)

    monkeypatch.setattr(ChildProcess, "send", send_and_signal)


def test_a_worker_that_dies_fails_only_its_own_plan_and_is_replaced(cost, monkeypatch):
    cost.evaluate(TASK, [APART])
    before = worker_pids(cost)
    signal_while_measuring(monkeypatch, ShardSet.of(TASK, TOGETHER.on(0)), signal.SIGKILL)
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert together.reason.startswith("could not be measured: device 0: worker was killed by signal 9 (SIGKILL)")
    assert together.total_ms == np.inf
    assert apart.feasible
    monkeypatch.undo()
    assert cost.evaluate(TASK, [TOGETHER])[0].feasible
    assert len(worker_pids(cost)) == 1
    assert worker_pids(cost) != before


def test_a_worker_that_hangs_is_killed_after_the_time_limit(cost, monkeypatch):
    cost.evaluate(TASK, [APART])
    monkeypatch.setattr(cost._pool, "_timeout_s", 3.0)
    signal_while_measuring(monkeypatch, ShardSet.of(TASK, TOGETHER.on(0)), signal.SIGSTOP)
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert "took longer than 3 s" in together.reason
    assert apart.feasible


def test_a_worker_killed_between_evaluations_costs_no_plan(cost):
    cost.evaluate(TASK, [APART])
    (before,) = worker_pids(cost)
    os.kill(before, signal.SIGKILL)
    assert cost.evaluate(TASK, [APART])[0].feasible
    assert worker_pids(cost) != [before]


def test_a_worker_that_dies_after_its_last_answer_costs_no_plan(cost, monkeypatch):
    cost.evaluate(TASK, [APART])
    send, killed = ChildProcess.send, []

    def kill_once_and_send(self, message):
        if isinstance(message, TimingJob) and not killed:
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)
            while not self.dead:
                time.sleep(0.01)
        send(self, message)

    monkeypatch.setattr(ChildProcess, "send", kill_once_and_send)
    assert cost.evaluate(TASK, [APART])[0].feasible
    assert killed
    assert killed != worker_pids(cost)


def test_a_table_larger_than_memory_is_refused_with_bytes_and_the_worker_lives_on(cost):
    cost.evaluate(TASK, [APART])
    before = worker_pids(cost)
    enormous = task(tables=(EmbeddingTable("enormous", 2**36, 64),), devices=1)
    (refused,) = cost.evaluate(enormous, [ShardingPlan.table_wise(enormous, [0])])
    assert f"needs {2**36 * 64 * 4}"[:12] in refused.reason
    assert "bytes are available" in refused.reason
    assert worker_pids(cost) == before


def test_recorded_ids_that_are_not_there_fail_the_plan_with_the_remedy(cost, monkeypatch):
    monkeypatch.delenv("SHARDGYM_DATA", raising=False)
    recorded = RecordedIds(file="absent.pt", table_index=0, batch_size=64, sha256="0" * 64)
    lost = task(tables=(EmbeddingTable("r", 10, 4, 1.0, recorded),), devices=1)
    (refused,) = cost.evaluate(lost, [ShardingPlan.table_wise(lost, [0])])
    assert "absent.pt" in refused.reason
    assert "SHARDGYM_DATA" in refused.reason


def test_an_optimiser_without_cpu_kernel_is_bad_input(cost):
    adam = task(optimizer="adam")
    with pytest.raises(InputError, match="no CPU kernel"):
        cost.evaluate(adam, [ShardingPlan.table_wise(adam, [0, 0, 1])])


def test_a_closed_model_starts_again(cost):
    cost.close()
    assert worker_pids(cost) == []
    assert cost.evaluate(TASK, [APART])[0].feasible


def test_a_broken_fbgemm_is_one_clear_line(tmp_path, monkeypatch):
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('fbgemm_gpu_py.so: undefined symbol: _ZN5torch')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with make_cost("fbgemm", **QUICK) as model, pytest.raises(MeasurementError) as caught:
        model.evaluate(TASK, [APART])
    assert "undefined symbol" in str(caught.value)
    assert "torch" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_facts_name_versions_and_hardware(cost):
    facts = cost.facts()
    assert facts["hardware"] == cost.hardware
    assert {"torch"} < set(facts["versions"])


def test_cuda_without_a_gpu_is_bad_input():
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with make_cost("fbgemm", **QUICK, device="cuda") as model, pytest.raises(InputError, match="no CUDA device"):
        model.facts()


SCRIPT = """
    from shardgym.costs import make_cost
    from tests_of_this_module import APART, QUICK, TASK, worker_pids
    cost = make_cost("fbgemm", **QUICK)
    cost.facts()
    print(*worker_pids(cost), flush=True)
    while True:
        cost.evaluate(TASK, [APART])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_its_parent(number, tmp_path):
    (tmp_path / "tests_of_this_module.py").write_text(Path(__file__).read_text())
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "script.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        # A job in the background inherits an ignored SIGINT; a terminal's foreground job does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    worker = int(parent.stdout.readline())
    time.sleep(0.3)
    if number == signal.SIGINT:
        os.killpg(parent.pid, number)  # as a terminal does: the worker gets it too
    else:
        parent.send_signal(number)
    assert parent.wait(timeout=20) != 0
    parent.stdout.close()
    deadline = time.monotonic() + 10
    while _runs(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _runs(worker)


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
