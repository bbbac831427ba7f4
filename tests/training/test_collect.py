"""Runs with stand-ins for processes: resume, repeats, failures, time limit, files, wrong folders."""

import json

import numpy as np
import pytest

from shardgym.cli import main
from shardgym.costs.fbgemm.jobs import HOST_WAITED, ReferenceJob, StepTimes
from shardgym.costs.fbgemm.pace import shipped_reference
from shardgym.costs.fbgemm.step import PARTS, RankSteps
from shardgym.errors import InputError, MeasurementError, MissingDependencyError
from shardgym.training import Space, collect, collecting
from shardgym.training.collecting import LOG
from shardgym.training.step_sampling import draw_plans, num_devices

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")

from shardgym.training.samples import STEP_PARTS, read_compute, read_file, read_steps

SPACE = Space(batch=(256, 1024), pooling=(0.05, 20), rows=(1, 10_000), shards=(1, 12), memory_bytes=2**26)
SMALL = {"samples": 20, "steps": 4, "space": SPACE}
#: Of 20 samples three are measured twice, of four tasks one.
ALL = {"compute": 23, "steps": 5}


class ToyTimer:
    """Answers jobs at once. Class attributes say when it breaks off, what it refuses and which times are noted."""

    ends_after: int | None = None
    refuses: frozenset[int] = frozenset()
    waits: frozenset[int] = frozenset()
    answered = 0
    facts = ({"hardware": "cpu-toy-2c"},)

    def __init__(self, device, seed, timeout_s):
        pass

    def start(self):
        pass

    def close(self):
        pass

    def ask(self, job):
        cls = type(self)
        if cls.ends_after is not None and cls.answered >= cls.ends_after:
            raise KeyboardInterrupt
        cls.answered += 1
        if cls.answered in cls.refuses:
            raise MeasurementError("worker died with signal -9 (SIGKILL)")
        step = job.shard_set.width / 100
        notes = (HOST_WAITED,) if cls.answered in cls.waits else ()
        return [StepTimes(np.array([[step, 2 * step]] * job.iterations), notes)]


class ToyGroup:
    """Complete steps in which part number P takes P + 1 hundredths of a ms per column of the device.

    The reference of paces takes twice as long as on the machine that is 1.
    """

    broken = False
    most_shards: float = float("inf")  #: plans with more of them fail

    def __init__(self, size, device, timeout_s, domain_size):
        self.size = size
        self.device = device
        self.made.append(size)

    def start(self):
        pass

    def ask(self, job):
        if self.broken:
            raise MeasurementError("device 1: worker died")
        if isinstance(job, ReferenceJob):
            return [[_twice_the_reference(own) for own in of_rank] for of_rank in job.of_ranks]
        assert job.plan.num_devices == self.size
        if sum(len(held.shards) for held in job.plan.whole if held is not None) > self.most_shards:
            raise MeasurementError("device 0: no memory")
        steps = len(job.batches) - job.warmups
        widths = [0 if held is None else held.width for held in job.plan.whole]
        parts = [np.arange(1, len(PARTS) + 1) * width / 100 for width in widths]
        return [RankSteps(np.tile(of_rank, (steps, 1)), {}) for of_rank in parts]

    def close(self):
        self.ended.append(self.size)


def _twice_the_reference(job):
    """Return forward and backward ms."""
    (ms,) = (
        shipped_reference().compute_ms[number]
        for number in range(12)
        if f"reference-{5 * number}" in {shard.table.name for shard in job.shard_set.shards}
    )
    return np.full((job.iterations, 2), ms)


@pytest.fixture
def toys(monkeypatch):
    """Let `collect` measure with fresh toys; the timer's and the group's class."""
    timer, group = type("Timer", (ToyTimer,), {}), type("Group", (ToyGroup,), {"made": [], "ended": []})
    monkeypatch.setattr(collecting, "kernel_timer", timer)
    monkeypatch.setattr(collecting, "require_fbgemm", lambda device: None)
    monkeypatch.setattr(collecting, "step_ranks", group)
    return timer, group


def lines(folder):
    return sorted((folder / LOG).read_text().splitlines())


def test_a_collection_becomes_two_files_of_rows(toys, tmp_path):
    summary = collect(tmp_path, **SMALL)
    assert (summary.missing, summary.failed) == (0, {})
    assert summary.notices == ("adam was left out: FBGEMM has no CPU kernel for it",)
    assert summary.counts == {
        "compute": {"oracle": 12 + 2, "judge": 6, "test": 2 + 1}, "steps": {"oracle": 2 + 1, "judge": 1, "test": 1}
    }  # fmt: skip
    for kind in ("compute", "steps"):
        info, table = read_file(tmp_path / f"{kind}.parquet", kind)
        assert (info.kind, info.hardware, info.settings["seed"]) == (kind, "cpu-toy-2c", 0)
        rows = table.to_pylist()
        content = {row["sample_id"]: row["content"] for row in rows}
        repeats = [row["sample_id"] for row in rows if row["repeat"] == 1]
        assert len(repeats) == summary.noise[kind]["pairs"] > 0
        assert all(content[name] == content[name.removesuffix("/1") + "/0"] for name in repeats)
        assert summary.noise[kind]["mape"] == 0
    compute = read_compute(tmp_path)
    widths = np.add.reduceat(compute.shards.columns, np.cumsum(compute.counts) - compute.counts)
    np.testing.assert_allclose(compute.ms, np.column_stack([widths / 100, widths / 50]))
    assert set(compute.optimizer) == {"exact_sgd", "rowwise_adagrad", "adagrad"}


