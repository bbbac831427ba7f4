"""diagnose: can this machine measure, on what, and what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from typing import Any

from shardgym.costs.fbgemm.communication import RANKS_PER_CORE
from shardgym.costs.workers.machine import usable_cores
from shardgym.doctor.machine import memory_bytes, missing_extras
from shardgym.evaluation.provenance import commit, versions

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
        measures = "yes" if self.ok else f"NO: {self.problem}"
        where = ["cpu"] + (["cuda"] if self.gpus and "fbgemm-gpu" in self.versions else [])
        verdicts = [f"measure compute: {measures}" + (f", on {' and '.join(where)}" if self.ok else "")]
        if self.ok and self.gloo:
            most = RANKS_PER_CORE * self.cores
            verdicts.append(f"measure communication: gloo, up to {most} devices on cpu; modelled beyond that")
        elif self.ok:
            verdicts.append("measure communication: no, torch has no gloo; it will be modelled")
        if self.ok and self.nccl and len(self.gpus) > 1:
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
        problem=problem or found.get("fbgemm_error", ""), missing_extras=missing_extras(),
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
        last = done.stderr.strip().splitlines()[-1:] or [f"the process ended with {done.returncode}"]
        return {}, f"torch does not load: {last[0]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, ""
