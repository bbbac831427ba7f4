"""`shardgym doctor`: what this machine can measure, with which versions, and what is missing."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.cost import RANKS_PER_CORE
from shardgym.errors import error_text, install_command
from shardgym.machine import available_bytes, blas_kernels, commit, cpu_tag, usable_cores, versions

_PROBE_TIMEOUT_S = 120

#: A module of each extra that is for using ShardGym.
_MODULES = {
    "cpu": "fbgemm_gpu", "data": "pyarrow", "rl": "sb3_contrib", "parallel": "loky", "cluster": "ray", "site": "plotly",
    "sketches": "datasketches", "torchrec": "torchrec",
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """Versions, hardware and missing parts."""

    versions: dict[str, str]
    #: Of the checkout, "" when not run from one.
    commit: str
    #: Tag of times that are measured on this machine's cores.
    hardware: str
    #: Kernels that NumPy's BLAS has chosen, which decide how predictions are rounded.
    blas: str
    cores: int
    free_bytes: int
    #: Name and memory of every GPU that torch sees.
    gpus: list[dict[str, Any]] = field(default_factory=list)
    #: Why exchanges between processes are modelled and not measured; "" where links can be shaped.
    no_links: str = ""
    #: Why training steps cannot run on the CPU, and on the GPUs; "" when they can.
    problem: str = ""
    cuda_problem: str = ""
    missing_extras: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether FBGEMM kernels can be measured on this machine."""
        return not self.problem

    def to_dict(self) -> dict[str, Any]:
        """Return the diagnosis JSON-ready."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the diagnosis as lines of text."""
        links = f"{namespaces.SLOWEST_LINK:.3g} to {namespaces.FASTEST_LINK:.3g} bytes/s"
        facts = {
            **self.versions,
            "commit": self.commit or "not run from a checkout",
            "hardware tag": self.hardware,
            "BLAS": self.blas,
            "cores": f"{self.cores}: tasks of up to {RANKS_PER_CORE * self.cores} devices can be measured",
            "free memory": f"{self.free_bytes / 2**30:.1f} GiB",
            **{f"GPU {i}": f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB" for i, gpu in enumerate(self.gpus)},
            "steps on cpu": f"not measured: {self.problem}" if self.problem else "measured",
            "exchanges on cpu": f"modelled: {self.no_links}" if self.no_links else f"measured over links of {links}",
        }
        if self.gpus or self.cuda_problem:
            facts["steps on cuda"] = f"not measured: {self.cuda_problem}" if self.cuda_problem else "measured"
        if self.problem or self.cuda_problem:
            facts["remedy"] = "each fbgemm-gpu fits one torch: install both by the extra 'cpu' or 'gpu'"
        for extra in self.missing_extras:
            facts[f"without {extra}"] = install_command(extra)
        return [f"{name:<18}{text}" for name, text in facts.items()]


def diagnose() -> Diagnosis:
    """Examine the machine. Torch and FBGEMM are loaded in another process, which may crash without harm."""
    return Diagnosis(
        versions=versions(),
        commit=commit(),
        hardware=cpu_tag(),
        blas=blas_kernels(),
        cores=len(usable_cores()),
        free_bytes=available_bytes(),
        no_links=namespaces.why_not(),
        missing_extras=[extra for extra, module in _MODULES.items() if importlib.util.find_spec(module) is None],
        **_run_probe(),
    )


def _run_probe() -> dict[str, Any]:
    """Run `probe` in a process of its own; of one that fails, return the problem."""
    command = [sys.executable, "-m", "shardgym.cli.doctor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"problem": f"torch and FBGEMM did not load within {_PROBE_TIMEOUT_S} s"}
    if done.returncode == 0:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found
    if done.returncode < 0:  # the last line of stderr would be an unrelated warning
        last = f"the process died with signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
    else:
        last = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return {"problem": f"torch and FBGEMM do not load: {last}"}


def probe() -> dict[str, Any]:
    """Return the fields of `Diagnosis` that torch and FBGEMM tell; a wrong pair of versions may crash the process."""
    import torch

    gpus: list[dict[str, Any]] = []
    problem = _fbgemm_error("cpu")
    cuda_problem = ""
    try:  # torch also counts GPUs that a driver is too old to use
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gpus.append({"name": properties.name, "memory_bytes": properties.total_memory})
        cuda_problem = _fbgemm_error("cuda") if gpus and not problem else ""
    except Exception as error:
        gpus = []
        cuda_problem = error_text(error)
    return {"gpus": gpus, "problem": problem, "cuda_problem": cuda_problem}


def _fbgemm_error(device: str) -> str:
    """Run one small operator and return its error, "" if none: imports may succeed without kernels or libraries."""
    import torch

    try:
        import fbgemm_gpu.split_table_batched_embeddings_ops_training  # noqa: F401

        lengths = torch.tensor([1, 2], device=device)
        assert torch.ops.fbgemm.asynchronous_complete_cumsum(lengths).tolist() == [0, 1, 3]
    except Exception as error:
        return error_text(error)
    return ""


if __name__ == "__main__":
    print(json.dumps(probe()))