def test_rows_of_steps_hold_parts_of_the_device_and_sums_of_the_plan(toys, tmp_path):
    collect(tmp_path, **SMALL)
    _, table = read_file(tmp_path / "steps.parquet", "steps")
    for row in table.to_pylist():
        role, task, number = row["plan"].split("/")
        plan = draw_plans(0, role, int(task))[int(number)]
        own, held = plan[row["device"]], [of for of in plan if of is not None]
        assert row["embedding_dim"] == [shard.width for shard in own.shards]
        for part in ("forward", "backward", *STEP_PARTS):
            assert row[f"{part}_ms"] == pytest.approx(own.width * (1 + PARTS.index(part)) / 100)
        assert row["num_devices"] == len(plan)
        assert row["samples"] == own.batch_size // len(plan)
        assert row["pace"] == 2
        assert row["plan_shards"] == sum(len(of.shards) for of in held)
        assert row["plan_columns"] == sum(of.width for of in held)
        ids = sum(own.batch_size * shard.ids_per_sample for of in held for shard in of.shards)
        assert row["plan_ids"] == pytest.approx(ids)
        assert row["noise"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("most", "anew"), [(60, False), (1, True)])
def test_groups_of_processes_are_kept_for_some_tasks_and_ended_at_last(toys, tmp_path, monkeypatch, most, anew):
    _, group = toys
    monkeypatch.setattr(collecting, "TASKS_PER_START", most)
    collect(tmp_path, **SMALL | {"samples": 0, "steps": 8})
    assert sorted(group.made) == sorted(group.ended)
    assert len(group.made) == (9 if anew else len(set(group.made)))


def test_a_run_that_is_killed_ends_with_the_same_measurements_and_more_can_be_asked_for(toys, tmp_path):
    pool, _ = toys
    collect(tmp_path / "whole", **SMALL)
    for pool.ends_after in (2, 3, 11):
        pool.answered = 0
        with pytest.raises(KeyboardInterrupt):
            collect(tmp_path / "killed", **SMALL)
    pool.ends_after = None
    text = (tmp_path / "killed" / LOG).read_text()
    (tmp_path / "killed" / LOG).write_text(text[:-40])
    assert any("cut off" in notice for notice in collect(tmp_path / "killed", **SMALL).notices)
    assert lines(tmp_path / "killed") == lines(tmp_path / "whole")
    collect(tmp_path / "killed", **SMALL | {"samples": 30})
    assert set(lines(tmp_path / "whole")) < set(lines(tmp_path / "killed"))


def test_repeats_may_be_left_for_later(toys, tmp_path):
    first = collect(tmp_path, **SMALL, repeated=0)
    assert first.noise == {"compute": {"pairs": 0}, "steps": {"pairs": 0}}
    again = collect(tmp_path, **SMALL, repeated=0.25)
    assert again.noise["compute"]["pairs"] == 5
    assert again.noise["steps"]["pairs"] > 0
    assert again.missing == 0
    with pytest.raises(InputError, match="repeated=15: expected a share of the samples, 0 to 1"):
        collect(tmp_path, **SMALL, repeated=15)


def test_samples_may_be_shares_of_devices_in_plans_of_suites(toys, tmp_path):
    space = Space(suites=("dlrm4-gpu-v1",))
    assert collect(tmp_path, samples=10, steps=0, space=space).missing == 0
    (found,) = {row["batch_size"] for row in read_file(tmp_path / "compute.parquet", "compute")[1].to_pylist()}
    assert found == 65_536
    assert read_file(tmp_path / "compute.parquet", "compute")[0].settings["space"]["suites"] == ["dlrm4-gpu-v1"]


def test_a_failure_is_kept_with_its_reason_and_tried_again(toys, tmp_path):
    pool, group = toys
    pool.refuses, pool.waits, group.broken = frozenset({3}), frozenset({4}), True
    summary = collect(tmp_path, **SMALL)
    reasons = ["device 1: worker died"] * ALL["steps"] + [HOST_WAITED, "worker died with signal -9 (SIGKILL)"]
    assert sorted(summary.failed.values()) == sorted(reasons)
    assert list(summary.counts) == ["compute"]
    assert not (tmp_path / "steps.parquet").exists()
    assert "7 samples failed; run the same command to retry them" in summary.lines()
    pool.refuses, pool.waits, group.broken = frozenset(), frozenset(), False
    summary = collect(tmp_path, **SMALL)
    assert summary.failed == {}
    assert {kind: sum(of.values()) for kind, of in summary.counts.items()} == ALL


