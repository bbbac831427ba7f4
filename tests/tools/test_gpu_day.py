"""The command for minutes on a GPU: stages that fail, hang or run out of time, what is resumed and what comes home."""

import contextlib
import csv
import importlib.metadata
import importlib.util
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from shardgym.costs.fbgemm.jobs import StepTimes
from shardgym.errors import MeasurementError

pytestmark = pytest.mark.repository

TOOLS = Path(__file__).parents[2] / "tools"

#: Stages in the place of those that measure; each says on a line of its own that it has run.
TOYS = """
import os, signal, time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent

class Day(NamedTuple):
    pack: Path
    work: Path
    end_s: float
    small: bool

def run(name):
    def stage(day):
        with (day.work / "ran").open("a") as file:
            file.write(name + " ")
        return BODIES[name](day)
    return stage

def fails(day):
    raise ValueError("of some reason")

def hangs(day):
    (day.work / "survey").mkdir(exist_ok=True)
    (day.work / "pid").write_text(str(os.getpid()))
    (day.work / "survey" / "measurements.jsonl").write_text("a line\\n")
    time.sleep(600)

def dies(day):
    os.kill(os.getpid(), signal.SIGKILL)

def goes_on(day):
    with (day.work / "kernels.csv").open("a") as file:
        file.write("a time\\n")
    return (day.work / "kernels.csv").read_text().count("time") > 1, "two times at most"

BODIES = {"fails": fails, "hangs": hangs, "dies": dies, "goes_on": goes_on, "last": lambda day: (True, "fine")}
STAGES = {name: run(name) for name in BODIES}
"""


