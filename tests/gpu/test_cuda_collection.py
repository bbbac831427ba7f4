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


def test_a_small_survey_of_a_gpu(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    from shardgym.costs.simulator.sample_files import read_compute

    summary = collect(tmp_path, device="cuda", preset="survey", compute=60, repeat_share=0.2)
    assert not summary.failed
    assert set(summary.counts["compute"]) == {"oracle", "judge", "test", "plans"}
    samples = read_compute(tmp_path)
    assert set(samples.shards.batch.tolist()) == {65_536.0}
    assert (samples.ms > 0).all()


def test_the_same_command_adds_nothing(tmp_path):
    pytest.importorskip("pyarrow", reason="needs the extra 'data'")
    first = collect(tmp_path, device="cuda", preset="quick", compute=10)
    again = collect(tmp_path, device="cuda", preset="quick", compute=10)
    assert (again.counts, again.measured.get("compute", 0)) == (first.counts, 0)
