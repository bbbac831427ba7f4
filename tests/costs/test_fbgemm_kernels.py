"""FBGEMM's kernels on the CPU: what shards compute, what is timed, with which ids, in which order."""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, Shard, ShardingTask, Topology, UniformIds, ZipfIds
from shardgym.costs.fbgemm import kernels
from shardgym.costs.fbgemm.jobs import JobError, ShardSet, TimingJob
from shardgym.costs.fbgemm.kernels import CpuBackend, Measurer, fixed_gradient
from shardgym.costs.fbgemm.operator import LEARNING_RATE, RequestMaker, build_operator
from shardgym.costs.fbgemm.step import interleaved, mean_of_medians, relative_error, time_shard_sets
from shardgym.costs.fbgemm.workers import kernel_timer

pytestmark = pytest.mark.measured

A = EmbeddingTable("a", 60, 16, 4.0, ZipfIds(s=1.05, lengths="poisson"))
B = EmbeddingTable("b", 30, 8, 2.0)
BATCH = 12


@pytest.fixture(scope="module")
def backend():
    return CpuBackend()


def task(**changes):
    topology = Topology(num_devices=3, memory_bytes=2**20)
    return ShardingTask(**{"tables": (A, B), "topology": topology, "batch_size": BATCH, **changes})


ON_CUDA = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_CUDA)])
def test_a_lookup_and_its_update_are_those_of_embedding_bag(device):
    table = EmbeddingTable("t", 10_000, 64, 5.0, ZipfIds(s=1.05, lengths="poisson"))
    shard_set = ShardSet.of(task(tables=(table,), batch_size=4096), [Shard.whole(table, 0)])
    operator = build_operator(shard_set, torch.device(device))
    ids = RequestMaker(0, torch.device(device), 2**30).request(shard_set, 0)
    weights = torch.randn(10_000, 64, device=device, requires_grad=True)
    assert operator.split_embedding_weights()[0].all()  # no page is untouched
    operator.split_embedding_weights()[0].copy_(weights.detach())
    pooled = operator(*ids)
    expected = torch.nn.functional.embedding_bag(ids.indices, weights, ids.offsets[:-1], mode="sum")
    torch.testing.assert_close(pooled, expected)
    gradient = fixed_gradient(shard_set, 4096, torch.device(device))
    pooled.backward(gradient)
    expected.backward(gradient)
    updated = weights.detach() - LEARNING_RATE * weights.grad
    torch.testing.assert_close(operator.split_embedding_weights()[0], updated, rtol=1e-4, atol=1e-4)


def test_kernels_run_in_the_calling_thread_so_that_its_clock_sees_them(backend):
    heavy = EmbeddingTable("heavy", 50_000, 64, 40.0)
    shard_set = ShardSet.of(task(tables=(heavy,), batch_size=1000), [Shard.whole(heavy, 0)])
    operator, gradient = build_operator(shard_set), fixed_gradient(shard_set, shard_set.batch_size, backend.device)
    ids = RequestMaker(0, backend.device, 10**8).request(shard_set, 0)
    process, thread = time.process_time_ns(), time.thread_time_ns()
    for _ in range(5):
        backend.step(operator, ids, gradient)
    spent = time.process_time_ns() - process
    assert (time.thread_time_ns() - thread) > 0.95 * spent


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize("pooling", [0.0, 2.0])
def test_every_cpu_optimiser_runs_with_and_without_ids(backend, pooling, optimizer):
    problem = task(tables=(EmbeddingTable("t", 10, 4, pooling),), precision="fp16", optimizer=optimizer)
    job = TimingJob(ShardSet.of(problem, [Shard.whole(problem.tables[0], 0)]), 1, 3)
    times = Measurer(backend, seed=0)(job).times
    assert times.shape == (3, 2)
    assert (times > 0).all()