def test_a_task_that_lacks_some_plans_is_told_and_tried_again(toys, tmp_path):
    _, group = toys
    whole = collect(tmp_path / "whole", **SMALL)
    rows = read_file(tmp_path / "whole" / "steps.parquet", "steps")[1].to_pylist()
    group.most_shards = max(row["plan_shards"] for row in rows) - 1
    summary = collect(tmp_path, **SMALL)
    assert summary.counts == whole.counts
    assert set(summary.failed.values()) == {"device 0: no memory"}
    assert len(read_file(tmp_path / "steps.parquet", "steps")[1]) < len(rows)
    group.most_shards = float("inf")
    assert collect(tmp_path, **SMALL).failed == {}
    assert len(read_file(tmp_path / "steps.parquet", "steps")[1]) == len(rows)


def test_there_are_no_steps_on_cuda(toys, tmp_path):
    assert list(collect(tmp_path, device="cuda", samples=6, space=SPACE).counts) == ["compute"]
    with pytest.raises(InputError, match="steps=3 on cuda: complete steps are measured on the CPU; use steps=0"):
        collect(tmp_path, device="cuda", samples=6, steps=3)


def test_tasks_of_more_devices_than_the_machine_takes_are_left_out(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "usable_cores", lambda: [0])
    summary = collect(tmp_path, samples=0, steps=12)
    assert "tasks of more than 4 devices were left out: this machine runs up to 4 processes" in summary.notices
    assert summary.missing == 0
    _, table = read_file(tmp_path / "steps.parquet", "steps")
    assert set(table["num_devices"].to_pylist()) == {2, 4}


def test_when_the_time_is_up_what_is_missing_is_said(toys, tmp_path):
    summary = collect(tmp_path, **SMALL, minutes=1e-9)
    assert summary.missing == sum(ALL.values())
    assert "run the same command to resume" in summary.lines()[0]


def test_a_folder_of_something_else_is_refused(toys, tmp_path, monkeypatch):
    collect(tmp_path / "a", **SMALL)
    with pytest.raises(InputError, match=r"holds measurements of seed 0, this run has 1: use another folder"):
        collect(tmp_path / "a", **SMALL, seed=1)
    text = (tmp_path / "a" / LOG).read_text().splitlines()
    (tmp_path / "a" / LOG).write_text("\n".join([text[0], text[1][:50], *text[2:], ""]))
    with pytest.raises(InputError, match=rf"{LOG}:2: not valid JSON"):
        collect(tmp_path / "a", **SMALL)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "records.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match=r"holds records\.jsonl but no collection\.json: use an empty folder"):
        collect(tmp_path / "b", **SMALL)

    def missing(module, purpose):
        raise MissingDependencyError(module, "data", purpose)

    monkeypatch.setattr(collecting, "import_extra", missing)
    with pytest.raises(MissingDependencyError, match=r"shardgym\[data\]"):
        collect(tmp_path / "c", **SMALL)
    assert not (tmp_path / "c").exists()


def test_the_command_has_json_for_machines_and_exit_codes(toys, tmp_path, capsys):
    pool, _ = toys
    (tmp_path / "space.json").write_text(json.dumps({"rows": [1, 1000], "pooling": [0.1, 4], "shards": [1, 4]}))
    command = ["collect", "--out", str(tmp_path / "out"), "--samples", "8", "--steps", "1"]
    command += ["--space", str(tmp_path / "space.json")]
    pool.ends_after = 6
    assert main(command) == 130
    assert "interrupted" in capsys.readouterr().err
    pool.ends_after, pool.refuses = None, frozenset({7})
    assert main([*command, "--json"]) == 1
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert (sum(data["counts"]["compute"].values()), len(data["failed"]), captured.err) == (8, 1, "")
    assert main(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("compute: 9 (")
    assert "repeats: CV 0.0%, MAPE 0.0% over 1 pairs" in text
    assert f"steps: {tmp_path / 'out' / 'steps.parquet'}" in text
    (tmp_path / "space.json").write_text('{"row": [1, 10]}')
    assert main(command) == 2
    assert "row" in capsys.readouterr().err


@pytest.mark.measured
def test_real_kernels_and_real_steps_of_a_task_of_two_devices(tmp_path, monkeypatch):
    def weights(number):
        return sum(held.num_weights for held in draw_plans(0, "oracle", number)[0] if held is not None)

    task = min((number for number in range(30) if num_devices(0, "oracle", number) == 2), key=weights)
    chosen = {"compute": ("test", 0), "steps": ("oracle", task)}
    monkeypatch.setattr(collecting, "_samples", lambda kind, count, _: [collecting.Sample(kind, *chosen[kind], 0)])
    summary = collect(tmp_path, space=SPACE)
    assert (summary.failed, summary.missing) == ({}, 0)
    assert (read_compute(tmp_path).ms > 0).all()
    steps = read_steps(tmp_path)
    assert (steps.compute.ms > 0).all()
    assert (steps.parts_ms > 0).all()
