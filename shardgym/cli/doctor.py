"""`shardgym doctor`: what this machine can measure, with which versions, and what is missing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.cost import RANKS_PER_CORE
from shardgym.costs.fbgemm.pool import known_remedy
from shardgym.errors import error_text, install_command
from shardgym.machine import arithmetic, commit, cpu_tag, usable_cores, versions
from shardgym.registry import missing_distributions

_PROBE_TIMEOUT_S = 120
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

#: Extras that are for working on ShardGym, not for using it.
_DEVELOPMENT_EXTRAS = frozenset({"dev"})
#: What to do before an extra is installed, by extra.
_BEFORE_EXTRA = {
    "cpu": "on Linux first torch from PyTorch's CPU wheels, by pip's --index-url, or 5 GB of CUDA come along; then "
}
#: One of these is enough: both install FBGEMM.
_FBGEMM_EXTRAS = frozenset({"cpu", "gpu"})


@dataclass(frozen=True)
class Diagnosis:
    """Versions, hardware and missing parts.

    Attributes:
        versions: of Python and of the packages that matter.
        commit: of the checkout, "" when not run from one.
        hardware: tag of times that are measured on this machine's cores.
        blas: kernels that NumPy's BLAS has chosen, which decide how predictions are rounded.
        cores: that this process may use.
        memory_bytes: of the machine or container; 0 when the system does not tell.
        gpus: name and memory of every GPU that torch sees.
        no_links: why exchanges between processes are modelled and not measured; "" where links can be shaped.
        nccl: whether torch has it.
        problem: why training steps cannot run on the CPU; "" when they can.
        cuda_problem: why they cannot run on the GPUs; "" when they can, or when there is none.
        missing_extras: extras that are not installed.
        cuda_version: of CUDA that torch was built for; "" for a build without.
    """

    versions: dict[str, str]
    commit: str
    hardware: str
    blas: str
    cores: int
    memory_bytes: int
    gpus: list[dict[str, Any]] = field(default_factory=list)
    no_links: str = ""
    nccl: bool = False
    problem: str = ""
    cuda_problem: str = ""
    missing_extras: list[str] = field(default_factory=list)
    cuda_version: str = ""

    @property
    def ok(self) -> bool:
        """Whether FBGEMM kernels can be measured on this machine."""
        return not self.problem

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis JSON-ready."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the diagnosis as lines of text."""
        memory = f"{self.memory_bytes / 2**30:.1f} GiB" if self.memory_bytes else "unknown"
        unused_cuda = [
            f"torch was built for CUDA {self.cuda_version} and there is no GPU: its libraries take 5 GB; PyTorch's CPU "
            "wheels, by pip's --index-url, have none",
            "",
        ]
        lines = [
            *(unused_cuda if self.cuda_version and not self.gpus else []),
            *(f"{name:<16}{version}" for name, version in self.versions.items()),
            f"{'commit':<16}{self.commit or 'not run from a checkout'}",
            f"{'hardware tag':<16}{self.hardware}",
            f"{'BLAS':<16}{self.blas}",
            f"{'cores':<16}{self.cores}",
            f"{'memory':<16}{memory}",
            *(f"{'GPU':<16}{gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB" for gpu in self.gpus),
            "",
        ]
        on_gpus = bool(self.gpus) and not self.cuda_problem
        devices = "cpu and cuda" if on_gpus else "cpu"
        lines.append(f"measure compute: {f'yes, on {devices}' if self.ok else f'NO: {_with_remedy(self.problem)}'}")
        if self.cuda_problem:
            lines.append(f"measure compute on cuda: NO: {_with_remedy(self.cuda_problem)}")
        if self.ok:
            lines.append(f"devices of a task on cpu: up to {RANKS_PER_CORE * self.cores}")
            slowest, fastest = namespaces.SLOWEST_LINK, namespaces.FASTEST_LINK
            links = f"yes, over links of {slowest:.3g} to {fastest:.3g} bytes/s; modelled for others"
            lines.append(f"measure exchanges on cpu: {f'no, modelled: {self.no_links}' if self.no_links else links}")
        if self.ok and on_gpus and self.nccl and len(self.gpus) > 1:
            lines.append(f"measure exchanges on cuda: nccl, up to {len(self.gpus)} devices")
        lines += [
            f"extra not installed: {name} ({_BEFORE_EXTRA.get(name, '')}{install_command(name)})"
            for name in self.missing_extras
        ]
        return lines


def _with_remedy(problem: str) -> str:
    remedy = known_remedy(problem)
    return f"{problem}; {remedy}" if remedy else problem


def diagnose() -> Diagnosis:
    """Examine the machine. Torch and FBGEMM are loaded in another process, which may crash without harm."""
    return Diagnosis(
        versions=versions(),
        commit=commit(),
        hardware=cpu_tag(),
        blas=arithmetic()["blas"],
        cores=len(usable_cores()),
        memory_bytes=memory_bytes(),
        no_links=namespaces.why_not(),
        missing_extras=missing_extras(),
        **_run_probe(),
    )


def memory_bytes() -> int:
    """Return the memory of the machine, or of the container where that is less; 0 when the system does not tell."""
    if not hasattr(os, "sysconf"):  # Windows
        return 0
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    return min(total, int(limit)) if limit.isdigit() else total


def missing_extras() -> list[str]:
    """Return the extras that lack a distribution; of `cpu` and `gpu`, one is enough."""
    missing = missing_distributions()
    lacking = [extra for extra, names in missing.items() if names and extra not in _DEVELOPMENT_EXTRAS]
    has_fbgemm = bool(_FBGEMM_EXTRAS - set(lacking))
    return [extra for extra in lacking if not (has_fbgemm and extra in _FBGEMM_EXTRAS)]


def _run_probe() -> dict[str, Any]:
    """Run `probe` in a process of its own; of one that fails, return the problem."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shardgym.cli.doctor"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"problem": f"torch and FBGEMM did not load within {_PROBE_TIMEOUT_S} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if done.returncode < 0:
        # The last line of stderr would be an unrelated warning.
        last = f"the process died with signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
    else:
        last = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return {"problem": f"torch and FBGEMM do not load: {last}"}


def probe() -> dict[str, Any]:
    """Return the fields of `Diagnosis` that torch and FBGEMM tell; a wrong pair of versions may crash the process."""
    import torch

    gpus: list[dict[str, Any]] = []
    cuda_problem = ""
    try:
        # Torch also counts GPUs that a driver is too old to use.
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append({"name": properties.name, "memory_bytes": properties.total_memory})
    except Exception as error:
        gpus = []
        cuda_problem = error_text(error)
    problem = _fbgemm_error("cpu")
    if not (problem or (torch.distributed.is_available() and torch.distributed.is_gloo_available())):
        problem = "this torch has no gloo, over which processes exchange"
    if gpus and not problem:
        cuda_problem = _fbgemm_error("cuda")
    return {
        "cuda_version": torch.version.cuda or "",
        "nccl": torch.distributed.is_available() and torch.distributed.is_nccl_available(),
        "gpus": gpus,
        "problem": problem,
        "cuda_problem": cuda_problem,
    }


def _fbgemm_error(device: str) -> str:
    """Run one small operator and return its error, "" if none: imports may succeed without kernels or libraries."""
    import torch

    try:
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

        assert SplitTableBatchedEmbeddingBagsCodegen is not None
        lengths = torch.tensor([1, 2], device=device)
        assert torch.ops.fbgemm.asynchronous_complete_cumsum(lengths).tolist() == [0, 1, 3]
    except Exception as error:
        return error_text(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(probe()))
