"""`shardgym doctor`: what this machine can measure, with which versions, and what is missing."""

import importlib.util
import json
import signal
import subprocess
import sys
from typing import Any

import click

from shardgym.cli.common import answer, json_option
from shardgym.costs.fbgemm import namespaces
from shardgym.costs.fbgemm.cost import RANKS_PER_CORE
from shardgym.errors import error_text, install_command
from shardgym.machine import available_bytes, blas_kernels, commit, cpu_tag, usable_cores, versions

_PROBE_TIMEOUT_S = 120

#: A module of each extra that is for using ShardGym.
_MODULES = {
    "cpu": "fbgemm_gpu", "data": "pyarrow", "rl": "sb3_contrib", "parallel": "loky", "cluster": "ray", "site": "plotly",
    "torchrec": "torchrec",
}  # fmt: skip


@click.command("doctor")
@json_option
def doctor(as_json: bool) -> int:
    """Say what this machine can measure.

    The command prints cores, memory, GPUs, versions, whether torch and FBGEMM fit together, and missing extras. The
    exit code is 1 if FBGEMM kernels cannot be measured here; everything else still works.
    """
    found = diagnose()
    answer(as_json, found, "\n".join(f"{name:<18}{text}" for name, text in describe(found).items()))
    return 0 if found["ok"] else 1


def diagnose() -> dict[str, Any]:
    """Examine the machine. Torch and FBGEMM are loaded in another process, which may crash without harm."""
    probed = _run_probe()
    return {
        "ok": not probed["problem"],
        "versions": versions(),
        "commit": commit(),
        "hardware": cpu_tag(),
        "blas": blas_kernels(),  # which decide how predictions are rounded
        "cores": len(usable_cores()),
        "free_bytes": available_bytes(),
        "no_links": namespaces.why_not(),
        "missing_extras": [extra for extra, module in _MODULES.items() if importlib.util.find_spec(module) is None],
        **probed,
    }


def describe(found: dict[str, Any]) -> dict[str, str]:
    """Return what was found as text by topic."""
    links = f"measured over links of {namespaces.SLOWEST_LINK:.3g} to {namespaces.FASTEST_LINK:.3g} bytes/s"
    gpus, problem, cuda_problem = found["gpus"], found["problem"], found["cuda_problem"]
    texts = {
        **found["versions"],
        "commit": found["commit"] or "not run from a checkout",
        "hardware tag": found["hardware"],
        "BLAS": found["blas"],
        "cores": f"{found['cores']}: tasks of up to {RANKS_PER_CORE * found['cores']} devices can be measured",
        "free memory": f"{found['free_bytes'] / 2**30:.1f} GiB",
        **{f"GPU {i}": f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.1f} GiB" for i, gpu in enumerate(gpus)},
        "steps on cpu": f"not measured: {problem}" if problem else "measured",
        "exchanges on cpu": f"modelled: {found['no_links']}" if found["no_links"] else links,
    }
    if gpus or cuda_problem:
        texts["steps on cuda"] = f"not measured: {cuda_problem}" if cuda_problem else "measured"
    if problem or cuda_problem:
        texts["remedy"] = "each fbgemm-gpu fits one torch: install both with the extra 'cpu' or 'gpu'"
    return texts | {f"without {extra}": install_command(extra) for extra in found["missing_extras"]}


def _run_probe() -> dict[str, Any]:
    """Run `probe` in a process of its own; return the problem if it fails."""
    command = [sys.executable, "-m", "shardgym.cli.doctor"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {_PROBE_TIMEOUT_S} s"
    else:
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        if done.returncode < 0:  # the last line of stderr would be an unrelated warning
            reason = f"the process died with signal {-done.returncode} ({signal.Signals(-done.returncode).name})"
        else:
            reason = (done.stderr.strip().splitlines() or [f"the process ended with {done.returncode}"])[-1]
    return {"gpus": [], "problem": f"torch and FBGEMM do not load: {reason}", "cuda_problem": ""}


def probe() -> dict[str, Any]:
    """Return what torch and FBGEMM find: GPUs, and why steps cannot run on the CPU or on GPUs, "" if they can."""
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
