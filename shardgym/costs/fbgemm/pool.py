"""The parent's side of compute workers: hand out jobs, notice failures, replace workers."""

from __future__ import annotations

import importlib.util
import os
import weakref
from collections.abc import Generator, Iterator
from typing import Any

from shardgym.costs.fbgemm.device_facts import DeviceFacts, Probe
from shardgym.costs.fbgemm.measurer import Job, Measured
from shardgym.costs.fbgemm.remedy import remedy
from shardgym.costs.fbgemm.slots import Slot, ready
from shardgym.costs.workers.machine import usable_cores
from shardgym.costs.workers.process import ChildProcess
from shardgym.errors import InputError, MeasurementError, MissingDependencyError

#: Keep freed memory and never map it afresh; one thread. The last four are switches of CUDA and FBGEMM that change
#: which kernels run, or make the host wait for each of them: what is measured must not depend on the user's shell.
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


def require_fbgemm(device: str) -> None:
    """Raise `MissingDependencyError` when FBGEMM is not installed."""
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise MissingDependencyError("fbgemm_gpu", "cpu" if device == "cpu" else "gpu", "measuring plans")


class WorkerPool:
    """Workers that stay alive between calls.

    Args:
        device: "cpu" or "cuda".
        workers: processes; worker i has the i-th usable core, or GPU i.
        seed: of the id draws.
        timeout_s: seconds one job may take.

    Raises:
        InputError: there are more workers than GPUs that this process may use.
    """

    def __init__(self, device: str, workers: int, seed: int, timeout_s: float) -> None:
        self._device, self._seed, self._timeout_s = device, seed, timeout_s
        self._gpus = gpus_of_workers(workers) if device == "cuda" else []
        self._slots = [Slot(i) for i in range(workers)]
        self._owner = os.getpid()
        self._facts: dict[str, Any] = {}
        self._finalizer = weakref.finalize(self, _close, self._slots, self._owner)

    def facts(self) -> dict[str, Any]:
        """Return hardware tag and versions as the workers see them; starts workers."""
        self._start()
        return self._facts

    def probe(self) -> DeviceFacts:
        """Measure the first worker's device itself.

        Raises:
            MeasurementError: no worker can be started, or it fails.
        """
        self._start()
        slot = self._slots[0]
        assert slot.process is not None
        slot.process.send(Probe())
        status, value = slot.process.receive(self._timeout_s)
        if status == "ok" and isinstance(value, DeviceFacts):
            return value
        slot.discard()
        raise MeasurementError(f"the device could not be probed: {value}")

    def pids(self) -> list[int]:
        """Process ids of the workers that are alive."""
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    def run(self, jobs: Iterator[Job], ahead: int = 0) -> Generator[tuple[Job, Measured | str]]:
        """Yield every job with what it found, or with the reason why it found nothing, as they come.

        Args:
            jobs: advanced only when a worker is to be given something, so it can leave out what results so far made
                pointless.
            ahead: jobs that a worker is given before it needs them. With none, this process does nothing while a worker
                measures; with one, workers need not wait for it.

        Raises:
            MeasurementError: no worker can be started.
        """
        self._start()
        try:
            for slot in self._slots:
                slot.fill(jobs, ahead, self._timeout_s, self._launch_alone)
            while busy := [slot for slot in self._slots if slot.jobs]:
                for slot in ready(busy):
                    yield slot.collect(self._timeout_s)
                    slot.fill(jobs, ahead, self._timeout_s, self._launch_alone)
        finally:
            for slot in self._slots:
                slot.clear()

    def close(self) -> None:
        """End the workers; they are started again when needed."""
        _close(self._slots, self._owner)

    def _start(self) -> None:
        """Replace workers that died, start those that are missing, all at once, and wait until they work."""
        if os.getpid() != self._owner:  # a fork of the owner: the workers belong to the original
            self._slots[:] = [Slot(slot.index) for slot in self._slots]
            self._owner = os.getpid()
        for slot in self._slots:  # one that died while it was idle is nobody's plan's fault
            if slot.process is not None and not slot.process.answers(_PING_S):
                slot.discard()
        missing = [slot for slot in self._slots if slot.process is None]
        if missing:
            require_fbgemm(self._device)
        for slot in missing:
            slot.process = self._launch(slot.index)
        for slot in missing:
            self._greet(slot)

    def _launch_alone(self, slot: Slot) -> None:
        slot.process = self._launch(slot.index)
        self._greet(slot)

    def _launch(self, index: int) -> ChildProcess:
        cores = usable_cores()
        settings = {"device": self._device, "seed": self._seed, "core": cores[index % len(cores)]}
        visible = {"CUDA_VISIBLE_DEVICES": self._gpus[index]} if self._gpus else {}
        return ChildProcess(_MODULE, settings, {**ENVIRONMENT, **visible})

    def _greet(self, slot: Slot) -> None:
        assert slot.process is not None
        try:
            status, value = slot.process.receive(_START_S)
        except MeasurementError as error:
            status, value = "failed", str(error)
        if status == "ok":
            self._facts = value
            return
        slot.discard()
        if status == "refused":
            raise InputError(value)
        raise MeasurementError(f"FBGEMM does not work here: {value}; {remedy(value)}")


def _close(slots: list[Slot], owner: int) -> None:
    for slot in slots:
        if slot.process is not None and os.getpid() == owner:
            slot.process.kill()
        slot.process = None
        slot.jobs.clear()


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
