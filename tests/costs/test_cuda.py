"""The GPU's way of measuring on the CPU's kernels: a stand-in for `torch.cuda` has its own memory and clock."""

import dataclasses
import importlib.util
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from shardgym.costs.fbgemm import cuda
from shardgym.costs.fbgemm.jobs import HOST_WAITED, ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.operator import OPTIMIZERS, build_operator
from shardgym.costs.fbgemm.process import JobError
from shardgym.costs.fbgemm.worker import Measurer
from shardgym.tables.table import EmbeddingTable

pytestmark = [
    pytest.mark.measured,
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'"),
]


@dataclasses.dataclass
class Gpu:
    """What happened on a GPU that takes one ms per recorded event and is `ahead` of the host for the first queries."""

    free: int = 10**9
    ahead: int = 0
    now: float = 0.0
    log: list = dataclasses.field(default_factory=list)


class Event:
    def __init__(self, gpu):
        self.gpu = gpu

    def record(self):
        self.gpu.now += 1.0
        self.at = self.gpu.now
        self.gpu.log.append("event")

    def query(self):
        self.gpu.ahead -= 1
        return self.gpu.ahead >= 0

    def elapsed_time(self, end):
        return end.at - self.at


class Torch:
    """`torch` as `cuda.py` sees it: every device is the CPU, and `cuda` is the stand-in."""

    def __init__(self, gpu):
        properties = SimpleNamespace(name="NVIDIA Stand-in 1", L2_cache_size=400)
        self.cuda = SimpleNamespace(
            is_available=lambda: True, get_device_properties=lambda _: properties,
            Event=lambda enable_timing: Event(gpu), mem_get_info=lambda _: (gpu.free, 2 * gpu.free),
            memory_reserved=lambda _: 300, memory_allocated=lambda _: 100,
            synchronize=lambda _: gpu.log.append("wait"), empty_cache=lambda: gpu.log.append("release"),
        )  # fmt: skip

    def device(self, *_):
        return torch.device("cpu")

    def __getattr__(self, name):
        return getattr(torch, name)


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(cuda, "torch", Torch(gpu))
    return gpu


def shard_set(rows=50, batch_size=6):
    table = EmbeddingTable("t", rows, 8, 2.0)
    return ShardSet((ShardSpec(table, (0, rows), 8),), batch_size, "fp32", "exact_sgd")


def test_events_around_each_phase_are_the_times(gpu):
    times = Measurer(cuda.CudaBackend(), seed=0)(TimingJob(shard_set(), warmups=1, iterations=3)).times
    assert times.tolist() == [[1.0, 1.0]] * 3
    assert gpu.log == (["event"] * 4 + ["wait"]) * 4


def test_the_hardware_tag_is_the_gpus_name(gpu):
    assert cuda.CudaBackend().facts()["hardware"] == "cuda-nvidia-stand-in-1"


def test_a_step_in_which_the_gpu_waited_is_measured_again_behind_more_flushes(gpu, monkeypatch):
    flushed = []
    monkeypatch.setattr(cuda.CudaBackend, "_flush_cache", lambda self, times: flushed.append(times))
    gpu.ahead = 2
    times = Measurer(cuda.CudaBackend(), seed=0)(TimingJob(shard_set(), warmups=0, iterations=1)).times
    assert times.shape == (1, 2)
    assert flushed == [1, 1, 2, 2]


@pytest.mark.parametrize(("ahead", "notes"), [(0, ()), (10**9, (HOST_WAITED,))])
def test_times_that_include_waiting_for_the_host_say_so(gpu, ahead, notes):
    """The stand-in that is ahead of the host waits for it, however many flushes there are."""
    gpu.ahead = ahead
    found = Measurer(cuda.CudaBackend(), seed=0)(TimingJob(shard_set(), warmups=0, iterations=2))
    assert found.times.shape == (2, 2)
    assert found.notes == notes


def test_only_steps_that_are_reported_count_and_only_those_of_the_job(gpu, monkeypatch):
    """The first job's first step, a warm-up, waits behind the most flushes; its second one does not, nor do others."""
    waits = iter([True] * 8 + [False] * 3)
    attempt = cuda.CudaBackend._attempt
    monkeypatch.setattr(cuda.CudaBackend, "_attempt", lambda self, *given: (next(waits), attempt(self, *given)[1]))
    backend = cuda.CudaBackend()
    measure = Measurer(backend, seed=0)
    assert measure(TimingJob(shard_set(), warmups=1, iterations=1)).notes == ()
    assert backend.host_waits == 1
    assert measure(TimingJob(shard_set(), warmups=0, iterations=2)).notes == ()


def test_the_flush_overwrites_more_than_the_cache_holds(gpu):
    backend = cuda.CudaBackend()
    backend._flush.fill_(7.0)
    backend.step(backend.build(shard_set()), ids_of(backend), backend.gradient(shard_set()))
    assert backend._flush.nbytes == 2 * 400
    assert not backend._flush.any()


def ids_of(backend):
    from shardgym.costs.fbgemm.operator import RequestMaker

    return RequestMaker(0, backend.device, 10**6).request(shard_set(), 0)


