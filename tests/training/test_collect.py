"""Runs with stand-ins for workers: resume, repeats, failures, time limit, files, wrong folders."""

from __future__ import annotations

import json

import collection_toys
import numpy as np
import pytest

from shardgym.costs.fbgemm.jobs import HOST_WAITED
from shardgym.costs.fbgemm.step import PARTS
from shardgym.errors import InputError, MissingDependencyError
from shardgym.training import collect, finish
from shardgym.training.measurements import LOG, MeasurementLog
from shardgym.training.schedule import Block, CollectionPlan, SampleId, plans_of_task
from shardgym.training.step_sampling import StepSampler

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")

from shardgym.costs.simulator.sample_files import read_compute, read_info, read_steps
from shardgym.costs.simulator.samples import STEP_PARTS

SMALL = {"preset": "quick", "compute": 24, "steps": 6, "repeat_share": 0.4}


@pytest.fixture
def toys(monkeypatch):
    return collection_toys.install(monkeypatch)


def lines(folder):
    return sorted((folder / LOG).read_text().splitlines())


def test_a_collection_becomes_two_files_of_rows(toys, tmp_path):
    summary = collect(tmp_path, **SMALL)
    assert (summary.missing, summary.failed) == (0, {})
    compute, steps = read_compute(tmp_path), read_steps(tmp_path)
    assert len(compute) == sum(summary.counts["compute"].values()) == summary.measured["compute"] > 24
    # Three, two and one task; one of the oracle's and one of the judge's twice.
    assert summary.counts["steps"] == {"oracle": 4 * 4, "judge": 3 * 4, "test": 6}
    assert summary.measured["steps"] == 4 * 4 + 3 * 4 + 6
    assert set(zip(steps.plan, steps.labels.repeat, strict=True)) == {
        (f"{role}/{task}/{plan}", repeat)
        for role, tasks, plans in (("oracle", 3, 4), ("judge", 2, 4), ("test", 1, 6))
        for task in range(tasks) for plan in range(plans)
        for repeat in ((0, 1) if task == 0 and role != "test" else (0,))
    }  # fmt: skip
    for kind in ("compute", "steps"):
        info = read_info(tmp_path / f"{kind}.parquet")
        assert (info.kind, info.hardware) == (kind, "cpu-toy-2c")
        assert (info.settings["scale"], info.settings["seed"], info.settings["step_draws"]) == (8, 0, 1)


def test_rows_hold_what_was_measured(toys, tmp_path):
    """The toys take a hundredth of a ms per column forward, twice that backward."""
    collect(tmp_path, **SMALL)
    compute = read_compute(tmp_path)
    start = 0
    for count, (forward, backward) in zip(compute.counts, compute.ms, strict=True):
        width = compute.shards.columns[start : start + count].sum()
        start += count
        assert (forward, backward) == pytest.approx((width / 100, width / 50))


def test_rows_of_steps_hold_parts_of_the_device_and_sums_of_the_plan(toys, tmp_path):
    collect(tmp_path, **SMALL)
    steps = read_steps(tmp_path)
    sampler = StepSampler(0)
    starts = np.cumsum(steps.compute.counts) - steps.compute.counts
    for n in range(len(steps)):
        role, task, plan = steps.plan[n].split("/")
        drawn = sampler.task(role, int(task))
        devices = drawn.plans[int(plan)]
        own = devices[steps.device[n]]
        held = [shard_set for shard_set in devices if shard_set is not None]
        columns = steps.compute.shards.columns[starts[n] : starts[n] + steps.compute.counts[n]]
        assert columns.tolist() == [shard.width for shard in own.shards]
        assert steps.labels.content[n] == drawn.digests(int(plan))[steps.device[n]]
        part_ms = own.width * (1 + np.arange(len(PARTS))) / 100
        np.testing.assert_allclose(
            steps.compute.ms[n], [part_ms[PARTS.index(part)] for part in ("forward", "backward")]
        )
        np.testing.assert_allclose(steps.parts_ms[n], [part_ms[PARTS.index(part)] for part in STEP_PARTS])
        assert steps.num_devices[n] == len(devices)
        assert steps.samples[n] == own.batch_size // len(devices)
        assert steps.plan_shards[n] == sum(len(shard_set.shards) for shard_set in held)
        assert steps.plan_columns[n] == sum(shard_set.width for shard_set in held)
        ids = sum(own.batch_size * s.ids_per_sample for shard_set in held for s in shard_set.shards)
        assert steps.plan_ids[n] == pytest.approx(ids)
        assert steps.labels.noise[n] == pytest.approx(0, abs=1e-12)


def test_groups_of_processes_are_kept_for_some_tasks_and_ended_at_last(toys, tmp_path, monkeypatch):
    _, group = toys
    for most, folder in ((60, "kept"), (1, "anew")):
        monkeypatch.setattr(collection_toys.measuring, "TASKS_PER_START", most)
        group.made, group.ended = [], []
        summary = collect(tmp_path / folder, **SMALL)
        assert summary.measured["steps"] == 4 * 4 + 3 * 4 + 6
        assert sorted(group.made) == sorted(group.ended)
        assert len(group.made) == (len(set(group.made)) if most > 1 else 4 + 3 + 1)


def test_repeats_share_the_digest_of_the_first_measurement(toys, tmp_path):
    summary = collect(tmp_path, **SMALL)
    for kind, labels in (("compute", read_compute(tmp_path).labels), ("steps", read_steps(tmp_path).labels)):
        content = dict(zip(labels.sample_id, labels.content, strict=True))
        repeats = [name for name, repeat in zip(labels.sample_id, labels.repeat, strict=True) if repeat == 1]
        assert len(repeats) == summary.noise[kind].pairs > 0
        assert all(content[name] == content[name.removesuffix("/1") + "/0"] for name in repeats)
    assert summary.noise["compute"].pairs == 6 + 2 + 1
    assert summary.noise["compute"].cv == summary.noise["steps"].mape == 0


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


