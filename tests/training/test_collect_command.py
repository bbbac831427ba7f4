"""`shardgym collect`: output, exit codes, bad usage."""

from __future__ import annotations

import json

import collection_toys
import pytest

from shardgym.cli import main

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")

SMALL = ["--preset", "quick", "--compute", "12", "--steps", "2"]


@pytest.fixture
def toys(monkeypatch):
    return collection_toys.install(monkeypatch)


def test_the_summary_names_counts_noise_and_files(toys, tmp_path, capsys):
    assert main(["collect", "--out", str(tmp_path), *SMALL]) == 0
    text = capsys.readouterr().out
    assert text.startswith("compute: 13 (")
    assert "repeats: CV 0.0 %, MAPE 0.0 % over 1 pairs" in text
    assert "\nsteps: 8 (" in text
    assert f"steps: {tmp_path / 'steps.parquet'}" in text


def test_json_is_for_machines(toys, tmp_path, capsys):
    assert main(["collect", "--out", str(tmp_path), "--json", *SMALL]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert sum(data["counts"]["compute"].values()) == 13
    assert data["per_minute"]["compute"] > 0
    assert captured.err == ""


def test_a_failed_sample_is_exit_code_1(toys, tmp_path, capsys):
    pool, _ = toys
    pool.refuses = frozenset({1})
    assert main(["collect", "--out", str(tmp_path), *SMALL]) == 1
    assert "failed: compute/" in capsys.readouterr().out


def test_ctrl_c_says_how_to_continue_and_finish_does(toys, tmp_path, capsys):
    pool, _ = toys
    pool.ends_after = 6
    assert main(["collect", "--out", str(tmp_path), *SMALL]) == 130
    assert "interrupted; the same command continues" in capsys.readouterr().err
    assert main(["collect", "--out", str(tmp_path), "--finish"]) == 0
    assert "compute.parquet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing option '--out'"),
        (["--out", "x", "--preset", "quik"], "unknown preset 'quik': did you mean quick?"),
        (["--out", "x", "--preset", "oracle", "--axis", "bach=1"], "unknown axis 'bach': did you mean batch?"),
        (["--out", "x", "--device", "gpu"], "unknown device 'gpu'"),
        (["--out", "x", "--device", "cuda", "--steps", "2"], "complete steps are measured on the CPU; use steps=0"),
        (["--out", "nowhere", "--finish"], "nowhere holds no collection.json"),
    ],
)
def test_bad_usage_is_one_line(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["collect", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
