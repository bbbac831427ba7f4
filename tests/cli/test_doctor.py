"""doctor: what is missing is named, and a torch that crashes does not take the command down."""

from __future__ import annotations

import subprocess
import types

import pytest
import torch

from shardgym.cli import doctor
from shardgym.cli.doctor import Diagnosis

GPU = {"name": "Accelerator", "memory_bytes": 80 * 2**30}


def told(**fields):
    diagnosis = Diagnosis({"python": "3.11.0"}, "", "cpu-toy-4c", "toy", 4, 8 * 2**30, **fields)
    return diagnosis.ok, {line[:18].strip(): line[18:] for line in diagnosis.lines()}


def test_a_machine_that_measures_is_ok_and_one_that_does_not_says_why():
    assert told()[0]
    ok, lines = told(problem="ImportError: no fbgemm_gpu")
    assert not ok
    assert lines["steps on cpu"] == "not measured: ImportError: no fbgemm_gpu"
    assert "fits one torch" in lines["remedy"]
    assert told()[1]["exchanges on cpu"] == "measured over links of 2.5e+07 to 2.5e+08 bytes/s"
    assert told(no_links="it takes root")[1]["exchanges on cpu"] == "modelled: it takes root"


def test_gpus_are_listed_and_one_that_lacks_kernels_is_told_apart_from_the_cpu():
    assert told(gpus=[GPU])[1]["GPU 0"] == "Accelerator, 80.0 GiB"
    assert told(gpus=[GPU])[1]["steps on cuda"] == "measured"
    ok, lines = told(gpus=[GPU], cuda_problem="no kernel image is available")
    assert ok
    assert lines["steps on cuda"] == "not measured: no kernel image is available"
    assert told(missing_extras=["rl"])[1]["without rl"] == "pip install 'shardgym[rl]'"


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

    # Only the doctor's own: `machine.commit`, which is kept for the process, runs git.
    monkeypatch.setattr(
        doctor, "subprocess", types.SimpleNamespace(run=crash, TimeoutExpired=subprocess.TimeoutExpired)
    )
    assert doctor.diagnose().problem == f"torch and FBGEMM do not load: {reason}"


def test_gpus_that_torch_counts_and_cannot_use_do_not_hide_the_cpu(monkeypatch):
    """With a driver that is too old torch counts GPUs, and fails when asked about one."""

    def properties(index):
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    seen = doctor.probe()
    assert seen["gpus"] == []
    assert seen["cuda_problem"].startswith("RuntimeError: The NVIDIA driver on your system is too old")
