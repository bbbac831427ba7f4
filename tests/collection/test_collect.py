"""Runs with stand-ins for workers: resume, repeats, failures, time limit, files, wrong folders."""

from __future__ import annotations

import json

import collection_toys
import pytest

from shardgym.collection import collect, finish
from shardgym.collection.measurements import LOG, MeasurementLog
from shardgym.costs.fbgemm.jobs import HOST_WAITED, DeviceFacts
from shardgym.errors import InputError, MissingDependencyError

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")

from shardgym.costs.simulator.sample_files import read_comm, read_compute, read_info

SMALL = {"preset": "quick", "compute": 24, "comm": 8, "repeat_share": 0.25}


@pytest.fixture
def toys(monkeypatch):
    return collection_toys.install(monkeypatch)


def lines(folder):
    return sorted((folder / LOG).read_text().splitlines())


def test_a_collection_becomes_two_files_of_rows(toys, tmp_path):
    summary = collect(tmp_path, **SMALL)
    assert (summary.missing, summary.failed) == (0, {})
    compute, comm = read_compute(tmp_path), read_comm(tmp_path)
    assert len(compute) == sum(summary.counts["compute"].values()) == summary.measured["compute"] > 24
    assert len(comm) == sum(summary.counts["comm"].values()) > 8
    info = read_info(tmp_path / "compute.parquet")
    assert (info.hardware, info.settings["scale"], info.settings["seed"]) == ("cpu-toy-2c", 8, 0)


def test_rows_hold_what_was_measured(toys, tmp_path):
    """The toys take a hundredth of a ms per column forward, twice that backward."""
    collect(tmp_path, **SMALL)
    compute = read_compute(tmp_path)
    start = 0
    for count, (forward, backward) in zip(compute.counts, compute.ms, strict=True):
        width = compute.shards.columns[start : start + count].sum()
        start += count
        assert (forward, backward) == pytest.approx((width / 100, width / 50))
    comm = read_comm(tmp_path)
    assert comm.ms[: comm.counts[0], 0] == pytest.approx((1 + comm.widths[: comm.counts[0]].sum()) / 1000)


def test_repeats_share_the_digest_of_the_first_measurement(toys, tmp_path):
    summary = collect(tmp_path, **SMALL)
    labels = read_compute(tmp_path).labels
    content = dict(zip(labels.sample_id, labels.content, strict=True))
    repeats = [name for name, repeat in zip(labels.sample_id, labels.repeat, strict=True) if repeat == 1]
    assert len(repeats) == summary.noise["compute"].pairs == 4 + 2 + 1
    assert all(content[name] == content[name.removesuffix("/1") + "/0"] for name in repeats)
    assert summary.noise["compute"].cv == summary.noise["comm"].mape == 0


@pytest.mark.parametrize("kills", [[1], [2, 3, 11], [5, 5, 5, 5]])
def test_a_run_that_is_interrupted_ends_with_the_same_measurements(toys, tmp_path, kills):
    pool, _ = toys
    collect(tmp_path / "whole", **SMALL)
    for answers in kills:
        pool.answered, pool.ends_after = 0, answers
        with pytest.raises(KeyboardInterrupt):
            collect(tmp_path / "killed", **SMALL)
    pool.ends_after = None
    before = len(lines(tmp_path / "killed"))
    summary = collect(tmp_path / "killed", **SMALL)
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    assert before + sum(summary.measured.values()) == len(lines(tmp_path / "whole"))


def test_a_line_that_was_cut_off_is_measured_again(toys, tmp_path):
    collect(tmp_path, **SMALL)
    whole = lines(tmp_path)
    text = (tmp_path / LOG).read_text()
    (tmp_path / LOG).write_text(text[:-40])
    summary = collect(tmp_path, **SMALL)
    assert sum(summary.measured.values()) == 1
    assert "cut off" in summary.notices[0]
    assert lines(tmp_path) == whole


def test_the_device_itself_is_measured_once_per_folder(toys, tmp_path):
    pool, _ = toys
    for count in (4, 6):
        summary = collect(tmp_path, preset="quick", compute=count, comm=0)
    assert pool.probed == 1
    assert summary.files["device"] == str(tmp_path / "device.json")
    assert DeviceFacts.load(tmp_path / "device.json").launch_ms == 0.01


def test_a_failure_is_kept_with_its_reason_and_tried_again(toys, tmp_path):
    pool, _ = toys
    pool.refuses = frozenset({3})
    summary = collect(tmp_path, **SMALL)
    assert list(summary.failed.values()) == ["worker died with signal -9 (SIGKILL)"]
    assert "1 samples failed; the same command tries them again" in summary.lines()
    pool.refuses = frozenset()
    summary = collect(tmp_path, **SMALL)
    assert (summary.failed, summary.measured) == ({}, {"compute": 1})


