"""The stages of `tools/gpu_day.py` in their order: each takes a `Day`, and writes what it measures at once.

Nothing but the standard library is imported before FBGEMM and the rest have been unpacked.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
#: Whether nothing is left, and a summary.
Outcome = tuple[bool, str]

#: Samples of the survey: each number is completed before the next one begins, so that partial surveys are usable.
SAMPLES = (60, 600, 6000)
#: Of the survey, and of the tasks with plans, one in so many is measured a second time.
REPEATED = 10
#: Complete steps whose peaks are measured.
STEPS = 12


class Day(NamedTuple):
    """What all stages know."""

    pack: Path  #: folder of parts and wheels
    work: Path
    end_s: float  #: when the stage has to end, on the monotonic clock
    small: bool  #: whether sizes are those for a rehearsal on a CPU

    @property
    def left_s(self) -> float:
        """Seconds until the end, at least 0."""
        return max(0.0, self.end_s - time.monotonic())

    @property
    def space(self) -> Any:
        """What the survey's samples are drawn from."""
        from shardgym.training import Space

        if self.small:
            return Space(suites=("dlrm4-v2",), memory_bytes=2**30)
        return Space(suites=("dlrm4-gpu-v1", "production-v1"), memory_bytes=2**35)


def unpack(day: Day) -> Outcome:
    """Unpack FBGEMM and the wheels into one folder, and hold a lookup and its update against torch's own."""
    site = day.work / "site"
    if not site.exists():
        begun = day.work / "site.begun"
        shutil.rmtree(begun, ignore_errors=True)
        parts = sorted(day.pack.glob("part-*"))
        joined = io.BytesIO(b"".join(part.read_bytes() for part in parts))
        try:
            with lzma.open(joined) as content, tarfile.open(fileobj=content, mode="r|") as archive:
                archive.extractall(begun, filter="data")
                while content.read(2**20):  # up to the checksum
                    pass
        except (EOFError, lzma.LZMAError, tarfile.TarError) as error:
            raise SystemExit(f"{day.pack}: its {len(parts)} parts are no whole archive ({error}): bring all") from None
        for wheel in sorted((day.pack / "wheels").glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(begun)
        _register(begun)
        begun.rename(site)
    importlib.invalidate_caches()
    return _pytest("tests/costs/test_fbgemm_kernels.py", "-k", "embedding_bag")


def _register(site: Path) -> None:
    """Make the solvers and costs of the checkout known, as its installation would."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = site / f"shardgym-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: shardgym\nVersion: {project['version']}\n")
    groups = [
        f"[{name}]\n" + "\n".join(f"{key} = {target}" for key, target in entries.items())
        for name, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n\n".join(groups) + "\n")


def tests(_: Day) -> Outcome:
    """Run the tests that need a GPU."""
    return _pytest("tests/gpu")


def _pytest(path: str, *options: str) -> Outcome:
    """Run tests, whose last line says how many passed."""
    import pytest

    # The machine's own versions may warn where ours do not.
    code = pytest.main(["-q", "-W", "default", "-p", "no:cacheprovider", str(ROOT / path), *options])
    if code:
        raise SystemExit(f"{path}: pytest ended with exit code {int(code)}")
    return True, ""


def kernels(day: Day) -> Outcome:
    """Time kernels that are published."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "published_gpu"))
    import repeat

    left, told = repeat.measure(day.work / "kernels.csv", minutes=day.left_s / 60, small=day.small)
    return not left, told


def survey(day: Day) -> Outcome:
    """Collect samples to train a simulator on."""
    for samples in SAMPLES:
        missing = _collect(day, samples, repeated=0.0)
        if missing:
            return False, f"{samples - missing} of {samples} samples"
    return True, f"{SAMPLES[-1]} samples"


def _collect(day: Day, samples: int, *, repeated: float) -> int:
    """Return how many samples are missing when the stage has to end."""
    from shardgym.training import collect

    found = collect(
        day.work / "survey", device="cuda", samples=samples, repeated=repeated, minutes=day.left_s / 60, space=day.space
    )
    print("\n".join(found.lines()), flush=True)
    return found.missing


def plans(day: Day) -> Outcome:
    """Let solvers solve the first tasks of a suite, and measure their plans."""
    tasks = 12 if day.small else 24
    done = _evaluate(day, "plans", tasks)
    return done == tasks, f"plans of {done} of {tasks} tasks"


def _evaluate(day: Day, folder: str, tasks: int) -> int:
    """Return how many tasks have plans when there is no time for one more."""
    from neuroshard.plus.sharing import SHARED_TYPES
    from shardgym import load_suite, make_cost
    from shardgym.evaluation import SolverSpec, evaluate

    suite = load_suite("tiny-v1" if day.small else "dlrm4-gpu-v1")
    # Kernels that are timed alone exchange no replicas.
    sharding_types = [name for name in SHARED_TYPES if name != "data_parallel"]
    plus = SolverSpec("neuroshard_plus", {"sharding_types": sharding_types})
    solvers = ["random", "dim_greedy", "size_lookup_greedy", "lpt", "neuroshard", plus]
    done = 0
    took_s = 0.0
    with make_cost("fbgemm", device="cuda", rounds=3) as judge:
        while done < tasks and day.left_s > took_s:
            done += 1
            left_s = day.left_s
            evaluate(suite, solvers, out=day.work / folder, judge=judge, oracle="roofline", limit=done)
            took_s = left_s - day.left_s
    return done


def again(day: Day) -> Outcome:
    """Measure the first samples of the survey, and the plans of the first tasks, a second time."""
    from shardgym.evaluation.result import RunInfo

    tasks = max(1, RunInfo.load(day.work / "plans" / "run.json").num_tasks // REPEATED)
    done = _evaluate(day._replace(end_s=time.monotonic() + day.left_s / 2), "plans-again", tasks)
    measured = (day.work / "survey" / "measurements.jsonl").read_bytes().count(b"\n")
    samples = max(1, measured // REPEATED)
    missing = _collect(day, samples, repeated=1.0)
    return done == tasks and not missing, f"{done} of {tasks} tasks, {2 * samples - missing} of twice {samples} samples"


def memory(day: Day) -> Outcome:
    """Take complete steps of one device; `memory.csv` has their peaks beside what an average batch should take."""
    import torch

    from shardgym import ShardingPlan, ShardingTask, StepMemory, Topology
    from shardgym.costs.fbgemm.step import StepJob
    from shardgym.costs.fbgemm.step_plan import StepPlan
    from shardgym.costs.fbgemm.step_rank import start
    from shardgym.files import append_flushed, drop_torn_line
    from shardgym.machine import usable_cores
    from shardgym.training.sampling import draw_share

    path = day.work / "memory.csv"
    drop_torn_line(path)
    if not path.exists():
        append_flushed(path, b"sample,batch_size,shards,columns,expected_state_bytes,expected_step_bytes,peak_bytes\n")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        alone = {"rank": 0, "world_size": 1, "domain_size": 1, "links": None, "cores": usable_cores()}
        rank, _ = start({**alone, "device": "cuda", "file": f"{folder}/rendezvous", "timeout_s": 60.0})
    done = path.read_bytes().count(b"\n") - 1
    while done < STEPS and day.left_s:
        held = draw_share(day.space, 0, "test", done)
        tables = tuple(
            dataclasses.replace(shard.table, name=str(n), num_embeddings=shard.num_rows, embedding_dim=shard.width)
            for n, shard in enumerate(held.shards)
        )
        topology = Topology(num_devices=1, memory_bytes=(2**40,))
        task = ShardingTask(tables, topology, held.batch_size, held.precision, held.optimizer, step_memory=StepMemory())
        plan = ShardingPlan.table_wise(task, [0] * len(tables))
        (expected,) = plan.memory_per_device(task, hottest=False)
        rank.drawn.clear()  # type: ignore[attr-defined]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        rank(StepJob(StepPlan.of(task, plan), (done,), 0, 0, False, 1.0))
        peak = torch.cuda.max_memory_allocated() - before
        state = expected.weights + expected.optimizer
        row = (done, held.batch_size, len(tables), held.width, state, expected.in_flight, peak)
        append_flushed(path, f"{','.join(map(str, row))}\n".encode())
        done += 1
    return done == STEPS, f"{done} of {STEPS} steps"


STAGES: dict[str, Callable[[Day], Outcome]] = {
    of.__name__: of for of in (unpack, tests, kernels, survey, plans, again, memory)
}
