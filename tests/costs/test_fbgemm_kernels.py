"""FBGEMM's kernels on the CPU: what shards compute, what is timed, with which ids, in which order.

And the GPU's way of measuring on the same kernels: a stand-in for `torch.cuda` has its own memory and clock.
"""

import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from cuda_toys import Gpu, Torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardgym import EmbeddingTable, Shard, ShardingTask, Topology, UniformIds, ZipfIds
from shardgym.costs.fbgemm import cuda, kernels
from shardgym.costs.fbgemm.cuda import PATIENCE, HostLead
from shardgym.costs.fbgemm.jobs import HOST_WAITED, JobError, ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.kernels import CpuBackend, Measurer, fixed_gradient
from shardgym.costs.fbgemm.operator import LEARNING_RATE, OPTIMIZERS, RequestMaker, build_operator
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
    with pytest.raises(JobError, match=r"measuring needs \d+ bytes of memory, but 0 bytes are available"):
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
    of_three = 10 + np.random.default_rng(1).normal(size=(400, 3))
    found = [relative_error(lambda rows, own=own: np.array([[own[rows].mean()]]), 3) for own in of_three]
    assert np.sqrt(np.mean(np.square(found))) == pytest.approx(0.1 / np.sqrt(3), rel=0.08)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(cuda, "torch", Torch(gpu))
    return gpu


def toy_job(warmups=0, iterations=1, rows=50):
    shard = ShardSpec(EmbeddingTable("t", rows, 8, 2.0), (0, rows), 8)
    return TimingJob(ShardSet((shard,), 6, "fp32", "exact_sgd"), warmups, iterations)


def test_events_around_each_phase_are_the_times_and_the_cache_is_flushed(gpu):
    backend = cuda.CudaBackend()
    backend._flush.fill_(7.0)
    found = kernels.Measurer(backend, seed=0)(toy_job(warmups=1, iterations=3))
    assert found.times.tolist() == [[1.0, 1.0]] * 3
    assert found.launch_ms > 0  # the host's own clock: how long it was busy
    assert gpu.log == (["event"] * 4 + ["wait"]) * 4
    assert backend._flush.nbytes == 2 * 400
    assert not backend._flush.any()
    assert backend.hardware == "cuda-nvidia-stand-in-1"


@pytest.mark.parametrize(("ahead", "flushed", "notes"), [
    (2, [1, 1, 2, 2], ()), (10**9, [n for n in (1, 2, 4, 8, 16, 32, 64, 128) for _ in "ab"], (HOST_WAITED,)),
])  # fmt: skip
def test_a_step_in_which_the_gpu_waited_is_measured_again_behind_more_flushes(gpu, monkeypatch, ahead, flushed, notes):
    seen = []
    monkeypatch.setattr(cuda.CudaBackend, "_flush_cache", lambda self, times: seen.append(times))
    gpu.ahead = ahead
    found = kernels.Measurer(cuda.CudaBackend(), seed=0)(toy_job())
    assert found.times.shape == (1, 2)
    assert (seen, found.notes) == (flushed, notes)


def attempts_that_need(least, seen):
    """The GPU waits with fewer flushes than `least`; an attempt takes as many ms as it has flushes."""

    def attempt(flushes):
        seen.append(flushes)
        return flushes < least, (float(flushes), 0.0)

    return attempt


def test_the_lead_is_kept_for_the_next_step_and_shrinks_while_it_suffices():
    lead, seen = HostLead(), []
    for _ in range(3 * PATIENCE + 2):
        lead.timed(attempts_that_need(6, seen))
    assert seen == [1, 2, 4, *[8] * PATIENCE, *[7] * PATIENCE, *[6] * PATIENCE, 5, 10, 10]
    assert lead.given_up == 0


@pytest.mark.parametrize(
    ("errors", "expected", "message"),
    [
        ([torch.OutOfMemoryError("CUDA out of memory")], None, ""),  # there is room once no ids are kept
        ([RuntimeError("kernel.cuh:311 CUDA Error: out of memory")] * 2, JobError, "the GPU ran out of memory: "),
        ([RuntimeError("CUDA error: an illegal memory access")], RuntimeError, "illegal memory access"),
    ],
)
def test_memory_that_runs_out_twice_is_a_refusal_and_other_errors_are_not(gpu, monkeypatch, errors, expected, message):
    """Loading a kernel takes memory that torch's allocator does not know of."""
    left = list(errors)

    def build(*given):
        if left:
            raise left.pop()
        return build_operator(*given)

    measure = kernels.Measurer(cuda.CudaBackend(), seed=0)
    monkeypatch.setattr(kernels, "build_operator", build)
    if expected is not None:
        with pytest.raises(expected, match=message):
            measure(toy_job())
    assert measure(toy_job()).times.shape == (1, 2)
    assert ("release" in gpu.log) == ("out of memory" in str(errors[0]))


def test_a_machine_without_a_gpu_is_refused_with_torchs_own_reason(gpu):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old\nsee www")

    cuda.torch.cuda.is_available, cuda.torch.cuda.init = (lambda: False), init
    with pytest.raises(JobError, match=r"sees no CUDA device \(RuntimeError: The NVIDIA dr.* too old\); use"):
        cuda.CudaBackend()


@pytest.mark.parametrize(("optimizer", "precision"), [*((name, "fp32") for name in OPTIMIZERS), ("exact_sgd", "fp16")])
def test_the_operator_has_all_weights_and_states_on_the_gpu(monkeypatch, optimizer, precision):
    """Built on tensors that have a device and a shape but no values."""
    training = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_training")
    monkeypatch.setattr(training.SplitTableBatchedEmbeddingBagsCodegen, "split_embedding_weights", lambda self: [])
    shards = tuple(ShardSpec(EmbeddingTable(f"t{n}", 100 + n, 32), (0, 100 + n), 8 * (n + 1)) for n in range(3))
    shard_set = ShardSet(shards, 64, precision, optimizer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        operator = build_operator(shard_set, torch.device("cuda", 0))
    states = [getattr(operator, name).numel() for name in ("momentum1_dev", "momentum2_dev") if hasattr(operator, name)]
    assert (operator.weights_dev.device.type, operator.weights_dev.numel()) == ("cuda", shard_set.num_weights)
    assert operator.weights_dev.dtype == (torch.float16 if precision == "fp16" else torch.float32)
    assert sum(count for count in states if count > 1) == shard_set.num_states  # a place-holder has one element