def test_a_time_that_includes_waiting_for_the_host_is_no_sample(toys, tmp_path):
    pool, _ = toys
    pool.waits = frozenset({3})
    summary = collect(tmp_path, **SMALL)
    assert list(summary.failed.values()) == [HOST_WAITED]
    pool.waits = frozenset()
    assert collect(tmp_path, **SMALL).failed == {}


def test_a_broken_exchange_fails_its_samples_only(toys, tmp_path):
    _, group = toys
    group.broken = True
    summary = collect(tmp_path, **SMALL)
    assert {name.partition("/")[0] for name in summary.failed} == {"comm"}
    assert list(summary.counts) == ["compute"]
    assert not (tmp_path / "comm.parquet").exists()


def test_when_the_time_is_up_what_is_there_is_kept(toys, tmp_path):
    summary = collect(tmp_path, **SMALL, minutes=1e-9)
    assert sum(summary.measured.values()) == 0
    assert summary.missing > 32
    assert "continues" in summary.lines()[0]
    assert collect(tmp_path, **SMALL).missing == 0


def test_finish_writes_files_of_an_interrupted_run(toys, tmp_path):
    pool, _ = toys
    pool.ends_after = 10
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, **SMALL)
    assert not (tmp_path / "compute.parquet").exists()
    summary = finish(tmp_path)
    assert summary.counts["compute"].keys() <= {"oracle", "judge", "test"}
    assert len(read_compute(tmp_path)) == len(lines(tmp_path)) >= 8


@pytest.mark.parametrize(
    ("changed", "message"), [({"seed": 1}, "seed 0, this run has 1"), ({"workers": 2}, "workers 1, this run has 2")]
)
def test_a_folder_of_other_measurements_is_refused(toys, tmp_path, changed, message):
    collect(tmp_path, **SMALL)
    with pytest.raises(InputError, match=message):
        collect(tmp_path, **SMALL, **changed)


def test_a_folder_of_something_else_is_refused(toys, tmp_path):
    (tmp_path / "records.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"holds records\.jsonl but no collection\.json: give an empty folder"):
        collect(tmp_path, **SMALL)
    with pytest.raises(InputError, match="expected a folder that 'shardgym collect' wrote into"):
        finish(tmp_path)


def test_a_damaged_line_is_named(toys, tmp_path):
    collect(tmp_path, **SMALL)
    text = (tmp_path / LOG).read_text().splitlines()
    (tmp_path / LOG).write_text("\n".join([text[0], text[1][:50], *text[2:], ""]))
    with pytest.raises(InputError, match=rf"{LOG}:2: not valid JSON"):
        finish(tmp_path)


def test_a_sample_that_this_version_draws_otherwise_is_refused(toys, tmp_path):
    collect(tmp_path, **SMALL)
    first, *others = (tmp_path / LOG).read_text().splitlines()
    changed = json.dumps({**json.loads(first), "content": "0" * 64})
    (tmp_path / LOG).write_text("\n".join([changed, *others, ""]))
    with pytest.raises(InputError, match=r"was measured of 000000000000, this version of shardgym draws"):
        finish(tmp_path)


def test_a_sample_cannot_be_there_twice(toys, tmp_path):
    collect(tmp_path, **SMALL)
    text = (tmp_path / LOG).read_text()
    (tmp_path / LOG).write_text(text + text.splitlines()[0] + "\n")
    with pytest.raises(InputError, match="has been measured already"):
        MeasurementLog(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workers": 0}, "workers=0: expected a whole number, at least 1"),
        ({"repeat_share": 1.5}, r"repeat_share=1.5: expected a share from 0 to 1"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"preset": "quik"}, "did you mean quick"),
    ],
)
def test_bad_arguments_are_refused(toys, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        collect(tmp_path, **(SMALL | arguments))


def test_missing_exchanges_are_said_and_asked_for_ones_refused(toys, tmp_path, monkeypatch):
    """As on a machine with one GPU."""
    module = collection_toys.collect_module
    monkeypatch.setattr(module, "can_exchange", lambda device, devices: False)
    summary = collect(tmp_path, preset="quick", compute=6)
    assert "exchanges over 2, 3 devices were left out" in summary.notices[0]
    assert list(summary.counts) == ["compute"]
    with pytest.raises(InputError, match="use comm=0"):
        collect(tmp_path, **SMALL)


def test_without_pyarrow_nothing_is_measured(toys, tmp_path, monkeypatch):
    def missing(module, purpose):
        raise MissingDependencyError(module, "data", purpose)

    monkeypatch.setattr(collection_toys.collect_module, "import_extra", missing)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[data\]"):
        collect(tmp_path, **SMALL)
    assert not any(tmp_path.iterdir())


@pytest.mark.measured
def test_real_kernels_and_a_real_exchange(tmp_path):
    summary = collect(tmp_path, preset="quick", compute=3, comm=1, repeat_share=0)
    assert (summary.failed, summary.missing) == ({}, 0)
    assert (read_compute(tmp_path).ms > 0).all()
    assert (read_comm(tmp_path).ms > 0).all()
    assert DeviceFacts.load(tmp_path / "device.json").copy_bandwidth > 1e8
