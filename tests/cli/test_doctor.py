"""doctor: what is missing is named, and a torch that crashes does not take the command down."""

import json
import subprocess
import types

import pytest
import torch

from shardgym.cli import doctor, main

PROBED = {"gpus": [], "problem": "", "cuda_problem": ""}
GPU = {"name": "Accelerator", "memory_bytes": 80 * 2**30}


@pytest.mark.parametrize(
    ("found", "topic", "text"),
    [
        ({}, "steps on cpu", "measured"),
        ({"problem": "ImportError: no fbgemm_gpu"}, "steps on cpu", "not measured: ImportError: no fbgemm_gpu"),
        ({"problem": "x"}, "remedy", "each fbgemm-gpu fits one torch: install both with the extra 'cpu' or 'gpu'"),
        ({}, "exchanges on cpu", "measured over links of 2.5e+07 to 2.5e+08 bytes/s"),
        ({"no_links": "it takes root"}, "exchanges on cpu", "modelled: it takes root"),
        ({"gpus": [GPU]}, "GPU 0", "Accelerator, 80.0 GiB"),
        ({"gpus": [GPU]}, "steps on cuda", "measured"),
        ({"gpus": [GPU], "cuda_problem": "no kernel image"}, "steps on cuda", "not measured: no kernel image"),
        ({"missing_extras": ["rl"]}, "without rl", "pip install 'shardgym[rl]'"),
    ],
)
def test_what_is_measured_and_what_is_missing_is_said(monkeypatch, found, topic, text):
    monkeypatch.setattr(doctor, "_run_probe", lambda: PROBED)
    assert doctor.describe(doctor.diagnose() | {"no_links": ""} | found)[topic] == text


@pytest.mark.parametrize(
    ("problem", "cuda_problem", "code"), [("", "", 0), ("", "no kernel image", 0), ("torch does not load", "", 1)]
)
def test_the_exit_code_says_whether_the_cpu_measures(monkeypatch, capsys, problem, cuda_problem, code):
    monkeypatch.setattr(doctor, "_run_probe", lambda: PROBED | {"problem": problem, "cuda_problem": cuda_problem})
    assert main(["doctor", "--json"]) == code
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["problem"]) == (code == 0, problem)
    assert data["cores"] >= 1


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
    assert doctor.diagnose()["problem"] == f"torch and FBGEMM do not load: {reason}"


def test_gpus_that_torch_counts_and_cannot_use_do_not_hide_the_cpu(monkeypatch):
    """With a driver that is too old torch counts GPUs, and fails when asked about one."""

    def properties(index):
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    seen = doctor.probe()
    assert seen["gpus"] == []
    assert seen["cuda_problem"].startswith("RuntimeError: The NVIDIA driver on your system is too old")
