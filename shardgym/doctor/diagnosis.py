"""diagnose: can this machine measure, on what, and what is missing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from shardgym.costs.fbgemm.cost import RANKS_PER_CORE
from shardgym.costs.fbgemm.machine import usable_cores
from shardgym.costs.fbgemm.pool import known_remedy
from shardgym.doctor.machine import memory_bytes, missing_extras
from shardgym.provenance import commit, versions

_PROBE_TIMEOUT_S = 120


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        versions: of Python and of the packages that matter.
        commit: of the checkout, "" when not run from one.
        cores: that this process may use.
        memory_bytes: of the machine or container.
        gpus: name and memory of every GPU that torch sees.
        gloo: whether torch has it.
        nccl: whether torch has it.
        problem: why FBGEMM kernels cannot run; "" when they can.
        cuda_problem: why they cannot run on the GPUs; "" when they can, or when there is none.
        missing_extras: extras that are not installed.
    """

    versions: dict[str, str]
    commit: str
    cores: int
    memory_bytes: int
    gpus: list[dict[str, Any]] = field(default_factory=list)
    gloo: bool = False
    nccl: bool = False
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
        return [
            *(f"{name:<16}{version}" for name, version in self.versions.items()),
            f"{'commit':<16}{self.commit or 'not run from a checkout'}",
            f"{'cores':<16}{self.cores}",
            f"{'memory':<16}{self.memory_bytes / 2**30:.1f} GiB",
            *(f"{'GPU':<16}{gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB" for gpu in self.gpus),
            "",
            *self._verdicts(),
        ]

    def _verdicts(self) -> list[str]:
        on_gpus = bool(self.gpus) and not self.cuda_problem
        measures = f"yes, on {'cpu and cuda' if on_gpus else 'cpu'}" if self.ok else f"NO: {_with_remedy(self.problem)}"
        verdicts = [f"measure compute: {measures}"]
        if self.cuda_problem:
            verdicts.append(f"measure compute on cuda: NO: {_with_remedy(self.cuda_problem)}")
        if self.ok and self.gloo:
            most = RANKS_PER_CORE * self.cores
            verdicts.append(f"measure communication: gloo, up to {most} devices on cpu; modelled beyond that")
        elif self.ok:
            verdicts.append("measure communication: no, torch has no gloo; it will be modelled")
        if self.ok and on_gpus and self.nccl and len(self.gpus) > 1:
            verdicts.append(f"measure communication: nccl, up to {len(self.gpus)} devices on cuda")
        return verdicts + [
            f"extra not installed: {name} (pip install 'shardgym[{name}]')" for name in self.missing_extras
        ]


def diagnose() -> Diagnosis:
    """Look at the machine. Torch and FBGEMM are loaded in another process, which may crash without harm."""
    found, problem = _probe()
    return Diagnosis(
        versions=versions(), commit=commit(), cores=len(usable_cores()), memory_bytes=memory_bytes(),
        gpus=found.get("gpus", []), gloo=found.get("gloo", False), nccl=found.get("nccl", False),
        problem=problem or found.get("fbgemm_error", ""), cuda_problem=found.get("cuda_error", ""),
        missing_extras=missing_extras(),
    )  # fmt: skip


def _probe() -> tuple[dict[str, Any], str]:
    """Return (what the probe found, why it failed)."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shardgym.doctor.probe"],
            capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {}, f"torch and FBGEMM did not load within {_PROBE_TIMEOUT_S} s"
    if done.returncode != 0:
        return {}, f"torch and FBGEMM do not load: {_last_words(done)}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, ""


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    """Return how a process failed: its signal, as warnings that came before say nothing of it, or its exception."""
    if done.returncode < 0:
        return f"the process died with signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
    return (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]


def _with_remedy(problem: str) -> str:
    advice = known_remedy(problem)
    return f"{problem}; {advice}" if advice else problem
