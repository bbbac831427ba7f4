"""Measure within minutes what ShardGym needs to know of a GPU: one command, which resumes where it was stopped.

    python tools/gpu_day.py PACK OUT [--work DIR] [--minutes X] [--STAGE SECONDS ...] [--small]

PACK holds FBGEMM as an archive in parts (`part-00`, `part-01`, ...: a tar, packed by xz, then split) and, in `wheels`,
what else the machine lacks. The command itself needs only Python 3.12 and torch. It works in DIR, where the next run
resumes, and copies the measurements to OUT, six files, after each of its stages (`gpu_stages.py`).

Each stage works in a process of its own until its deadline, and writes its results at once. If one fails or must be
killed, the others continue; those that a deadline ended come last in the next run. The exit code is 1 if any is left.
docs/machine.md says what to do with OUT.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

from gpu_stages import ROOT, STAGES, Day

#: Seconds that a stage may take.
SECONDS = {"unpack": 120, "tests": 90, "kernels": 70, "survey": 160, "plans": 110, "again": 60, "memory": 40}
#: Seconds after its deadline in which a stage may finish, before it is killed.
GRACE_S = 20.0
#: Exit code of a stage that its deadline ended.
PART = 3
#: Files that are copied as they are, and folders that are archived.
FILES = ("log.txt", "kernels.csv", "memory.csv")
ARCHIVES = {"survey.tar.xz": ("survey",), "plans.tar.xz": ("plans", "plans-again")}


def run_stage(name: str, seconds: float, work: Path) -> dict[str, Any]:
    """Run a stage in a process of its own; return how it ended, and the last line that it printed."""
    paths = [str(ROOT), str(work / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, __file__, *sys.argv[1:], "--stage", name, str(seconds)]
    begin_s = time.monotonic()
    with (work / "log.txt").open("ab") as log:
        log.write(f"--- {name}, {seconds:.0f} s\n".encode())
        log.flush()
        printed_from = log.tell()
        try:
            # What a stage has started ends with it.
            code = subprocess.run(
                command, stdout=log, stderr=log, env=environment, timeout=seconds + GRACE_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            code = -9
    printed = (work / "log.txt").read_bytes()[printed_from:].decode(errors="replace").split("\n")
    says = [line.strip() for line in printed if line.strip()] or ["it printed nothing"]
    ended = "killed" if code < 0 else {0: "done", PART: "part"}.get(code, "failed")
    return {"ended": ended, "seconds": round(time.monotonic() - begin_s, 1), "says": says[-1]}


def deliver(work: Path, out: Path, state: dict[str, dict[str, Any]]) -> str:
    """Copy what there is to OUT; return a line for each stage, and what is left."""
    for name in FILES:
        if (work / name).exists():
            shutil.copyfile(work / name, out / name)
    for name, folders in ARCHIVES.items():
        held = [work / folder for folder in folders if (work / folder).exists()]
        if held:
            with tarfile.open(out / name, "w:xz") as archive:
                for folder in held:
                    archive.add(folder, folder.name, filter=lambda of: None if "/." in of.name else of)
    told = [f"{name}: {of['ended']} after {of['seconds']} s: {of['says']}" for name, of in state.items()]
    left = [name for name in STAGES if name not in state or state[name]["ended"] != "done"]
    told.append(f"left: {', '.join(left)}; the same command resumes" if left else "nothing is left")
    (out / "summary.txt").write_text("\n".join(told) + "\n")
    return "\n".join(told)


def main() -> int:
    """Run the command, or one of its stages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pack", type=Path, help="folder of parts and wheels")
    parser.add_argument("out", type=Path, help="folder for the measurements")
    parser.add_argument("--work", type=Path, default=Path("gpu-day"), help="folder to work in [%(default)s]")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all stages together [%(default)s]")
    for name, seconds in SECONDS.items():
        parser.add_argument(
            f"--{name}", type=float, default=seconds, metavar="S", help="seconds [%(default)s]; 0: none"
        )
    parser.add_argument("--small", action="store_true", help="small sizes, for a rehearsal on a CPU")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    begin_s = time.monotonic()
    work = given.work.resolve()
    if given.stage:
        day = Day(given.pack, work, begin_s + float(given.stage[1]), given.small)
        done, says = STAGES[given.stage[0]](day)
        print(says)
        return 0 if done else PART
    for folder in (work, given.out):
        folder.mkdir(parents=True, exist_ok=True)
    record = work / "state.json"
    state: dict[str, dict[str, Any]] = json.loads(record.read_text()) if record.exists() else {}
    # Stages that their deadline ended resume after all others.
    for name in sorted(STAGES, key=lambda name: state.get(name, {}).get("ended") == "part"):
        end_s = begin_s + 60 * given.minutes - GRACE_S
        seconds = min(getattr(given, name), end_s - time.monotonic())
        if seconds > 0 and state.get(name, {}).get("ended") != "done":
            state[name] = run_stage(name, seconds, work)
            begun = record.with_suffix(".begun")
            begun.write_text(json.dumps(state, indent=1))
            begun.replace(record)
            deliver(work, given.out, state)
    told = deliver(work, given.out, state)
    print(told)
    return 1 if "left: " in told else 0


if __name__ == "__main__":
    sys.exit(main())
