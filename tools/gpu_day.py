"""Measure what ShardGym has to know of a GPU within minutes: one command, which goes on where it was stopped.

    python tools/gpu_day.py PACK OUT [--work DIR] [--minutes X] [--seconds STAGE=X ...] [--small]

PACK holds FBGEMM as an archive in parts (`part-00`, `part-01`, ...: a tar, packed by xz, then split) and, in `wheels`,
what else the machine lacks. The command itself needs Python 3.12 and torch alone. It works in DIR, where the next run
goes on, and copies what was measured to OUT, six files, whenever there is more of it. Its stages:

- unpack: FBGEMM is imported, and a lookup and its update are held against torch's own
- tests: those of `tests/gpu`
- kernels: published kernels (`benchmarks/published_gpu/rows.csv`), then all their sizes with other precisions and
  optimisers
- survey: samples to train a simulator on: what devices hold in plans of tasks like those of suites
- plans: plans of the first tasks of `dlrm4-gpu-v1` by six solvers; kernels are timed, exchanges modelled
- again: a tenth of the survey and of the plans, a second time
- memory: peaks of complete steps, and what `StepMemory` expects

Each works in a process of its own until its deadline, and writes what it has at once. A stage that fails or has to be
killed does not end the others; the next run ends with those that a deadline ended. Exit code 1 where something is left.
docs/machine.md says what becomes of OUT.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from gpu_stages import ROOT, STAGES, Day

#: Seconds that a stage may take.
SECONDS = {"unpack": 120, "tests": 90, "kernels": 70, "survey": 160, "plans": 110, "again": 60, "memory": 40}
#: Seconds after its deadline in which a stage ends what it has begun, before it is killed.
GRACE_S = 20.0
#: Seconds between copies of what a stage has so far.
DELIVER_S = 30.0
#: Exit code of a stage that its deadline ended.
PART = 3
#: Of a file in OUT.
MOST_BYTES = 12 * 2**20
#: Files that are copied as they are, and folders of which archives are made.
FILES = ("log.txt", "kernels.csv", "memory.csv")
ARCHIVES = {"survey.tar.xz": ("survey",), "plans.tar.xz": ("plans", "plans-again")}


def run_stage(name: str, seconds: float, work: Path, out: Path) -> dict[str, Any]:
    """Run a stage in a process of its own; return how it ended, and the last line that it printed."""
    log = work / "log.txt"
    paths = [str(ROOT), str(work / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, __file__, *sys.argv[1:], "--stage", name, str(seconds)]
    begin_s = time.monotonic()
    end_s = begin_s + seconds + GRACE_S
    code: int | None = None
    with log.open("ab") as file:
        file.write(f"--- {name}, {seconds:.0f} s\n".encode())
        file.flush()
        printed_from = file.tell()
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment, process_group=0)
        while code is None and (left_s := end_s - time.monotonic()) > 0:
            try:
                code = process.wait(min(left_s, DELIVER_S))
            except subprocess.TimeoutExpired:
                deliver(work, out)
        if code is None:
            os.killpg(process.pid, signal.SIGKILL)
            code = process.wait()
    printed = log.read_bytes()[printed_from:].decode(errors="replace").splitlines()
    says = [line.strip() for line in printed if line.strip()] or ["it printed nothing"]
    if code < 0:
        says.append(f"signal {-code}")
    ended = "killed" if code < 0 else {0: "done", PART: "part"}.get(code, "failed")
    return {"ended": ended, "seconds": round(time.monotonic() - begin_s, 1), "says": says[-1]}


def run_here(name: str, seconds: float, given: argparse.Namespace) -> int:
    """Run a stage in this process, which ends with its parent; return the exit code."""
    parent = os.getppid()

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        done, says = STAGES[name](Day(given.pack, given.work, time.monotonic() + seconds, given.small))
    except Exception as error:
        traceback.print_exc()
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        return 1
    print(says)
    return 0 if done else PART


def deliver(work: Path, out: Path) -> None:
    """Copy what there is to OUT; each file is whole, while others may be writing what it is made of."""
    for name in FILES:
        if (work / name).exists():
            replace(out / name, (work / name).read_bytes())
    for name, folders in ARCHIVES.items():
        held = [work / folder for folder in folders if (work / folder).exists()]
        # Files that are about to be renamed may be gone when their turn comes: the next copy has them.
        with contextlib.suppress(OSError):
            with tarfile.open(work / name, "w:xz") as archive:
                for folder in held:
                    archive.add(folder, folder.name, filter=lambda of: None if "/." in of.name else of)
            if held:
                replace(out / name, (work / name).read_bytes())


def replace(path: Path, content: bytes) -> None:
    """Write a file as a whole."""
    begun = path.with_name(path.name + ".begun")
    begun.write_bytes(content)
    begun.replace(path)


def read_state(work: Path) -> dict[str, dict[str, Any]]:
    """Return how stages ended by name; nothing where that cannot be read, as stages find what they have themselves."""
    try:
        state = json.loads((work / "state.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return {name: state[name] for name in STAGES if name in state}


def summary(state: dict[str, dict[str, Any]], out: Path) -> str:
    """Return a line for each stage, what is too large to be brought home, and what is left."""
    told = [f"{name}: {of['ended']} after {of['seconds']} s: {of['says']}" for name, of in state.items()]
    sizes = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    told += [f"{name} has {size} bytes, more than {MOST_BYTES}" for name, size in sizes.items() if size > MOST_BYTES]
    left = [name for name in STAGES if name not in state or state[name]["ended"] != "done"]
    return "\n".join([*told, f"left: {', '.join(left)}; the same command goes on" if left else "nothing is left"])


def main() -> int:
    """Run the command, or one of its stages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="folder of parts and wheels")
    parser.add_argument("out", type=Path, help="folder for what was measured")
    parser.add_argument("--work", type=Path, default=Path("gpu-day"), help="folder to work in [%(default)s]")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all stages together [%(default)s]")
    parser.add_argument(
        "--seconds", action="append", default=[], metavar="STAGE=X", help="for a stage; 0 leaves it out"
    )
    parser.add_argument("--small", action="store_true", help="small sizes, for a rehearsal on a CPU")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.work = given.work.resolve()
    if given.stage:
        return run_here(given.stage[0], float(given.stage[1]), given)
    deadlines: dict[str, float] = {**SECONDS}
    for text in given.seconds:
        name, _, seconds = text.partition("=")
        if name not in STAGES or not seconds.replace(".", "", 1).isdigit():
            parser.error(f"--seconds {text}: expected STAGE=X with X seconds and one of {', '.join(STAGES)}")
        deadlines[name] = float(seconds)
    end_s = time.monotonic() + 60 * given.minutes
    for folder in (given.work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    state = read_state(given.work)
    # What its deadline ended goes on when all others have had their turn.
    for name in sorted(STAGES, key=lambda name: state.get(name, {}).get("ended") == "part"):
        left_s = min(deadlines[name], end_s - time.monotonic() - GRACE_S)
        if left_s > 0 and (name not in state or state[name]["ended"] != "done"):
            state[name] = run_stage(name, left_s, given.work, given.out)
            replace(given.work / "state.json", json.dumps(state, indent=1).encode())
        deliver(given.work, given.out)
        replace(given.out / "summary.txt", f"{summary(state, given.out)}\n".encode())
    print((given.out / "summary.txt").read_text(), end="")
    return 1 if "left: " in summary(state, given.out) else 0


if __name__ == "__main__":
    sys.exit(main())
