"""FbgemmCost as a whole, on tasks that take milliseconds, and how it lives through failing processes."""

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
from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.cost import why_not_measured
from shardgym.costs.fbgemm.jobs import HOST_WAITED, StepTimes
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.costs.fbgemm.step import StepJob
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.link_model import shipped_model
from shardgym.costs.plan_cost import PlanCost
from shardgym.errors import InputError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.table import EmbeddingTable, RecordedIds
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

pytestmark = pytest.mark.measured

A, B, C = EmbeddingTable("a", 1000, 16, 5.0), EmbeddingTable("b", 500, 8, 3.0), EmbeddingTable("c", 200, 4, 1.0)
QUICK = {"rounds": 2, "warmups": 0, "iterations": 2}


def task(tables=(A, B, C), devices=2, **changes):
    topology = Topology(num_devices=devices, memory_bytes=2**60, intra_bandwidth=4e9, inter_bandwidth=4e9)
    return ShardingTask(**{"tables": tables, "topology": topology, "batch_size": 64, **changes})


TASK = task()
APART, TOGETHER = ShardingPlan.table_wise(TASK, [0, 1, 1]), ShardingPlan.table_wise(TASK, [0, 0, 0])


@pytest.fixture(scope="module")
def cost():
    with make_cost("fbgemm", **QUICK) as model:
        yield model


def test_a_step_has_five_phases_that_the_total_includes(cost):
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert (apart.per_device > 0).all()
    for measured in (apart, together):
        assert measured.per_device.shape == (2, 5)
        assert measured.total_ms == measured.per_device.sum(axis=1).max()
        assert PlanCost.from_json(measured.to_json()) == measured
    assert any("CPU time" in note for note in apart.notes)


class ToyPool:
    """Times of 1 ms; in the second round, those of the table `a` include waiting."""

    def facts(self):
        return {"hardware": "cuda-toy"}

    def run(self, jobs):
        seen = set()
        for job in jobs:
            waited = job.shard_set in seen and any(shard.table.name == "a" for shard in job.shard_set.shards)
            seen.add(job.shard_set)
            yield job, StepTimes(np.ones((job.iterations, 2)), (HOST_WAITED,) if waited else ())

    def close(self):
        """There is nothing to end."""


def test_a_plan_says_when_times_of_its_devices_include_waiting_for_the_host():
    other = task(tables=(B, C))
    with make_cost("fbgemm", device="cuda", comm="modelled", **QUICK) as cost:
        cost._pool = ToyPool()
        apart, together = cost.evaluate(TASK, [APART, TOGETHER])
        (without,) = cost.evaluate(other, [ShardingPlan.table_wise(other, [0, 1])])
    assert [note for note in apart.notes if "waited" in note] == [HOST_WAITED]
    assert [note for note in together.notes if "waited" in note] == [HOST_WAITED]
    assert not [note for note in without.notes if "waited" in note]
    assert not apart.per_device[:, 0].any()  # no ids are exchanged
    assert together.per_device[1, [1, 4]].tolist() == [0, 0]
    assert without.notes[0] == "communication from the link model of 'ethernet'"


def test_a_cost_says_how_it_came_about(cost):
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert (apart.compute, apart.communication, apart.repeats) == ("measured", "modelled", 4)
    assert apart.hardware == cost.hardware
    assert apart.session == together.session != cost.evaluate(TASK, [APART])[0].session
    assert 0 <= apart.noise < 10


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad"])
def test_row_and_column_shards_of_any_optimiser_and_type_make_a_step(cost, optimizer):
    problem = task(optimizer=optimizer, precision="fp16")
    shards = [Shard("a", (0, 300), (0, 16), 0), Shard("a", (300, 1000), (0, 4), 0)]
    shards += [Shard("a", (300, 1000), (4, 16), 1), Shard.whole(B, 1), Shard.whole(C, 1)]
    (measured,) = cost.evaluate(problem, [ShardingPlan.of(problem, shards)])
    assert measured.reason is None
    assert (measured.per_device > 0).all()


def in_domains(**changes):
    topology = Topology(num_devices=4, memory_bytes=2**60, fast_domain_size=2, inter_bandwidth=4e9)
    return task(topology=topology, **changes)


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad"])
def test_all_ways_of_exchange_of_any_optimiser_make_a_step(cost, optimizer):
    """`a` is cut by rows over all devices, `b` within a domain, `c` is replicated."""
    problem = in_domains(optimizer=optimizer)
    shards = [Shard("a", (250 * d, 250 * d + 250), (0, 16), d) for d in range(4)]
    shards += [Shard("b", (0, 100), (0, 8), 2), Shard("b", (100, 500), (0, 8), 3), Shard.whole(C, 0, 1, 2, 3)]
    plan = ShardingPlan.of(problem, shards)
    assert [plan.kind_of(table.name, problem) for table in problem.tables] == [
        "row_wise", "table_row_wise", "data_parallel",
    ]  # fmt: skip
    whole, mixed = cost.evaluate(problem, [ShardingPlan.table_wise(problem, [0, 1, 2]), plan])
    assert whole.reason is mixed.reason is None
    assert (mixed.per_device > 0).all()
    # Two exchanges more each way, and an all-reduce; the exchange of whole tables there is none of.
    start_ms = shipped_model().start_ms
    assert (mixed.per_device[:, 2] > 3 * start_ms).all()
    assert (mixed.per_device[:, 3] > 5 * start_ms).all()


