"""WorkerPool, the parent's side of the process that times kernels."""

from __future__ import annotations

import importlib.util
import os
import weakref
from collections.abc import Generator, Iterable
from typing import Any

from shardgym.costs.fbgemm.jobs import StepTimes, TimingJob
from shardgym.costs.fbgemm.process import ChildProcess, require_linux
from shardgym.errors import InputError, MeasurementError, MissingDependencyError

#: Variables of the process. The allocator keeps freed memory instead of mapping it afresh, in huge pages, which lower
#: the spread between processes, and there is one thread. The last ones are switches of CUDA and FBGEMM that change
#: which kernels run, or make the host wait for each of them: measurements must not depend on the user's shell.
ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**62),
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_LAUNCH_BLOCKING": "0",
    "FBGEMM_EXPERIMENTAL_TBE": "0",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "3",  # BoundsCheckMode.NONE, as in `build_operator`, which it would overrule
    "FBGEMM_TBE_REPORT_INPUT_PARAMS": "0",
}
_START_S = 180.0
_MODULE = "shardgym.costs.fbgemm.worker"


def require_fbgemm(device: str) -> None:
    """Raise `MeasurementError` on systems other than Linux, `MissingDependencyError` when FBGEMM is not installed."""
    require_linux()
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise MissingDependencyError("fbgemm_gpu", "cpu" if device == "cpu" else "gpu", "measuring plans")


def does_not_work(reason: object) -> MeasurementError:
    """Return the error of processes that do not start."""
    return MeasurementError(f"FBGEMM does not work here: {reason}; 'shardgym doctor' says what this machine has")


class WorkerPool:
    """A process that times kernels, and stays alive between calls.

    Args:
        device: "cpu" or "cuda"; on CUDA the first visible GPU.
        seed: of the id draws.
        timeout_s: seconds one job may take.
    """

    def __init__(self, device: str, seed: int, timeout_s: float) -> None:
        self._device = device
        self._settings = {"device": device, "seed": seed}
        self._timeout_s = timeout_s
        #: At most one.
        self._processes: list[ChildProcess] = []
        self._owner = os.getpid()
        self._facts: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _close, self._processes, self._owner)

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions as the process sees them; starts it."""
        self._start()
        return self._facts

    def run(self, jobs: Iterable[TimingJob]) -> Generator[tuple[TimingJob, StepTimes | str]]:
        """Yield every job with its answer, or with the reason why there is none.

        Args:
            jobs: advanced only when the process is ready for a job, so a generator can skip jobs that earlier answers
                made pointless.

        Raises:
            MeasurementError: the process cannot be started.
        """
        for job in jobs:
            process = self._start()
            try:
                process.send(job)
                status, value = process.receive(self._timeout_s)
            except MeasurementError as error:
                status, value = "failed", str(error)
            except BaseException:  # nobody waits for the answer
                self.close()
                raise
            if status == "failed":
                self.close()
            yield job, value

    def close(self) -> None:
        """End the process; it is started again when needed."""
        _close(self._processes, self._owner)

    def _start(self) -> ChildProcess:
        if os.getpid() != self._owner:  # a fork of the owner: the process belongs to the original
            self._processes.clear()
            self._owner = os.getpid()
        if self._processes and self._processes[0].dead:  # no job is to blame for that
            self.close()
        if not self._processes:
            require_fbgemm(self._device)
            self._processes.append(ChildProcess(_MODULE, self._settings, ENVIRONMENT, new_interpreter=True))
            try:
                status, value = self._processes[0].receive(_START_S)
            except MeasurementError as error:
                status, value = "failed", str(error)
            if status != "ok":
                self.close()
                raise InputError(value) if status == "refused" else does_not_work(value)
            self._facts = dict(value)
        return self._processes[0]


def _close(processes: list[ChildProcess], owner: int) -> None:
    if os.getpid() == owner:
        for process in processes:
            process.kill()
    processes.clear()
