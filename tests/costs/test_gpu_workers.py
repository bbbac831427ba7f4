"""What workers on GPUs are started with, without a GPU: which GPU, which switches, and what is said when they fail."""

import importlib.util

import pytest

from shardgym import make_cost
from shardgym.costs.fbgemm import pool
from shardgym.costs.fbgemm.pool import known_remedy, remedy
from shardgym.errors import InputError, MeasurementError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("named", "workers", "gpus"),
    [
        (None, 2, ["0", "1"]),
        ("2,3", 2, ["2", "3"]),
        (" 3 , 1 ", 1, ["3"]),
        ("MIG-a,MIG-b", 2, ["MIG-a", "MIG-b"]),
        ("", 1, [""]),
    ],
)
def test_every_worker_has_a_gpu_of_its_own_among_those_that_may_be_used(monkeypatch, named, workers, gpus):
    monkeypatch.delenv(VISIBLE, raising=False)
    if named is not None:
        monkeypatch.setenv(VISIBLE, named)
    assert pool.gpus_of_workers(workers) == gpus


@pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu' or 'gpu'")
def test_more_workers_than_named_gpus_are_refused(monkeypatch):
    """The third of three workers had GPU 2, which is the first one's."""
    monkeypatch.setenv(VISIBLE, "2,3")
    with pytest.raises(InputError, match=r"workers=3: CUDA_VISIBLE_DEVICES='2,3' names 2; expected a GPU for every"):
        make_cost("fbgemm", device="cuda", workers=3)


class Child:
    """A worker that does not start."""

    environment: dict[str, str] = {}  # noqa: RUF012
    answer = ("ok", {})

    def __init__(self, module, settings, environment):
        Child.environment = environment

    def receive(self, timeout_s, deadline=None):
        return self.answer

    def kill(self):
        """There is nothing to end."""


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setattr(pool, "ChildProcess", Child)
    monkeypatch.setattr(pool, "require_fbgemm", lambda device: None)
    return Child


def test_a_worker_sees_one_gpu_and_none_of_the_users_switches(child, monkeypatch):
    monkeypatch.setenv(VISIBLE, "5")
    pool.WorkerPool("cuda", 1, 0, 1.0).facts()
    switches = {name: child.environment[name] for name in ("CUDA_LAUNCH_BLOCKING", "FBGEMM_EXPERIMENTAL_TBE")}
    assert child.environment[VISIBLE] == "5"
    assert switches == {"CUDA_LAUNCH_BLOCKING": "0", "FBGEMM_EXPERIMENTAL_TBE": "0"}


def test_a_worker_on_the_cpu_is_told_nothing_about_gpus(child):
    pool.WorkerPool("cpu", 1, 0, 1.0).facts()
    assert VISIBLE not in child.environment


@pytest.mark.measured
def test_the_bounds_checks_that_workers_are_told_to_use_are_none():
    common = pytest.importorskip("fbgemm_gpu.split_table_batched_embeddings_ops_common")
    assert int(pool.ENVIRONMENT["FBGEMM_TBE_BOUNDS_CHECK_MODE"]) == common.BoundsCheckMode.NONE


def test_a_worker_that_does_not_start_is_explained_with_what_helps(child, monkeypatch):
    problem = "OSError: libnvidia-ml.so.1: cannot open shared object file"
    monkeypatch.setattr(child, "answer", ("failed", problem))
    with pytest.raises(MeasurementError, match=r"FBGEMM does not work here: OSError: libnv.*; the CUDA builds .* need"):
        pool.WorkerPool("cuda", 1, 0, 1.0).facts()


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_worker_that_is_killed_at_its_start_is_replaced_once(child, monkeypatch, deaths):
    died = ["worker was killed by signal 9 (SIGKILL)"] * deaths

    def receive(self, timeout_s, deadline=None):
        if died:
            raise MeasurementError(died.pop())
        return "ok", {"hardware": "lab"}

    monkeypatch.setattr(child, "receive", receive)
    if deaths == 1:
        assert pool.WorkerPool("cpu", 1, 0, 1.0).facts() == {"hardware": "lab"}
    else:
        with pytest.raises(MeasurementError, match="FBGEMM does not work here: worker was killed by signal 9"):
            pool.WorkerPool("cpu", 1, 0, 1.0).facts()


@pytest.mark.parametrize(
    ("problem", "advice"),
    [
        ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020)", "need a driver that fits"),
        ("AcceleratorError: CUDA error: no kernel image is available for execution", "no kernels for this"),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 120 MiB.", "something else holds the GPU's memory"),
        ("NotImplementedError: Could not run 'fbgemm::x' with ... from the 'CUDA' backend.", "FBGEMM's CPU build"),
    ],
)
def test_known_complaints_have_their_own_remedy(problem, advice):
    assert advice in known_remedy(problem)
    assert remedy(problem) == known_remedy(problem)


def test_anything_else_is_put_down_to_the_pair_of_versions():
    problem = "worker was killed by signal 9 (SIGKILL); the system may have run out of memory"
    assert known_remedy(problem) == ""
    assert "each fbgemm-gpu fits one torch" in remedy(problem)