def test_a_plan_of_replicas_alone_exchanges_no_ids(cost):
    replicated = ShardingPlan.of(TASK, [Shard.whole(table, 0, 1) for table in (A, B, C)])
    (measured,) = cost.evaluate(TASK, [replicated])
    assert measured.feasible
    least = shipped_model().start_ms + shipped_model().peer_ms
    assert (measured.per_device[:, 0] < least).all()
    assert (measured.per_device[:, 3] > 2 * least).all()


def test_replicas_in_groups_and_tiers_are_refused_with_the_reason(cost):
    problem = in_domains()
    rest = [Shard.whole(B, 0, 1, 2, 3), Shard.whole(C, 0, 1, 2, 3)]
    grouped = ShardingPlan.of(problem, [Shard.whole(A, 0, 2), *rest], group_size=2)
    tiers = ShardingPlan.of(problem, [Shard.whole(A, 0, 2), *rest])
    reasons = [found.reason for found in cost.evaluate(problem, [grouped, tiers])]
    assert "runs no groups of 2D parallelism, and the plan has groups of 2 devices" in reasons[0]
    assert reasons[1].startswith("table 'a' is in tiers")


def test_on_cuda_replicas_cost_infinity():
    replicated = ShardingPlan.of(TASK, [Shard.whole(A, 0, 1), Shard.whole(B, 0), Shard.whole(C, 1)])
    with make_cost("fbgemm", device="cuda", comm="modelled", **QUICK) as cost:
        cost._pool = ToyPool()
        refused, apart = cost.evaluate(TASK, [replicated, APART])
        assert not cost.replicas  # so environments do not offer them
    assert refused.reason.startswith("cost 'fbgemm' prices no replicas, and table 'a' is held by devices 0, 1: ")
    assert refused.total_ms == np.inf
    assert apart.feasible


def test_an_infeasible_plan_costs_infinity_and_no_measurement(cost):
    missing = ShardingPlan.of(TASK, [Shard.whole(A, 0), Shard.whole(B, 0)])
    costs = cost.evaluate(TASK, [missing, APART])
    assert "table 'c'" in costs[0].reason
    assert (costs[0].compute, costs[0].communication) == ("measured", "modelled")
    assert costs[1].feasible


def test_links_that_no_process_can_have_are_modelled_and_the_notes_say_so(cost):
    (modelled,) = cost.evaluate(TASK, [APART])
    assert any("modelled for links of 'ethernet' with 4e+09 bytes/s" in note for note in modelled.notes)
    # The backward exchange waits for nobody: every device takes what the widest does, and packing on top.
    least = shipped_model().start_ms + shipped_model().peer_ms * (TASK.num_devices - 1)
    assert (modelled.per_device[:, 3] > least).all()
    with make_cost("fbgemm", comm="measured") as strict, pytest.raises(InputError, match="links of 4e"):
        strict.evaluate(TASK, [APART])
    two_rates = Topology(num_devices=4, memory_bytes=1, fast_domain_size=2, intra_bandwidth=1e8, inter_bandwidth=5e7)
    assert "different rates" in why_not_measured(two_rates)


@pytest.mark.skipif(bool(namespaces.why_not()), reason=namespaces.why_not())
def test_links_between_namespaces_take_as_long_as_their_rate_says():
    """2,048 samples of 128 columns: each device sends 0.5 MiB of values, which takes 10.5 and 5.2 ms."""
    wide = EmbeddingTable("wide", 50, 128, 1.0), EmbeddingTable("other", 50, 128, 1.0)
    exchanges = []
    for rate in (0.05e9, 0.1e9):
        links = Topology(num_devices=2, memory_bytes=2**60, intra_bandwidth=rate, inter_bandwidth=rate)
        problem = task(tables=wide, topology=links, batch_size=2048)
        with make_cost("fbgemm", rounds=2, warmups=1, iterations=5) as cost:
            (measured,) = cost.evaluate(problem, [ShardingPlan.table_wise(problem, [0, 1])])
        assert measured.communication == "measured"
        assert any("between network namespaces" in note for note in measured.notes)
        exchanges.append(measured.per_device[:, 3].max())
        # A full token bucket lets pass a quarter of it at once.
        assert exchanges[-1] > 0.5 * 2**19 / rate * 1e3
    assert exchanges[0] > exchanges[1]


