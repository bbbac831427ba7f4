"""WorkerPool, the parent's side of compute workers: hands out jobs, notices failures, replaces workers."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import re
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from importlib.metadata import distributions
from multiprocessing.connection import wait
from typing import Any

from shardgym.costs.fbgemm.jobs import DeviceFacts, ProbeJob, StepTimes, TimingJob
from shardgym.costs.fbgemm.process import ChildProcess, require_linux
from shardgym.errors import InputError, MeasurementError, MissingDependencyError
from shardgym.machine import usable_cores

#: Variables of every worker. The allocator keeps freed memory instead of mapping it afresh, and there is one thread.
#: The last four are switches of CUDA and FBGEMM that change which kernels run, or make the host wait for each of them:
#: measurements must not depend on the user's shell.
ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**62),
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(2**26),
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_LAUNCH_BLOCKING": "0",
    "FBGEMM_EXPERIMENTAL_TBE": "0",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "3",  # BoundsCheckMode.NONE, as in `build_operator`, which it would overrule
    "FBGEMM_TBE_REPORT_INPUT_PARAMS": "0",
}
_START_S = 180.0
_PING_S = 10.0
_MODULE = "shardgym.costs.fbgemm.worker"

#: Pattern in an error message of torch or FBGEMM, and what to do about it.
_REMEDIES = (
    (
        r"libcuda\.so|libnvidia-ml\.so|NVIDIA driver",
        "the CUDA builds of torch and FBGEMM need a driver that fits; without a GPU install shardgym's extra 'cpu'",
    ),
    (
        r"no kernel image",
        "the installed torch or FBGEMM has no kernels for this GPU; use device='cpu', or builds that support it",
    ),
    (
        r"CUDA.*out of memory",
        "something else holds the GPU's memory; end it, or name another GPU in CUDA_VISIBLE_DEVICES",
    ),
    (r"'CUDA' backend", "this is FBGEMM's CPU build; for the GPU replace it by shardgym's extra 'gpu'"),
)


def require_fbgemm(device: str) -> None:
    """Raise `MeasurementError` on systems other than Linux, `MissingDependencyError` when FBGEMM is not installed."""
    require_linux()
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise MissingDependencyError("fbgemm_gpu", "cpu" if device == "cpu" else "gpu", "measuring plans")


def known_remedy(problem: str) -> str:
    """Return what to do about an error message of torch or FBGEMM; "" for an unknown one."""
    return next((advice for pattern, advice in _REMEDIES if re.search(pattern, problem, re.IGNORECASE)), "")


def remedy(problem: str) -> str:
    """Return what to do about an error message; for an unknown one, blame the pair of versions, the likeliest cause."""
    if advice := known_remedy(problem):
        return advice
    names = ("torch", "fbgemm-gpu", "fbgemm-gpu-cpu")
    found = sorted({f"{d.name} {d.version}" for d in distributions() if d.name.lower().replace("_", "-") in names})
    advice = "each fbgemm-gpu fits one torch, reinstall the pair with shardgym's extra 'cpu', or 'gpu' with CUDA"
    return f"found {', '.join(found)}; {advice}"


class _Worker:
    """One worker: its process, which may have to be replaced, and the jobs that were sent to it.

    Args:
        launch: starts the process.

    Attributes:
        process: None before the first start and after a failure.
        jobs: sent and not answered; the process works on the first one.
        deadline: of the first job, on the monotonic clock.
    """

    def __init__(self, launch: Callable[[], ChildProcess]) -> None:
        self.launch = launch
        self.process: ChildProcess | None = None
        self.jobs: list[TimingJob] = []
        self.deadline = 0.0

    def discard(self) -> None:
        """End the process; `jobs` stays."""
        if self.process is not None:
            self.process.kill()
        self.process = None

    def _receive(self, timeout_s: float, deadline: float | None) -> tuple[str, Any]:
        assert self.process is not None
        try:
            status, value = self.process.receive(timeout_s, deadline)
        except MeasurementError as error:
            return "failed", str(error)
        return status, value

    def greet(self) -> dict[str, Any]:
        """Wait for the first answer of a launched process, and return its facts; one that dies is replaced once."""
        assert self.process is not None
        try:
            status, value = self.process.receive(_START_S)
        except MeasurementError:  # somebody may have killed it
            self.discard()
            self.process = self.launch()
            status, value = self._receive(_START_S, None)
        if status == "ok":
            return dict(value)
        self.discard()
        if status == "refused":
            raise InputError(value)
        raise MeasurementError(f"FBGEMM does not work here: {value}; {remedy(value)}")

    def fill(self, jobs: Iterator[TimingJob], ahead: int, timeout_s: float) -> None:
        """Send the next jobs; a process that replaces another one gets the unanswered jobs of that one first."""
        fresh = list(itertools.islice(jobs, 1 + ahead - len(self.jobs)))
        is_busy = bool(self.jobs) and self.process is not None
        self.jobs += fresh
        if not is_busy and self.jobs:
            self._send_first(self.jobs[0])
            self.deadline = time.monotonic() + timeout_s
        for job in fresh if is_busy else self.jobs[1:]:
            if self.process is not None:
                with contextlib.suppress(MeasurementError):  # it died of the job before, `collect` will notice
                    self.process.send(job)

    def _send_first(self, job: TimingJob) -> None:
        if self.process is not None:
            try:
                self.process.send(job)
            except MeasurementError:  # it died after its last answer: this job is not to blame
                self.discard()
            else:
                return
        self.process = self.launch()
        self.greet()
        self.process.send(job)

    def collect(self, timeout_s: float) -> tuple[TimingJob, StepTimes | str]:
        """Return the first job with its answer, or with the reason why there is none, and set the next deadline."""
        job = self.jobs.pop(0)
        status, value = self._receive(timeout_s, self.deadline)
        self.deadline = time.monotonic() + timeout_s
        if status == "failed":
            self.discard()
        return job, value


class WorkerPool:
    """Compute workers that stay alive between calls.

    Args:
        device: "cpu" or "cuda".
        workers: processes; worker i has the i-th usable core, or GPU i.
        seed: of the id draws.
        timeout_s: seconds one job may take.

    Raises:
        InputError: there are more workers than GPUs that this process may use.
    """

    def __init__(self, device: str, workers: int, seed: int, timeout_s: float) -> None:
        self._device = device
        self._timeout_s = timeout_s
        gpus = gpus_of_workers(workers) if device == "cuda" else [None] * workers
        self._workers = [_Worker(functools.partial(_launch, device, seed, i, gpu)) for i, gpu in enumerate(gpus)]
        self._owner = os.getpid()
        self._facts: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _close, self._workers, self._owner)

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions as the workers see them; starts workers."""
        self._start()
        return self._facts

    def probe(self) -> DeviceFacts:
        """Measure the device itself, in the first worker; starts workers.

        Raises:
            MeasurementError: no worker can be started, or it fails.
        """
        self._start()
        worker = self._workers[0]
        assert worker.process is not None
        worker.process.send(ProbeJob())
        status, value = worker.process.receive(self._timeout_s)
        if status == "ok" and isinstance(value, DeviceFacts):
            return value
        worker.discard()
        raise MeasurementError(f"the device could not be probed: {value}")

    def run(self, jobs: Iterator[TimingJob], ahead: int = 0) -> Generator[tuple[TimingJob, StepTimes | str]]:
        """Yield every job with its answer, or with the reason why there is none, as they come.

        Args:
            jobs: advanced only when a worker is ready for a job, so a generator can skip jobs that earlier answers
                made pointless.
            ahead: jobs that are sent to a worker before it needs them. With 0, this process does nothing while a worker
                measures; with 1, workers need not wait for it.

        Raises:
            MeasurementError: no worker can be started.
        """
        self._start()
        try:
            for worker in self._workers:
                worker.fill(jobs, ahead, self._timeout_s)
            while busy := [worker for worker in self._workers if worker.jobs]:
                for worker in _ready(busy):
                    yield worker.collect(self._timeout_s)
                    worker.fill(jobs, ahead, self._timeout_s)
        finally:
            for worker in self._workers:
                if worker.jobs:  # the caller stopped early, and nobody waits for these answers
                    worker.discard()
                worker.jobs.clear()

    def close(self) -> None:
        """End the workers; they are started again when needed."""
        _close(self._workers, self._owner)

    def _start(self) -> None:
        """Replace workers that died, start those that are missing, all at once, and wait until they work."""
        if os.getpid() != self._owner:  # a fork of the owner: the workers belong to the original
            self._workers[:] = [_Worker(worker.launch) for worker in self._workers]
            self._owner = os.getpid()
        for worker in self._workers:  # no plan is to blame for one that died while idle
            if worker.process is not None and not worker.process.ping(_PING_S):
                worker.discard()
        missing = [worker for worker in self._workers if worker.process is None]
        if missing:
            require_fbgemm(self._device)
        for worker in missing:
            worker.process = worker.launch()
        for worker in missing:
            self._facts = worker.greet()


