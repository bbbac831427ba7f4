"""doctor: what is missing is named, and a torch that crashes does not take the command down."""

from __future__ import annotations

import importlib.util
import subprocess
from types import SimpleNamespace

import pytest
import torch

from shardgym.cli import doctor
from shardgym.cli.doctor import Diagnosis


def found(**fields):
    machine = {"hardware": "cpu-toy-4c", "blas": "toy", "cores": 4, "memory_bytes": 8 * 2**30}
    return Diagnosis(versions={"python": "3.11.0"}, commit="", **machine, **fields)


def test_extras_are_those_of_the_package():
    assert {"cpu", "gpu", "rl"} <= set(doctor.missing_distributions())


@pytest.mark.parametrize(
    ("extras", "missing"),
    [
        ({"cpu": [], "gpu": ["fbgemm-gpu"], "rl": []}, []),
        ({"cpu": ["fbgemm-gpu-cpu"], "gpu": [], "rl": ["stable-baselines3"]}, ["rl"]),
        ({"cpu": ["fbgemm-gpu-cpu"], "gpu": ["fbgemm-gpu"], "rl": []}, ["cpu", "gpu"]),
        ({"cpu": [], "dev": ["pytest"]}, []),
    ],
)
def test_one_of_the_two_fbgemm_wheels_is_enough(monkeypatch, extras, missing):
    monkeypatch.setattr(doctor, "missing_distributions", lambda: extras)
    assert doctor.missing_extras() == missing


def test_what_cuda_takes_is_said_before_it_is_installed_and_where_nothing_uses_it():
    (line,) = [line for line in found(missing_extras=["cpu"]).lines() if line.startswith("extra")]
    assert line.index("CPU wheels") < line.index("5 GB") < line.index("pip install 'shardgym[cpu]'")
    assert "torch was built for CUDA 12.8 and there is no GPU" in found(cuda_version="12.8").lines()[0]
    with_gpu = found(cuda_version="12.8", gpus=[{"name": "Accelerator", "memory_bytes": 2**30}])
    assert not any("5 GB" in line for line in with_gpu.lines())


def test_a_machine_that_measures_is_ok_and_one_that_does_not_says_why():
    assert found().ok
    broken = found(problem="ImportError: no fbgemm_gpu")
    assert not broken.ok
    assert "measure compute: NO: ImportError: no fbgemm_gpu" in broken.lines()


@pytest.mark.parametrize(
    ("status", "printed", "reason"),
    [
        (-11, "WARNING:root: no entry for 1.6.0\n \x1b[0m\n", "the process died with signal 11 (SIGSEGV)"),
        (1, "Traceback\nImportError: no torch\n", "ImportError: no torch"),
        (3, "", "the process ended with 3"),
    ],
)
def test_a_crash_while_loading_torch_is_a_finding(monkeypatch, status, printed, reason):
    def crash(command, **options):
        return subprocess.CompletedProcess(command, status, stdout="", stderr=printed)

    monkeypatch.setattr(doctor.subprocess, "run", crash)
    assert doctor.diagnose().problem == f"torch and FBGEMM do not load: {reason}"


def test_a_machine_says_whether_exchanges_are_measured():
    assert (
        "measure exchanges on cpu: yes, over links of 2.5e+07 to 2.5e+08 bytes/s; modelled for others"
        in found().lines()
    )
    assert "measure exchanges on cpu: no, modelled: it takes root" in found(no_links="it takes root").lines()


def test_gpus_are_listed():
    gpu = {"name": "Accelerator", "memory_bytes": 80 * 2**30}
    lines = Diagnosis({}, "", "cpu-toy-4c", "toy", 4, 2**30, gpus=[gpu, gpu], nccl=True).lines()
    assert "GPU             Accelerator, 80.0 GiB" in lines
    assert "measure compute: yes, on cpu and cuda" in lines
    assert "measure exchanges on cuda: nccl, up to 2 devices" in lines


def test_a_gpu_that_lacks_kernels_is_told_apart_from_the_cpu():
    gpu = {"name": "Accelerator", "memory_bytes": 80 * 2**30}
    complaint = "AcceleratorError: CUDA error: no kernel image is available for execution on the device"
    broken = Diagnosis(
        {"fbgemm-gpu": "1"}, "", "cpu-toy-4c", "toy", 4, 2**30, gpus=[gpu, gpu], nccl=True, cuda_problem=complaint
    )
    assert broken.ok
    assert "measure compute: yes, on cpu" in broken.lines()
    told = [line for line in broken.lines() if "cuda" in line]
    assert len(told) == 1
    assert told[0].startswith(f"measure compute on cuda: NO: {complaint}; the installed torch or FBGEMM has no kernels")


def test_a_build_for_gpus_without_a_driver_is_explained():
    broken = found(problem="OSError: libnvidia-ml.so.1: cannot open shared object file")
    assert any("NO: OSError: libnvidia-ml" in line and "extra 'cpu'" in line for line in broken.lines())


def test_gpus_that_torch_counts_and_cannot_use_do_not_hide_the_cpu(monkeypatch):
    """With a driver that is too old torch counts GPUs, and fails when asked about one."""

    def properties(index):
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    seen = doctor.probe()
    assert seen["gpus"] == []
    assert seen["cuda_problem"].startswith("RuntimeError: The NVIDIA driver on your system is too old")


@pytest.mark.measured
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'")
def test_a_kernel_is_run_on_a_gpu_before_it_is_said_to_measure(monkeypatch):
    gpu = SimpleNamespace(name="Accelerator", total_memory=2**36)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    seen = doctor.probe()
    assert seen["gpus"] == [{"name": "Accelerator", "memory_bytes": 2**36}]
    assert seen["problem"] == ""
    assert seen["cuda_problem"]
