"""Processes that measure: the ranks of complete steps, one per device, or the one that times kernels."""

import contextlib
import importlib.util
import os
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shardgym.costs.fbgemm import namespaces
from shardgym.errors import InputError, MeasurementError, MissingDependencyError
from shardgym.machine import usable_cores
from shardgym.processes import Child

#: Imports what ranks need, which takes a second and a half.
PRELOADED = "shardgym.costs.fbgemm.preloaded"
#: Variables of the user's shell, by how they begin, that choose kernels, allocators, cores and transports, some as soon
#: as a library is loaded. With FBGEMM_NO_ASMJIT a step takes 3.5 times as long. Processes that measure have none.
_DROPPED = (
    "ATEN_", "FBGEMM_", "GLIBC_TUNABLES", "GLOO_", "GOMP_", "KMP_", "LD_PRELOAD", "MALLOC_", "OMP_PLACES",
    "OMP_PROC_BIND", "TORCH_GLOO_",
)  # fmt: skip
#: Switches of CUDA and FBGEMM that change which kernels run, or make the host wait for each of them, and the number of
#: threads. Ids are checked as by default (BoundsCheckMode.WARNING).
_STEPS = {
    "OMP_NUM_THREADS": "1",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    "CUDA_LAUNCH_BLOCKING": "0",
    "FBGEMM_EXPERIMENTAL_TBE": "0",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "1",
    "FBGEMM_TBE_REPORT_INPUT_PARAMS": "0",
}
#: Where kernels are timed alone, the allocator keeps freed memory instead of mapping it afresh, in huge pages, which
#: lower the spread between processes; and no ids are checked (BoundsCheckMode.NONE).
_KERNELS = {
    **_STEPS,
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_MMAP_THRESHOLD_": str(2**62),
    "MALLOC_TRIM_THRESHOLD_": str(2**62),
    "MALLOC_TOP_PAD_": str(2**26),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "FBGEMM_TBE_BOUNDS_CHECK_MODE": "3",
}
_START_S = 180.0
#: Seconds to wait for the exit of a rank that its peers report as lost.
_NOTICE_S = 2.0


class _Worker(Child):
    error = MeasurementError
    noun = "worker"


class _RefusedError(MeasurementError):
    """All processes that were asked can go on."""