@pytest.fixture
def day(tmp_path):
    """Runs the command with toys; returns its exit code and what is in OUT."""
    text = (TOOLS / "gpu_day.py").read_text()
    quick = text.replace("GRACE_S = 20.0", "GRACE_S = 0.5").replace("DELIVER_S = 30.0", "DELIVER_S = 0.2")
    deadlines = 'SECONDS = {**dict.fromkeys(STAGES, 60.0), "hangs": 6.0}\n#'
    (tmp_path / "gpu_day.py").write_text(quick.replace("#: Seconds after its deadline", deadlines, 1))
    (tmp_path / "gpu_stages.py").write_text(TOYS)

    def run(*options):
        command = [sys.executable, tmp_path / "gpu_day.py", "pack", "out", "--work", "work", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        files = {path.name: path for path in (tmp_path / "out").glob("*")}
        return done.returncode, done.stdout + done.stderr, files

    return run


def ran(tmp_path):
    return (tmp_path / "work" / "ran").read_text().split()


def test_stages_that_fail_hang_or_die_do_not_end_the_others(day, tmp_path):
    code, told, files = day()
    assert code == 1
    lines = [line.split(" s: ") for line in told.splitlines()]
    assert [(of[0].split()[:2], of[1:]) for of in lines] == [
        (["fails:", "failed"], ["ValueError: of some reason"]),
        (["hangs:", "killed"], ["signal 9"]),
        (["dies:", "killed"], ["signal 9"]),
        (["goes_on:", "part"], ["two times at most"]),
        (["last:", "done"], ["fine"]),
        (["left:", "fails,"], []),
    ]
    assert told.splitlines()[-1] == "left: fails, hangs, dies, goes_on; the same command goes on"
    assert files["summary.txt"].read_text() == told
    assert "of some reason" in files["log.txt"].read_text()
    assert files["kernels.csv"].read_text() == "a time\n"
    with tarfile.open(files["survey.tar.xz"]) as archive:  # of a stage that was killed
        assert archive.extractfile("survey/measurements.jsonl").read() == b"a line\n"


def test_the_next_run_does_what_is_left(day, tmp_path):
    leaving_out = ("--seconds", "hangs=0", "--seconds", "dies=0")
    day(*leaving_out, "--seconds", "last=0")
    code, told, files = day(*leaving_out)
    assert ran(tmp_path) == ["fails", "goes_on", "fails", "last", "goes_on"]  # what has had its turn is last
    assert code == 1
    assert "goes_on: done" in told
    assert files["kernels.csv"].read_text() == "a time\n" * 2
    (tmp_path / "work" / "state.json").write_text('{"last": {"ended": "do')  # torn: what has been done is done again
    day(*leaving_out)
    assert ran(tmp_path)[5:] == ["fails", "goes_on", "last"]


def test_a_deadline_of_zero_leaves_a_stage_out(day, tmp_path):
    assert day("--minutes", "0")[1] == "left: fails, hangs, dies, goes_on, last; the same command goes on\n"
    nothing = [option for name in ("fails", "hangs", "dies", "goes_on") for option in ("--seconds", f"{name}=0")]
    code, told, _ = day(*nothing)
    assert (code, ran(tmp_path)) == (1, ["last"])
    assert told.splitlines()[-1] == "left: fails, hangs, dies, goes_on; the same command goes on"
    for wrong in ("last", "none=3", "last=-1"):
        assert day("--seconds", wrong)[:2][0] == 2
        assert f"--seconds {wrong}: expected STAGE=X" in day("--seconds", wrong)[1]


def test_a_stage_ends_with_the_command(day, tmp_path):
    command = [sys.executable, tmp_path / "gpu_day.py", "pack", "out", "--work", "work", "--seconds", "fails=0"]
    whole = subprocess.Popen(command, cwd=tmp_path)
    begin = time.monotonic()
    while not (tmp_path / "work" / "survey" / "measurements.jsonl").exists():
        assert time.monotonic() < begin + 60
        time.sleep(0.05)
    stage = Path("/proc", (tmp_path / "work" / "pid").read_text(), "stat")
    assert stage.exists()
    whole.kill()
    whole.wait()
    while stage.exists() and stage.read_text().rpartition(")")[2].split()[0] != "Z":  # nobody may wait for it
        assert time.monotonic() < begin + 60
        time.sleep(0.05)


def test_what_is_too_large_to_be_brought_home_is_said(script, monkeypatch, tmp_path):
    module = script("gpu_day")
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    for folder in ("work/plans", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "work/plans/records.jsonl").write_bytes(os.urandom(2000))
    module.deliver(tmp_path / "work", tmp_path / "out")
    told = module.summary({}, tmp_path / "out").splitlines()
    size = (tmp_path / "out" / "plans.tar.xz").stat().st_size
    assert told[0] == f"plans.tar.xz has {size} bytes, more than 1000"
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_at_most_eight_files_are_brought_home(script):
    module = script("gpu_day")
    assert len({*module.FILES, *module.ARCHIVES, "summary.txt"}) <= 8
    assert set(module.SECONDS) == set(module.STAGES)


# --- stages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stages(script):
    return script("gpu_stages")


@pytest.fixture
def a_day(stages, tmp_path):
    (tmp_path / "pack" / "wheels").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    return stages.Day(tmp_path / "pack", tmp_path / "work", time.monotonic() + 600, True)


def pack(folder, cut=0):
    """Write an archive of one module in two parts, without its last bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = os.urandom(5000)
        info = tarfile.TarInfo("fbgemm_gpu/__init__.py")
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    packed = lzma.compress(buffer.getvalue())
    packed = packed[: len(packed) - cut]
    (folder / "part-00").write_bytes(packed[:3000])
    (folder / "part-01").write_bytes(packed[3000:])


def test_parts_are_joined_and_unpacked_beside_wheels_and_what_is_registered(stages, a_day, monkeypatch):
    pack(a_day.pack)
    with zipfile.ZipFile(a_day.pack / "wheels" / "toy-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy/__init__.py", "")
    monkeypatch.setattr(stages, "look_up", lambda: "looked up")
    assert stages.unpack(a_day) == (True, "looked up")
    found = [path.name for path in sorted(a_day.site.iterdir())]
    assert found == ["fbgemm_gpu", "shardgym-0.1.0.dist-info", "toy"]
    (info,) = importlib.metadata.distributions(path=[str(a_day.site)])
    assert {entry.name for entry in info.entry_points.select(group="shardgym.solvers")} > {"lpt", "neuroshard"}
    shutil.rmtree(a_day.pack)
    assert stages.unpack(a_day) == (True, "looked up")  # what is unpacked stays


@pytest.mark.parametrize("cut", [1, 40, 2500])
def test_a_torn_part_is_an_error_and_leaves_nothing_behind(stages, a_day, cut):
    pack(a_day.pack, cut)
    with pytest.raises(SystemExit, match="2 parts make no whole archive"):
        stages.unpack(a_day)
    assert not a_day.site.exists()
    with pytest.raises(SystemExit, match="has no file part-00"):
        stages.unpack(a_day._replace(pack=a_day.work))


class Timer:
    """Times each kernel by its columns; refuses those of row-wise Adagrad."""

    facts = ({"hardware": "cuda-nvidia-h100-80gb-hbm3"},)

    def start(self):
        pass

    def close(self):
        pass

    def ask(self, job):
        if job.shard_set.optimizer == "rowwise_adagrad":
            raise MeasurementError("no memory")
        ms = job.shard_set.width / 1000
        return [StepTimes(np.array([[ms, 3 * ms]] * job.iterations), (), 0.25)]


def test_kernels_are_told_as_published_rows_are_and_a_torn_line_is_timed_again(stages, a_day, monkeypatch):
    monkeypatch.setattr("shardgym.costs.fbgemm.workers.kernel_timer", lambda *_: Timer())
    done, told = stages.kernels(a_day)
    path = a_day.work / "kernels.csv"
    whole = path.read_text()
    rows = list(csv.DictReader(io.StringIO(whole)))
    assert done
    assert told.startswith(f"{len(rows)} times, ")
    assert told.endswith("the host launches a step in 0.250 ms (median)")
    assert {row["gpu"] for row in rows} == {"H100 80GB HBM3"}
    assert {row["optimizer"] for row in rows} == {"exact_sgd", "adagrad", "adam"}
    assert {row["weights_precision"] for row in rows} == {"fp32", "fp16"}
    for forward, backward in zip(rows[::2], rows[1::2], strict=True):
        assert backward["op"] == forward["op"].replace("forward", "backward")
        pooled = int(forward["D"]) * int(forward["T"])
        assert float(forward["time_us"]) == pooled
        assert float(backward["time_us"]) == 3 * pooled
    path.write_text(whole[:-30])
    assert stages.kernels(a_day._replace(end_s=0.0))[0] is False
    assert path.read_text() == whole[: whole[:-30].rfind("\n") + 1]
    assert stages.kernels(a_day)[0] is True
    assert len(path.read_text().splitlines()) == 1 + len(rows) + 1  # its forward pass is timed once more
    from rows import read_rows

    measured = read_rows(path)
    assert {(row.kind, row.card) for row in measured} == {("fused", "h100")}


def test_a_survey_grows_by_turns_until_its_deadline(stages, a_day, monkeypatch):
    asked = []

    def collect(folder, *, samples, **given):
        asked.append((samples, given["repeated"], given["device"]))
        folder.mkdir(exist_ok=True)
        tried = range(samples if samples < 600 else 100)
        lines = [json.dumps({"sample": f"compute/oracle/{n}/{repeat}"}) for n in tried for repeat in (0, 1)]
        (folder / "measurements.jsonl").write_text("\n".join(lines) + '\n{"sample": "comp')
        return type("Summary", (), {"lines": lambda _: [], "missing": 0})()

    monkeypatch.setattr("shardgym.training.collect", collect)
    assert stages.survey(a_day) == (False, "100 samples, 6000 at most")
    assert asked == [(60, 0.0, "cuda"), (600, 0.0, "cuda"), (6000, 0.0, "cuda")]
    asked.clear()
    assert stages.survey(a_day._replace(end_s=0.0)) == (False, "100 samples, 6000 at most")
    assert asked == []
    monkeypatch.setattr(stages, "_evaluate", lambda day, folder, tasks: tasks)
    assert stages.again(a_day) == (False, "0 samples are left, and 0 of 1 tasks")  # there are no plans yet
    totals = iter([{(n, "lpt", 0): 10.0 for n in range(20)}, {(0, "lpt", 0): 11.0, (1, "lpt", 0): 10.5}])
    monkeypatch.setattr(stages, "_totals", lambda folder: next(totals))
    told = "0 samples are left, and 0 of 2 tasks; plans take 7.5% more or less the second time (median of 2)"
    assert stages.again(a_day) == (True, told)
    assert asked == [(10, 1.0, "cuda"), (1, 1.0, "cuda")]  # a tenth of a hundred, then of the ten that there are


def test_plans_are_measured_task_by_task_until_the_deadline(stages, a_day, monkeypatch):
    limits = []
    monkeypatch.setattr("shardgym.evaluation.evaluate", lambda *_, limit, **__: limits.append(limit))
    monkeypatch.setattr("shardgym.make_cost", lambda *_, **__: contextlib.nullcontext())
    assert stages.plans(a_day) == (True, "plans of 12 tasks of tiny-v1, 12 at most")
    assert limits == list(range(1, 13))
    late = a_day._replace(end_s=0.0, small=False)
    assert stages.plans(late) == (False, "plans of 0 tasks of dlrm4-gpu-v1, 24 at most")


@pytest.mark.measured
@pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'")
@pytest.mark.parametrize("stage", ["look_up", "memory"])
def test_stages_run_on_the_cpus_kernels_with_stand_ins(stage, tmp_path):
    """In a process of its own, as rehearsals do: a lookup against torch's own, and peaks of complete steps."""
    script = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(TOOLS)!r}]
import gpu_stages
gpu_stages.STEPS = 1
day = gpu_stages.Day(Path("pack"), Path.cwd(), time.monotonic() + 600, True)
print(gpu_stages.{stage}({"" if stage == "look_up" else "day"}))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "rehearsal")}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    if stage == "look_up":
        assert "a lookup and its update on cuda-nvidia-h100-stand-in agree with torch's" in done.stdout
    else:
        (row,) = csv.DictReader((tmp_path / "memory.csv").read_text().splitlines())
        assert int(row["peak_bytes"]) > 2**26
        assert int(row["expected_state_bytes"]) > 0 < int(row["expected_step_bytes"])
        assert "(True, '1 of 1 steps; expected over measured" in done.stdout