def test_unpooled_shards_put_out_a_row_for_each_id(backend):
    """As the published kernels without pooling do, whose bags may differ from step to step."""
    table = EmbeddingTable("t", 60, 16, 2.5, UniformIds(lengths="poisson"), pooling="none")
    shard_set = ShardSet.of(task(tables=(table,)), [Shard.whole(table, 0)])
    ids = RequestMaker(0, backend.device, 10**6).request(shard_set, 0)
    assert build_operator(shard_set)(*ids).shape == (len(ids.indices), 16)
    assert Measurer(backend, seed=0)(TimingJob(shard_set, 1, 3)).times.shape == (3, 2)


def test_steps_have_different_ids_and_every_job_the_same(backend):
    seen = []

    class Spy(type(backend)):
        def step(self, operator, ids, gradient):
            seen.append(ids[0].clone())
            return super().step(operator, ids, gradient)

    measure = Measurer(Spy(), seed=0)
    job = TimingJob(ShardSet.of(task(), [Shard.whole(A, 0)]), warmups=1, iterations=2)
    measure(job)
    measure(job)
    assert all(torch.equal(first, again) for first, again in zip(seen[:3], seen[3:], strict=True))
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in [seen[:2], seen[1:3]])


def test_a_job_that_lacks_memory_gets_that_of_kept_ids(backend, monkeypatch):
    measure = Measurer(backend, seed=0)
    job = TimingJob(ShardSet.of(task(), [Shard.whole(A, 0)]), warmups=0, iterations=1)
    measure(job)
    room = iter([0, 10**9, 0, 0])
    monkeypatch.setattr(kernels, "available_bytes", lambda: next(room))
    assert measure(job).times.shape == (1, 2)
    with pytest.raises(JobError, match=r"measuring needs \d+ bytes of memory, 0 bytes are available"):
        measure(job)


def test_the_job_that_a_process_dies_of_is_the_only_one_that_fails(monkeypatch):
    timer = kernel_timer("cpu", 0, 60.0)
    victim, refused, other = (ShardSet.of(task(), [shard]) for shard in
                              (Shard.whole(A, 0), Shard("a", (0, 2**40), (0, 16), 0), Shard.whole(B, 0)))  # fmt: skip
    timer.start()
    first = timer._processes[0]
    send = type(first).send

    def send_and_kill(self, message):
        if message.shard_set == victim:
            os.kill(self.pid, signal.SIGKILL)
        send(self, message)

    monkeypatch.setattr(type(first), "send", send_and_kill)
    effort = {"rounds": 2, "warmups": 0, "iterations": 3, "rng": random.Random(0)}
    samples, failed, _ = time_shard_sets(timer, [refused, other], **effort)
    assert timer._processes == [first]
    assert samples[other].shape == (2, 3, 2)
    assert "measuring needs" in failed[refused]
    samples, failed, _ = time_shard_sets(timer, [victim, other], **effort)
    pid = timer._processes[0].pid
    assert list(samples) == [other]
    assert "SIGKILL" in failed[victim]
    del timer, first  # nobody holds it
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_rounds_cover_everything_in_changing_order_but_what_failed():
    failed = set()
    order = []
    for key in interleaved(range(20), 3, random.Random(0), failed):
        order.append(key)
        if key == 7:
            failed.add(7)
    rounds = order[:20], order[20:39], order[39:]
    assert [sorted(part) for part in rounds] == [list(range(20)), *[[n for n in range(20) if n != 7]] * 2]
    assert rounds[1] != rounds[2]


def test_the_centre_is_the_mean_over_work_of_the_median_over_rounds():
    # Step 0 takes 1, 2, 9 (median 2), step 1 takes 10, 10, 40 (median 10).
    assert mean_of_medians(np.array([[1.0, 10.0], [2.0, 10.0], [9.0, 40.0]])) == pytest.approx(6.0)


def test_noise_is_about_the_standard_error_of_the_total():
    # 25 rounds of a normal time with 10 % spread: the median has about 1.25 * 10 % / 5 = 2.5 %.
    times = np.random.default_rng(0).normal(100, 10, size=25)
    assert relative_error(lambda rows: np.array([[np.median(times[rows])], [1.0]]), 25) == pytest.approx(0.025, rel=0.5)
    assert relative_error(lambda rows: np.zeros((2, 5)), 3) == 0
