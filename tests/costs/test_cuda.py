"""The GPU's way of measuring on the CPU's kernels: a stand-in for `torch.cuda` has its own memory and clock."""

import importlib.util

import pytest
import torch
from cuda_toys import Gpu, Torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardgym.costs.fbgemm import cuda, kernels
from shardgym.costs.fbgemm.cuda import MOST_FLUSHES, PATIENCE, HostLead
from shardgym.costs.fbgemm.jobs import HOST_WAITED, JobError, ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.operator import OPTIMIZERS, build_operator
from shardgym.tables.table import EmbeddingTable

pytestmark = [
    pytest.mark.measured,
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'"),
]


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(cuda, "torch", Torch(gpu))
    return gpu


def job(warmups=0, iterations=1, rows=50):
    shard = ShardSpec(EmbeddingTable("t", rows, 8, 2.0), (0, rows), 8)
    return TimingJob(ShardSet((shard,), 6, "fp32", "exact_sgd"), warmups, iterations)


def test_events_around_each_phase_are_the_times_and_the_cache_is_flushed(gpu):
    backend = cuda.CudaBackend()
    backend._flush.fill_(7.0)
    found = kernels.Measurer(backend, seed=0)(job(warmups=1, iterations=3))
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
    found = kernels.Measurer(cuda.CudaBackend(), seed=0)(job())
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


def test_where_no_lead_suffices_the_longest_is_taken():
    lead, seen = HostLead(), []
    times = [lead.timed(attempts_that_need(MOST_FLUSHES + 1, seen)) for _ in range(3)]
    assert times == [(float(MOST_FLUSHES), 0.0)] * 3
    assert seen == [1, 2, 4, 8, 16, 32, 64, MOST_FLUSHES, MOST_FLUSHES, MOST_FLUSHES]
    assert lead.given_up == 3


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
            measure(job())
    assert measure(job()).times.shape == (1, 2)
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
