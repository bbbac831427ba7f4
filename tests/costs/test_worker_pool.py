"""The process that times kernels: order, and which job is to blame when it dies or hangs."""

import os
import signal

import pytest

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.fbgemm.process import ChildProcess
from shardgym.tables.table import EmbeddingTable

pytestmark = pytest.mark.measured


def job(number):
    table = EmbeddingTable(f"t{number}", 100 + number, 4, 1.0)
    return TimingJob(ShardSet((ShardSpec(table, (0, table.num_embeddings), 4),), 8, "fp32", "exact_sgd"), 0, 1)


JOBS = [job(number) for number in range(6)]


@pytest.fixture(scope="module")
def pool():
    pool = WorkerPool("cpu", 0, 60.0)
    yield pool
    pool.close()


def test_all_jobs_are_done_in_order_and_drawn_when_their_turn_comes(pool):
    drawn = []
    for number, (done, found) in enumerate(pool.run(drawn.append(j) or j for j in JOBS)):
        assert found.times.shape == (1, 2)
        assert [*drawn[:-1], done] == JOBS[: number + 1]


def stop_and_signal(monkeypatch, victim, number):
    """Send the worker a signal when it is given `victim`, before it can answer."""
    send = ChildProcess.send

    def send_and_signal(self, message):
        if message == victim:
            os.kill(self.pid, signal.SIGSTOP)
        send(self, message)
        if message == victim:
            os.kill(self.pid, number)

    monkeypatch.setattr(ChildProcess, "send", send_and_signal)


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSTOP, "took longer than 3 s")])
def test_the_job_that_a_process_dies_of_or_hangs_in_is_the_only_one_that_fails(pool, monkeypatch, number, reason):
    pool.facts()
    stop_and_signal(monkeypatch, JOBS[0], number)
    monkeypatch.setattr(pool, "_timeout_s", 3.0)
    outcomes = dict(pool.run(iter(JOBS[:3])))
    assert reason in outcomes[JOBS[0]]
    assert [j for j in JOBS[:3] if isinstance(outcomes[j], str)] == JOBS[:1]


def test_a_pool_that_nobody_holds_ends_its_workers():
    pool = WorkerPool("cpu", 0, 60.0)
    pool.facts()
    pid = pool._processes[0].pid
    del pool
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
