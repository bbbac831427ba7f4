"""Workers that are given jobs ahead of time: order, and who is to blame when one dies or hangs."""

import os
import signal
from contextlib import closing

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
    pool = WorkerPool("cpu", 1, 0, 60.0)
    yield pool
    pool.close()


@pytest.mark.parametrize("ahead", [0, 1, 3, 9])
def test_all_jobs_are_done_in_order(pool, ahead):
    done = list(pool.run(iter(JOBS), ahead))
    assert [done_job for done_job, _ in done] == JOBS
    assert all(found.times.shape == (1, 2) for _, found in done)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_jobs_are_drawn_only_as_far_ahead_as_asked(pool, ahead):
    drawn = []
    with closing(pool.run((drawn.append(j) or j for j in JOBS), ahead)) as outcomes:
        for done in range(1, 4):
            next(outcomes)
            assert len(drawn) == done + ahead


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


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_job_that_a_worker_dies_of_is_the_only_one_that_fails(pool, monkeypatch, ahead):
    """The first job of a run is sent to a worker that has nothing to do, so it is the one that is worked on."""
    stop_and_signal(monkeypatch, JOBS[0], signal.SIGKILL)
    outcomes = dict(pool.run(iter(JOBS), ahead))
    assert "SIGKILL" in outcomes[JOBS[0]]
    assert [j for j in JOBS if isinstance(outcomes[j], str)] == JOBS[:1]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_job_that_hangs_is_the_only_one_that_fails(monkeypatch, ahead):
    pool = WorkerPool("cpu", 1, 0, 60.0)
    try:
        pool.facts()
        monkeypatch.setattr(pool, "_timeout_s", 3.0)
        stop_and_signal(monkeypatch, JOBS[0], signal.SIGSTOP)
        outcomes = dict(pool.run(iter(JOBS), ahead))
    finally:
        pool.close()
    assert "took longer than 3 s" in outcomes[JOBS[0]]
    assert [j for j in JOBS if isinstance(outcomes[j], str)] == JOBS[:1]


def test_a_run_that_is_broken_off_leaves_nothing_for_the_next(pool):
    with closing(pool.run(iter(JOBS), 3)) as outcomes:
        next(outcomes)
    assert [done for done, _ in pool.run(iter(JOBS[:2]), 1)] == JOBS[:2]


def test_a_pool_that_nobody_holds_ends_its_workers():
    pool = WorkerPool("cpu", 1, 0, 60.0)
    pool.facts()
    pid = pool._workers[0].process.pid
    del pool
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