def test_a_task_for_other_devices_says_what_was_measured_instead(cost):
    topology = Topology(num_devices=2, memory_bytes=2**60, device="a100")
    other = task(topology=topology)
    (measured,) = cost.evaluate(other, [ShardingPlan.table_wise(other, [0, 1, 1])])
    assert measured.notes[-1] == f"task is for 'a100' devices; compute was measured on {cost.hardware}"


def test_more_devices_than_processes_make_sense_are_refused(cost):
    many = task(devices=500)
    with pytest.raises(InputError, match="a process for each of 500 devices"):
        cost.evaluate(many, [ShardingPlan.table_wise(many, [0, 1, 2])])


def test_one_device_has_nobody_to_exchange_with(cost):
    single = task(devices=1)
    (alone,) = cost.evaluate(single, [ShardingPlan.table_wise(single, [0, 0, 0])])
    assert alone.communication == "measured"
    assert (1, None, 1) in cost._groups  # no link of its own, which would take root
    assert alone.total_ms > alone.compute_ms.sum() > 0


def rank_pids(model):
    return [rank.pid for group in model._groups.values() for rank in group._ranks]


def signal_while_measuring(monkeypatch, victim, number):
    """Let a process that is given steps of `victim` stop before it can answer, and send it a signal then."""
    send = ChildProcess.send

    def send_and_signal(self, message):
        chosen = isinstance(message, StepJob) and message.plan == victim
        if chosen:
            os.kill(self.pid, signal.SIGSTOP)
        send(self, message)
        if chosen:
            os.kill(self.pid, number)

    monkeypatch.setattr(ChildProcess, "send", send_and_signal)


def test_a_process_that_dies_fails_only_its_own_plan_and_is_replaced(cost, monkeypatch):
    cost.evaluate(TASK, [APART])
    before = rank_pids(cost)
    signal_while_measuring(monkeypatch, StepPlan.of(TASK, TOGETHER), signal.SIGKILL)
    apart, together = cost.evaluate(TASK, [APART, TOGETHER])
    assert together.reason.startswith("could not be measured: ")
    assert "was killed by signal 9 (SIGKILL)" in together.reason
    assert together.total_ms == np.inf
    assert apart.feasible
    monkeypatch.undo()
    assert cost.evaluate(TASK, [TOGETHER])[0].feasible
    assert rank_pids(cost) != before


def test_a_process_that_hangs_is_killed_after_the_time_limit(monkeypatch):
    with make_cost("fbgemm", **QUICK, timeout_s=3.0) as hurried:
        hurried.evaluate(TASK, [APART])
        signal_while_measuring(monkeypatch, StepPlan.of(TASK, TOGETHER), signal.SIGSTOP)
        apart, together = hurried.evaluate(TASK, [APART, TOGETHER])
    assert "took longer than 3 s" in together.reason
    assert apart.feasible


def test_a_process_killed_between_evaluations_costs_no_plan(cost):
    cost.evaluate(TASK, [APART])
    before = rank_pids(cost)
    killed = next(rank for group in cost._groups.values() for rank in group._ranks if rank.pid == before[-1])
    os.kill(killed.pid, signal.SIGKILL)
    while not killed.dead:
        time.sleep(0.01)
    assert cost.evaluate(TASK, [APART])[0].feasible
    assert rank_pids(cost) != before


def test_a_table_larger_than_memory_is_refused_with_bytes_and_the_processes_live_on(cost):
    cost.evaluate(TASK, [APART])
    before = rank_pids(cost)
    enormous = task(tables=(EmbeddingTable("enormous", 2**36, 64),))
    (refused,) = cost.evaluate(enormous, [ShardingPlan.table_wise(enormous, [0])])
    assert f"needs {2**36 * 64 * 4}"[:12] in refused.reason
    assert "bytes are available" in refused.reason
    assert rank_pids(cost) == before


def test_recorded_ids_that_are_not_there_fail_the_plan_with_the_remedy(cost, monkeypatch):
    monkeypatch.delenv("SHARDGYM_DATA", raising=False)
    recorded = RecordedIds("absent.pt", "t000", samples=64, batch_size=64, sha256="0" * 64)
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
    assert rank_pids(cost) == []
    assert cost.evaluate(TASK, [APART])[0].feasible


def test_a_broken_fbgemm_is_one_clear_line(tmp_path):
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('fbgemm_gpu_py.so: undefined symbol: _ZN5torch')")
    code = "import shardgym; shardgym.make_cost('fbgemm').facts()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    reason = done.stderr.splitlines()[-1]
    assert "MeasurementError: FBGEMM does not work here" in reason
    assert "undefined symbol" in reason
    assert "doctor" in reason


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
    from tests_of_this_module import APART, QUICK, TASK, rank_pids
    cost = make_cost("fbgemm", **QUICK)
    cost.evaluate(TASK, [APART])
    print(rank_pids(cost)[0], flush=True)
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
