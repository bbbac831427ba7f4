"""Collecting on a GPU, end to end at a small size."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from shardgym.training import collect

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measured,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'gpu'"),
]


def test_a_small_collection_of_a_gpu_and_the_same_command_adds_nothing(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    from shardgym.training.samples import read_compute

    summary = collect(tmp_path, device="cuda", samples=40)
    assert not summary.failed
    assert set(summary.counts["compute"]) == {"oracle", "judge", "test"}
    assert (read_compute(tmp_path).ms > 0).all()
    lines = (tmp_path / "measurements.jsonl").read_bytes()
    assert collect(tmp_path, device="cuda", samples=40).counts == summary.counts
    assert (tmp_path / "measurements.jsonl").read_bytes() == lines
