"""doctor: what is missing is named, and a torch that crashes does not take the command down."""

from __future__ import annotations

import subprocess

import pytest

from shardgym.doctor import diagnosis, machine
from shardgym.doctor.diagnosis import Diagnosis


def found(**fields):
    return Diagnosis(versions={"python": "3.11.0"}, commit="", cores=4, memory_bytes=8 * 2**30, gloo=True, **fields)


def test_the_machine_has_memory():
    assert machine.memory_bytes() > 2**20


def test_extras_are_those_of_the_package():
    assert {"cpu", "gpu", "rl"} <= set(machine.extras())
    assert "dev" not in machine.extras()


@pytest.mark.parametrize(
    ("extras", "missing"),
    [
        ({"cpu": [], "gpu": ["fbgemm-gpu"], "rl": []}, []),
        ({"cpu": ["fbgemm-gpu-cpu"], "gpu": [], "rl": ["stable-baselines3"]}, ["rl"]),
        ({"cpu": ["fbgemm-gpu-cpu"], "gpu": ["fbgemm-gpu"], "rl": []}, ["cpu", "gpu"]),
    ],
)
def test_one_of_the_two_fbgemm_wheels_is_enough(monkeypatch, extras, missing):
    monkeypatch.setattr(machine, "extras", lambda: extras)
    assert machine.missing_extras() == missing


def test_a_missing_extra_is_named_with_the_command_that_brings_it():
    assert "extra not installed: rl (pip install 'shardgym[rl]')" in found(missing_extras=["rl"]).lines()


def test_a_machine_that_measures_is_ok_and_one_that_does_not_says_why():
    assert found().ok
    broken = found(problem="ImportError: no fbgemm_gpu")
    assert not broken.ok
    assert "measure compute: NO: ImportError: no fbgemm_gpu" in broken.lines()


def test_a_crash_while_loading_torch_is_a_finding(monkeypatch):
    def crash(command, **options):
        return subprocess.CompletedProcess(command, -11, stdout="", stderr="")

    monkeypatch.setattr(diagnosis.subprocess, "run", crash)
    assert diagnosis.diagnose().problem == "torch does not load: the process ended with -11"


def test_gpus_are_listed():
    gpu = {"name": "Accelerator", "memory_bytes": 80 * 2**30}
    lines = Diagnosis({"fbgemm-gpu": "1"}, "", 4, 2**30, gpus=[gpu, gpu], nccl=True).lines()
    assert "GPU             Accelerator, 80.0 GiB" in lines
    assert "measure compute: yes, on cpu and cuda" in lines
    assert "measure communication: nccl, up to 2 devices on cuda" in lines
