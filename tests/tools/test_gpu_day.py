"""The command for minutes on a GPU: stages that fail, hang or run out of time, what is resumed and what comes home."""

import csv
import importlib.metadata
import importlib.util
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

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
    (day.work / "survey" / "measurements.jsonl").write_text("a line\\n")
    print("begun", flush=True)
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
    text = (TOOLS / "gpu_day.py").read_text().replace("GRACE_S = 20.0", "GRACE_S = 0.5")
    deadlines = 'SECONDS = {**dict.fromkeys(STAGES, 60.0), "hangs": 6.0}\n#'
    (tmp_path / "gpu_day.py").write_text(text.replace("#: Seconds after its deadline", deadlines, 1))
    (tmp_path / "gpu_stages.py").write_text(TOYS)

    def run(*options):
        command = [sys.executable, tmp_path / "gpu_day.py", "pack", "out", "--work", "work", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        files = {path.name: path for path in (tmp_path / "out").glob("*")}
        return done.returncode, done.stdout + done.stderr, files

    return run


def ran(tmp_path):
    return (tmp_path / "work" / "ran").read_text().split()


def test_stages_that_fail_hang_or_die_do_not_end_the_others(day):
    code, told, files = day()
    assert code == 1
    lines = [line.split(" s: ") for line in told.splitlines()]
    assert [(of[0].split()[:2], of[1:]) for of in lines] == [
        (["fails:", "failed"], ["ValueError: of some reason"]),
        (["hangs:", "killed"], ["begun"]),
        (["dies:", "killed"], ["it printed nothing"]),
        (["goes_on:", "part"], ["two times at most"]),
        (["last:", "done"], ["fine"]),
        (["left:", "fails,"], []),
    ]
    assert told.splitlines()[-1] == "left: fails, hangs, dies, goes_on; the same command resumes"
    assert files["summary.txt"].read_text() == told
    assert "of some reason" in files["log.txt"].read_text()
    assert files["kernels.csv"].read_text() == "a time\n"
    with tarfile.open(files["survey.tar.xz"]) as archive:  # of a stage that was killed
        assert archive.extractfile("survey/measurements.jsonl").read() == b"a line\n"


def test_the_next_run_does_what_is_left_and_a_deadline_of_zero_leaves_a_stage_out(day, tmp_path):
    leaving_out = ("--hangs", "0", "--dies", "0")
    day(*leaving_out, "--last", "0")
    code, told, files = day(*leaving_out)
    day("--minutes", "0")
    assert ran(tmp_path) == ["fails", "goes_on", "fails", "last", "goes_on"]  # what has had its turn is last
    assert code == 1
    assert "goes_on: done" in told
    assert files["kernels.csv"].read_text() == "a time\n" * 2


def test_each_stage_has_a_deadline_and_at_most_eight_files_are_brought_home(script):
    module = script("gpu_day")
    assert set(module.SECONDS) == set(module.STAGES)
    assert len({*module.FILES, *module.ARCHIVES, "summary.txt"}) <= 8


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
    asked = []
    monkeypatch.setattr(stages, "_pytest", lambda *of: asked.append(of) or (True, ""))
    assert stages.unpack(a_day) == (True, "")
    site = a_day.work / "site"
    assert [path.name for path in sorted(site.iterdir())] == ["fbgemm_gpu", "shardgym-0.1.0.dist-info", "toy"]
    (info,) = importlib.metadata.distributions(path=[str(site)])
    assert {entry.name for entry in info.entry_points.select(group="shardgym.solvers")} > {"lpt", "neuroshard"}
    shutil.rmtree(a_day.pack)
    assert stages.unpack(a_day) == (True, "")  # what is unpacked stays
    assert {word in Path(stages.ROOT, path).read_text() for path, _, word in asked} == {True}


@pytest.mark.parametrize("cut", [1, 40, 2500])
def test_a_torn_part_is_an_error_and_leaves_nothing_behind(stages, a_day, cut):
    pack(a_day.pack, cut)
    with pytest.raises(SystemExit, match="its 2 parts are no whole archive"):
        stages.unpack(a_day)
    assert not (a_day.work / "site").exists()
    with pytest.raises(SystemExit, match="its 0 parts are no whole archive"):
        stages.unpack(a_day._replace(pack=a_day.work))


@pytest.mark.measured
@pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'")
def test_peaks_of_steps_are_measured_with_stand_ins_for_the_gpu(tmp_path):
    """In a process of its own, as rehearsals do; a torn line is measured again."""
    script = f"""
import sys, time
from pathlib import Path
sys.path[:0] = [{str(TOOLS)!r}]
import gpu_stages
gpu_stages.STEPS = 2
print(gpu_stages.memory(gpu_stages.Day(Path("pack"), Path.cwd(), time.monotonic() + 600, True)))
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "rehearsal")}
    file = tmp_path / "memory.csv"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        assert "(True, '2 of 2 steps')" in done.stdout
        rows = list(csv.DictReader(file.read_text().splitlines()))
        assert [row["sample"] for row in rows] == ["0", "1"]
        for row in rows:
            assert int(row["peak_bytes"]) > 2**26
            assert int(row["expected_state_bytes"]) > 0 < int(row["expected_step_bytes"])
        file.write_text(file.read_text()[:-3])