def test_all_weights_are_random(gpu):
    weights = cuda.CudaBackend().build(shard_set()).split_embedding_weights()[0]
    assert weights.abs().max() <= 0.01
    assert len(weights.unique()) > 0.9 * weights.numel()


def test_a_content_that_does_not_fit_is_refused_with_bytes(gpu):
    measure = Measurer(cuda.CudaBackend(), seed=0)
    gpu.free = 1000
    with pytest.raises(JobError, match=r"needs \d{4,} bytes of GPU memory, 1200 bytes are available"):
        measure(TimingJob(shard_set(), warmups=0, iterations=1))
    gpu.free = 10**9
    assert measure(TimingJob(shard_set(), warmups=0, iterations=1)).times.shape == (1, 2)


def test_ids_that_were_kept_are_given_up_before_a_content_is_refused(gpu):
    """What is kept for the next job counts as used memory; there is room once nothing is kept and it is released."""
    measure = Measurer(cuda.CudaBackend(), seed=0)
    measure(TimingJob(shard_set(), warmups=0, iterations=1))
    assert measure._requests.drawn.currsize > 0
    gpu.free = 1000

    def release():
        gpu.free = 1000 if measure._requests.drawn.currsize else 10**9

    cuda.torch.cuda.empty_cache = release
    assert measure(TimingJob(shard_set(rows=60), warmups=0, iterations=1)).times.shape == (1, 2)


def test_running_out_while_measuring_is_a_refusal_and_the_next_job_works(gpu, monkeypatch):
    measure = Measurer(cuda.CudaBackend(), seed=0)

    def build(self, shard_set):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(cuda.CudaBackend, "build", build)
        with pytest.raises(JobError, match=r"ran out of memory: measuring needs about \d+ bytes, \d+ bytes were"):
            measure(TimingJob(shard_set(), warmups=0, iterations=1))
    assert "release" in gpu.log
    assert measure(TimingJob(shard_set(), warmups=0, iterations=1)).times.shape == (1, 2)


def fails_with(monkeypatch, error):
    def build(self, shard_set):
        raise error

    monkeypatch.setattr(cuda.CudaBackend, "build", build)
    return Measurer(cuda.CudaBackend(), seed=0)


@pytest.mark.parametrize("text", ["CUDA error: out of memory", "kernel.cuh:311 CUDA Error: out of memory"])
def test_memory_that_runs_out_outside_of_the_allocator_is_a_refusal_too(gpu, monkeypatch, text):
    """Loading a kernel takes memory that torch's allocator does not know of."""
    with pytest.raises(JobError, match=r"ran out of memory: measuring needs about \d+ bytes"):
        fails_with(monkeypatch, RuntimeError(text))(TimingJob(shard_set(), warmups=0, iterations=1))


def test_any_other_error_of_a_kernel_is_no_refusal(gpu, monkeypatch):
    """After an illegal access the process is of no use any more and must be replaced."""
    with pytest.raises(RuntimeError, match="illegal memory access"):
        fails_with(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))(
            TimingJob(shard_set(), warmups=0, iterations=1)
        )


def test_a_machine_without_a_gpu_is_refused_with_torchs_own_reason(gpu):
    def init():
        raise RuntimeError("The NVIDIA driver on your system is too old\nsee www")

    cuda.torch.cuda.is_available, cuda.torch.cuda.init = (lambda: False), init
    with pytest.raises(JobError, match=r"sees no CUDA device \(RuntimeError: The NVIDIA dr.* too old\); use"):
        cuda.CudaBackend()


def test_the_gradient_is_one_tensor_that_grows_and_changes_its_type(gpu):
    backend = cuda.CudaBackend()
    small, large = backend.gradient(shard_set()), backend.gradient(shard_set(batch_size=60))
    assert small.shape == (6, 8)
    assert large.shape == (60, 8)
    assert backend.gradient(shard_set()).data_ptr() == large.data_ptr()
    assert backend.gradient(shard_set()._replace(precision="fp16")).dtype == torch.float16


def test_only_drawn_ids_are_kept_not_merged_ones(gpu):
    kept = cuda.CudaBackend().kept_bytes()
    assert kept.drawn == (10**9 + 200) // 3
    assert kept.merged == 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_operator_has_all_weights_and_states_on_the_gpu(optimizer, precision):
    """Built on tensors that have a device and a shape but no values."""
    shards = tuple(ShardSpec(EmbeddingTable(f"t{n}", 100 + n, 32), (0, 100 + n), 8 * (n + 1)) for n in range(3))
    shard_set = ShardSet(shards, 64, precision, optimizer)
    with FakeTensorMode(allow_non_fake_inputs=True):
        operator = build_operator(shard_set, torch.device("cuda", 0))
    states = [getattr(operator, name).numel() for name in ("momentum1_dev", "momentum2_dev") if hasattr(operator, name)]
    assert (operator.weights_dev.device.type, operator.weights_dev.numel()) == ("cuda", shard_set.num_weights)
    assert operator.weights_dev.dtype == (torch.float16 if precision == "fp16" else torch.float32)
    assert sum(count for count in states if count > 1) == shard_set.num_states  # a place-holder has one element