class Workers:
    """Processes that work on one job together. They start when first used, and anew after a failure.

    Args:
        module: has the `start` of the processes.
        settings: settings of each process; the file at which they meet and this process's cores are added.
        environment: variables of all, in addition to those of this process that are not in `_DROPPED`.
        timeout_s: seconds one job may take.
        new_interpreters: whether variables must be in place before anything is loaded, or CUDA is used: it does not
            work in a copy of a process that has asked for a device, as libraries may do while they are imported.
    """

    def __init__(
        self,
        module: str,
        settings: Sequence[Mapping[str, Any]],
        environment: Mapping[str, str],
        timeout_s: float,
        *,
        new_interpreters: bool,
    ) -> None:
        #: "cpu" or "cuda".
        self.device: str = settings[0]["device"]
        #: What each process said when it started; empty until all have.
        self.facts: list[dict[str, Any]] = []
        self._module = module
        self._settings = settings
        self._environment = environment
        self._timeout_s = timeout_s
        self._new_interpreters = new_interpreters
        self._processes: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _end, self._processes)

    def start(self) -> None:
        """Start the processes, unless they have been; errors say what this machine lacks."""
        if self._processes:
            return
        require_fbgemm(self.device)
        self.facts = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
        environment = {**kept, **self._environment}
        # The fork server has loaded libraries as the shell wants them.
        new_interpreters = self._new_interpreters or kept.keys() != os.environ.keys()
        try:
            with tempfile.TemporaryDirectory(prefix="shardgym-") as folder:
                for own in self._settings:
                    settings = {**own, "file": str(Path(folder, "rendezvous")), "cores": usable_cores()}
                    process = _Worker(
                        self._module, settings, environment=environment,
                        new_interpreter=new_interpreters, quiet=True,
                    )  # fmt: skip
                    self._processes.append(process)
                self.facts = self._answers(_START_S)
        except BaseException as error:
            self.close()
            if isinstance(error, _RefusedError):
                raise InputError(str(error)) from None
            if isinstance(error, MeasurementError):
                more = "run 'shardgym doctor' to see what this machine has"
                raise MeasurementError(f"FBGEMM does not work here: {error}; {more}") from None
            raise

    def ask(self, job: Any) -> list[Any]:
        """Return the answers of all processes to a job; one that died, hung or failed ends all, a refusal none."""
        self.start()
        try:
            with _alone() if self.device == "cpu" else contextlib.nullcontext():
                for process in self._processes:
                    process.send(job)
                return self._answers(self._timeout_s)
        except _RefusedError:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the processes; they are started again when needed."""
        _end(self._processes)

    def _answers(self, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        answers: list[Any] = []
        refusals: list[str] = []
        for number, process in enumerate(self._processes):
            try:
                status, value = process.receive(timeout_s, deadline)
            except MeasurementError as error:
                status = "failed"
                value = str(error)
            if status == "failed":
                raise MeasurementError(self._culprit(number, value))
            (answers if status == "ok" else refusals).append(value)
        if refusals:
            raise _RefusedError(refusals[0])
        return answers

    def _culprit(self, number: int, complaint: str) -> str:
        """Name the process that died, which others may report before its exit is seen here."""
        deadline = time.monotonic() + _NOTICE_S
        while len(self._processes) > 1:
            for other, process in enumerate(self._processes):
                if process.dead and other != number and self.facts:
                    return f"device {other}: {process.cause_of_death()}"
            # One that cannot start says why, and ends.
            if self._processes[number].dead or not self.facts or time.monotonic() > deadline:
                return f"device {number}: {complaint}"
            time.sleep(_NOTICE_S / 50)
        return complaint


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let programs that measure on this machine take turns, job by job: at once, they would slow each other down.

    The folder of temporary files is locked, as every user may open it. The system unlocks it if this process dies.
    """
    import fcntl  # Windows has none, where nothing can be measured

    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _end(processes: list[_Worker]) -> None:
    while processes:
        processes.pop().kill()


def step_ranks(
    size: int, device: str, timeout_s: float, domain_size: int, links: namespaces.ShapedLinks | None = None
) -> Workers:
    """Return the ranks of complete steps, one per device, on gloo or NCCL, where rank i has GPU i; see `step.py`.

    On CPUs they are not pinned: where ranks share cores with others, one that may not move waits whole time slices
    (0.4 ms became 2 to 5 ms). They have the loopback interface where `links` are None.
    """
    interface = "lo" if links is None else namespaces.INTERFACE
    shared = {
        "world_size": size, "device": device, "timeout_s": timeout_s + _START_S, "links": links,
        "domain_size": domain_size,
    }  # fmt: skip
    return Workers(
        "shardgym.costs.fbgemm.step_rank",
        [{"rank": rank, **shared} for rank in range(size)],
        {**_STEPS, "GLOO_SOCKET_IFNAME": interface},
        timeout_s,
        new_interpreters=device == "cuda",
    )


def kernel_timer(device: str, seed: int, timeout_s: float) -> Workers:
    """Return the process that times kernels on the first core or GPU, see `kernels.py`; `seed` is of the id draws."""
    settings = {"device": device, "seed": seed}
    return Workers("shardgym.costs.fbgemm.kernels", [settings], _KERNELS, timeout_s, new_interpreters=True)


def require_fbgemm(device: str) -> None:
    """Raise `MeasurementError` on systems other than Linux, `MissingDependencyError` when FBGEMM is not installed."""
    if sys.platform != "linux":
        raise MeasurementError(
            f"measuring needs Linux, to schedule processes and shape links, but this is {sys.platform}: use cost "
            "'roofline' or 'simulator'"
        )
    if importlib.util.find_spec("fbgemm_gpu") is None:
        raise MissingDependencyError("fbgemm_gpu", "cpu" if device == "cpu" else "gpu", "measuring plans")