def _launch(device: str, seed: int, index: int, gpu: str | None) -> ChildProcess:
    cores = usable_cores()
    settings = {"device": device, "seed": seed, "core": cores[index % len(cores)]}
    visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return ChildProcess(_MODULE, settings, {**ENVIRONMENT, **visible})


def _close(workers: list[_Worker], owner: int) -> None:
    for worker in workers:
        if os.getpid() == owner:
            worker.discard()
        worker.process = None
        worker.jobs.clear()


def _ready(busy: list[_Worker]) -> list[_Worker]:
    """Wait until some workers have answered, died or run out of time, and return these."""
    by_connection: dict[Any, _Worker] = {w.process.connection: w for w in busy if w.process is not None}
    patience = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
    answered = wait(list(by_connection), timeout=patience)
    now = time.monotonic()
    return [w for c, w in by_connection.items() if c in answered] or [w for w in busy if w.deadline <= now]


def gpus_of_workers(workers: int) -> list[str]:
    """Return the GPU of each worker, as `CUDA_VISIBLE_DEVICES` of its process.

    Raises:
        InputError: the user's `CUDA_VISIBLE_DEVICES` names fewer GPUs: two workers on one would disturb each other.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(index) for index in range(workers)]
    gpus = [gpu.strip() for gpu in named.split(",") if gpu.strip()]
    if not gpus:  # all GPUs are hidden on purpose; the worker says that it sees none
        return [""] * workers
    if workers > len(gpus):
        raise InputError(
            f"workers={workers}: CUDA_VISIBLE_DEVICES={named!r} names {len(gpus)}; expected a GPU for every worker"
        )
    return gpus[:workers]