def test_steps_that_fail_are_kept_with_their_reason_and_tried_again(toys, tmp_path):
    _, group = toys
    group.broken = True
    summary = collect(tmp_path, **SMALL)
    assert {SampleId.parse(name).kind for name in summary.failed} == {"steps"}
    assert set(summary.failed.values()) == {"device 1: worker died"}
    assert list(summary.counts) == ["compute"]
    assert not (tmp_path / "steps.parquet").exists()
    group.broken = False
    summary = collect(tmp_path, **SMALL)
    assert (summary.failed, summary.measured) == ({}, {"steps": 4 * 4 + 3 * 4 + 6})


def test_a_run_that_is_killed_between_plans_continues_with_the_others(toys, tmp_path):
    """All plans of a task are measured before the first is written; a kill while they are written leaves some."""
    collect(tmp_path, **SMALL)
    whole = lines(tmp_path)
    kept = [line for line in whole if json.loads(line)["sample_id"] not in ("steps/test/0/0", "steps/test/3/0")]
    (tmp_path / LOG).write_text("\n".join(kept) + "\n")
    assert collect(tmp_path, **SMALL).measured == {"steps": 2}
    assert lines(tmp_path) == whole


def test_there_are_no_steps_on_cuda_and_a_notice_says_so(toys, tmp_path):
    summary = collect(tmp_path, preset="quick", device="cuda", compute=6)
    assert list(summary.counts) == ["compute"]
    assert summary.notices == ("no complete steps: on CUDA kernels are timed apart",)
    with pytest.raises(InputError, match="steps=3 on cuda: complete steps are measured on the CPU; use steps=0"):
        collect(tmp_path, preset="quick", device="cuda", compute=6, steps=3)


def test_tasks_of_more_devices_than_the_machine_takes_are_left_out(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(collection_toys.collect_module, "usable_cores", lambda: [0])
    summary = collect(tmp_path, preset="quick", compute=0, steps=12)
    assert summary.notices == ("tasks of more than 4 devices were left out: this machine runs up to 4 processes",)
    assert summary.missing == 0
    assert set(read_steps(tmp_path).num_devices) == {2, 4}


def test_when_the_time_is_up_what_is_there_is_kept(toys, tmp_path):
    summary = collect(tmp_path, **SMALL, minutes=1e-9)
    assert sum(summary.measured.values()) == 0
    assert summary.missing > 24 + 26
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
    assert len(read_compute(tmp_path)) == 10
    assert len(np.unique(read_steps(tmp_path).plan)) == len(lines(tmp_path)) - 10 > 0


@pytest.mark.parametrize(("changed", "message"), [({"seed": 1}, "seed 0, this run has 1")])
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


def test_a_sample_with_times_of_other_devices_is_refused(toys, tmp_path):
    collect(tmp_path, **SMALL)
    changed = []
    for line in (tmp_path / LOG).read_text().splitlines():
        data = json.loads(line)
        if data["sample_id"] == "steps/judge/0/0":
            data["times_ms"] = [step[:1] for step in data["times_ms"]]
        changed.append(json.dumps(data))
    (tmp_path / LOG).write_text("\n".join([*changed, ""]))
    with pytest.raises(
        InputError, match=r"sample steps/judge/0/0 has times of 1 devices, expected \d: remove its line"
    ):
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
        ({"repeat_share": 1.5}, r"repeat_share=1.5: expected a share from 0 to 1"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"preset": "quik"}, "did you mean quick"),
    ],
)
def test_bad_arguments_are_refused(toys, tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        collect(tmp_path, **(SMALL | arguments))


def test_without_pyarrow_nothing_is_measured(toys, tmp_path, monkeypatch):
    def missing(module, purpose):
        raise MissingDependencyError(module, "data", purpose)

    monkeypatch.setattr(collection_toys.collect_module, "import_extra", missing)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[data\]"):
        collect(tmp_path, **SMALL)
    assert not any(tmp_path.iterdir())


@pytest.mark.measured
def test_real_kernels_and_real_steps_of_tasks_of_two_devices(tmp_path, monkeypatch):
    """Killed after the first task, the same command measures the other one."""
    of_two = [number for number in range(30) if StepSampler(0).devices("oracle", number) == 2]
    two = sorted(of_two, key=lambda task: _num_weights(StepSampler(0).task("oracle", task)))[:2]
    monkeypatch.setattr(
        CollectionPlan, "blocks", property(lambda plan: [
            Block((SampleId("compute", "test", n, 0),), plans_of_task("oracle", task, 0)) for n, task in enumerate(two)
        ]),
    )  # fmt: skip
    append, most = MeasurementLog.append, 1 + 4
    with monkeypatch.context() as patch:
        patch.setattr(MeasurementLog, "append", lambda log, m: append(log, m) if len(log.done) < most else _kill())
        with pytest.raises(KeyboardInterrupt):
            collect(tmp_path, preset="quick")
    summary = collect(tmp_path, preset="quick")
    assert (summary.failed, summary.missing, summary.measured) == ({}, 0, {"compute": 1, "steps": 4})
    assert (read_compute(tmp_path).ms > 0).all()
    steps = read_steps(tmp_path)
    assert {plan.rpartition("/")[0] for plan in steps.plan} == {f"oracle/{task}" for task in two}
    assert (steps.compute.ms > 0).all()
    assert (steps.parts_ms > 0).all()
    assert (steps.labels.noise > 0).all()


def _num_weights(task):
    return sum(held.num_weights for held in task.plans[0] if held is not None)


def _kill():
    raise KeyboardInterrupt
