"""The stages of `tools/gpu_day.py`: each takes a `Day`, writes what it measures at once, and returns an `Outcome`.

Here, as there, nothing but the standard library is imported before FBGEMM and the rest have been unpacked.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]

#: And `neuroshard_plus`.
SOLVERS = ("random", "dim_greedy", "size_lookup_greedy", "lpt", "neuroshard")
ROUNDS = 3
#: Samples of the survey: each number is complete before the next is begun, so that what there is, is of use.
SAMPLES = (60, 600, 6000)
#: Share of the survey, and of the tasks with plans, that is measured a second time.
REPEATED = 0.1
#: Complete steps whose peaks are measured.
STEPS = 12


class Day(NamedTuple):
    """What all stages know."""

    #: Folder of parts and wheels.
    pack: Path
    work: Path
    #: When the stage has to end, on the monotonic clock.
    end_s: float
    #: Whether sizes are those for a rehearsal on a CPU.
    small: bool

    @property
    def left_s(self) -> float:
        """Seconds until the end, at least 0."""
        return max(0.0, self.end_s - time.monotonic())

    @property
    def site(self) -> Path:
        """Where packages are unpacked."""
        return self.work / "site"

    @property
    def space(self) -> Any:
        """What the survey's samples are drawn from."""
        from shardgym.training import Space

        if self.small:
            return Space(suites=("dlrm4-v2",), memory_bytes=2**30)
        return Space(suites=("dlrm4-gpu-v1", "production-v1"), memory_bytes=2**35)

    @property
    def tasks(self) -> tuple[str, int]:
        """Suite whose tasks have plans, and how many of the first ones."""
        return ("tiny-v1", 12) if self.small else ("dlrm4-gpu-v1", 24)


#: Whether nothing is left, and what there is to say.
Outcome = tuple[bool, str]


# --- what a machine needs first ---------------------------------------------------------------------------------------


def unpack(day: Day) -> Outcome:
    """Unpack FBGEMM and the wheels into one folder, and look something up."""
    if not day.site.exists():
        begun = day.site.with_suffix(".begun")
        shutil.rmtree(begun, ignore_errors=True)
        parts = sorted(day.pack.glob("part-*"))
        if not parts:
            raise SystemExit(f"{day.pack} has no file part-00: expected the parts of a packed FBGEMM")
        with subprocess.Popen(["cat", *parts], stdout=subprocess.PIPE) as joined:
            assert joined.stdout is not None
            try:
                with lzma.open(joined.stdout) as content, tarfile.open(fileobj=content, mode="r|") as archive:
                    archive.extractall(begun, filter="data")
                    while content.read(2**20):  # up to the checksum
                        pass
            except (EOFError, lzma.LZMAError, tarfile.TarError) as error:
                raise SystemExit(f"{day.pack}: {len(parts)} parts make no whole archive ({error}): bring all") from None
        for wheel in sorted((day.pack / "wheels").glob("*.whl")):
            zipfile.ZipFile(wheel).extractall(begun)
        _register(begun)
        begun.rename(day.site)
    importlib.invalidate_caches()
    return True, look_up()


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


def look_up() -> str:
    """Hold a lookup, and the update of its rows, against torch's own; raises `AssertionError` where they differ."""
    import fbgemm_gpu
    import torch

    from shardgym.costs.fbgemm.cuda import CudaBackend
    from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
    from shardgym.costs.fbgemm.operator import LEARNING_RATE, RequestMaker, build_operator
    from shardgym.tables.table import EmbeddingTable, ZipfIds

    backend = CudaBackend()
    table = EmbeddingTable("t", 10_000, 64, 5.0, ZipfIds(s=1.05, lengths="poisson"))
    shard_set = ShardSet((ShardSpec(table, (0, 10_000), 64),), 4096, "fp32", "exact_sgd")
    operator = build_operator(shard_set, backend.device)
    ids = RequestMaker(0, backend.device, 2**30).request(shard_set, 0)
    weights = operator.split_embedding_weights()[0]
    reference = torch.randn_like(weights).requires_grad_()
    weights.copy_(reference.detach())
    pooled = operator(*ids)
    expected = torch.nn.functional.embedding_bag(ids.indices, reference, ids.offsets[:-1], mode="sum")
    torch.testing.assert_close(pooled, expected)
    for output in (pooled, expected):
        output.backward(torch.ones_like(output))
    assert reference.grad is not None
    updated = reference.detach() - LEARNING_RATE * reference.grad
    torch.testing.assert_close(weights, updated, rtol=1e-4, atol=1e-4)
    versions = f"FBGEMM {fbgemm_gpu.__version__}, torch {torch.__version__}"
    return f"{versions}: a lookup and its update on {backend.hardware} agree with torch's"


def tests(_: Day) -> Outcome:
    """Run the tests that need a GPU, whose last line says how many passed."""
    import pytest

    # The machine's own versions may warn of what ours do not.
    code = pytest.main(["-q", "-W", "default", "-p", "no:cacheprovider", str(ROOT / "tests" / "gpu")])
    if code:
        raise SystemExit(f"tests/gpu: pytest ended with exit code {int(code)}")
    return True, ""


# --- tables, one line for each measurement ----------------------------------------------------------------------------


class Table:
    """A CSV file that grows line by line; a last line that was cut off is removed."""

    def __init__(self, path: Path, columns: str) -> None:
        self._path = path
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1] or columns + "\n"
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        self.rows = list(csv.reader(whole.splitlines()))[1:]

    def add(self, *values: object) -> None:
        """Append a line."""
        self.rows.append([str(value) for value in values])
        with self._path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(values)


def kernels(day: Day) -> Outcome:
    """Time kernels that are published; `kernels.csv` tells of them as `rows.csv` does."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "published_gpu"))
    import repeat

    from shardgym.costs.fbgemm.jobs import TimingJob
    from shardgym.costs.fbgemm.workers import kernel_timer
    from shardgym.errors import MeasurementError

    columns = "id,gpu,op,optimizer,weights_precision,B,E,T,D,L,id_distribution,time_us,bw_gbps,source"
    table = Table(day.work / "kernels.csv", columns)
    known = {tuple(row[2:11]) for row in table.rows}
    timer = kernel_timer("cuda", 0, 60.0)
    timer.start()
    # As sources name it: "H100 80GB HBM3".
    gpu = timer.facts[0]["hardware"].removeprefix("cuda-").removeprefix("nvidia-").replace("-", " ").upper()
    failed = 0
    wanted = [
        kernel for kernel in repeat.kernels(small=day.small) if (kernel.op("backward"), *kernel.columns) not in known
    ]
    while wanted and day.left_s:
        kernel = wanted.pop(0)
        try:
            (found,) = timer.ask(TimingJob(kernel.shard_set, warmups=3, iterations=10))
        except MeasurementError as error:
            failed += 1
            print(f"{kernel.op('forward')} {kernel.columns}: {error}", flush=True)
            continue
        source = "ShardGym | " + "; ".join([*found.notes, f"the host launches a step in {found.launch_ms:.3f} ms"])
        for phase, times_ms in zip(("forward", "backward"), found.times.T, strict=True):
            time_us = f"{1e3 * statistics.median(times_ms):.2f}"
            table.add(f"M{len(table.rows):03}", gpu, kernel.op(phase), *kernel.columns, time_us, "", source)
    timer.close()
    launches = [float(row[-1].split()[-2]) for row in table.rows]
    told = f"{len(table.rows)} times, {failed} kernels could not be timed, {len(wanted)} are left"
    return not wanted, f"{told}; the host launches a step in {statistics.median(launches or [0]):.3f} ms (median)"


def memory(day: Day) -> Outcome:
    """Take complete steps of one device; `memory.csv` has their peaks beside what an average batch should take."""
    import torch

    from shardgym import ShardingPlan, ShardingTask, Topology
    from shardgym.costs.fbgemm.step import StepJob
    from shardgym.costs.fbgemm.step_plan import StepPlan
    from shardgym.costs.fbgemm.step_rank import start
    from shardgym.tasks.step_memory import StepMemory
    from shardgym.training.share_sampling import draw_share

    columns = "sample,batch_size,shards,columns,expected_state_bytes,expected_step_bytes,peak_bytes"
    table = Table(day.work / "memory.csv", columns)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        settings = {"rank": 0, "world_size": 1, "device": "cuda", "file": f"{folder}/rendezvous"}
        rank, _ = start({**settings, "timeout_s": 60.0, "links": None, "domain_size": 1})
    for number in range(len(table.rows), STEPS):
        if not day.left_s:
            break
        held = draw_share(day.space, 0, "test", number)
        tables = tuple(
            dataclasses.replace(shard.table, name=str(n), num_embeddings=shard.num_rows, embedding_dim=shard.width)
            for n, shard in enumerate(held.shards)
        )
        task = ShardingTask(
            tables, Topology(num_devices=1, memory_bytes=(2**40,)), held.batch_size, held.precision, held.optimizer,
            step_memory=StepMemory(),
        )  # fmt: skip
        plan = ShardingPlan.table_wise(task, [0] * len(tables))
        (expected,) = plan.memory_per_device(task, hottest=False)
        rank.drawn.clear()  # type: ignore[attr-defined]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        rank(StepJob(StepPlan.of(task, plan), (number,), 0, 0, False, 1.0))
        peak = torch.cuda.max_memory_allocated() - before
        state = expected.weights + expected.optimizer
        table.add(number, held.batch_size, len(tables), held.width, state, expected.in_flight, peak)
    ratios = [(int(row[-3]) + int(row[-2])) / int(row[-1]) for row in table.rows]
    expected_over_peak = f"{statistics.median(ratios or [0]):.3f} (median)"
    return len(table.rows) == STEPS, f"{len(table.rows)} of {STEPS} steps; expected over measured {expected_over_peak}"


# --- folders that the commands of ShardGym make -----------------------------------------------------------------------


def survey(day: Day) -> Outcome:
    """Collect samples to train a simulator on."""
    done = _samples(day)
    for samples in SAMPLES:
        if done < samples and day.left_s:
            _collect(day, samples, repeated=0.0, seconds=day.left_s)
            done = _samples(day)
    return done >= SAMPLES[-1], f"{done} samples, {SAMPLES[-1]} at most"


def _samples(day: Day) -> int:
    """Return how many samples have been tried, by the whole lines of the survey's log."""
    path = day.work / "survey" / "measurements.jsonl"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return len({name for name in (json.loads(line)["sample"] for line in lines) if name.endswith("/0")})


def _collect(day: Day, samples: int, *, repeated: float, seconds: float) -> int:
    """Return how many samples are missing after so many seconds."""
    from shardgym.training import collect

    found = collect(
        day.work / "survey", device="cuda", samples=samples, repeated=repeated, minutes=seconds / 60, space=day.space
    )
    print("\n".join(found.lines()), flush=True)
    return found.missing


def plans(day: Day) -> Outcome:
    """Let solvers solve tasks, and measure their plans."""
    name, tasks = day.tasks
    done = _evaluate(day, "plans", tasks)
    return done == tasks, f"plans of {done} tasks of {name}, {tasks} at most"


def _evaluate(day: Day, folder: str, tasks: int) -> int:
    """Return how many of the first tasks have plans when there is no time for one more."""
    from neuroshard.plus.sharing import SHARED_TYPES
    from shardgym import load_suite, make_cost
    from shardgym.evaluation import SolverSpec, evaluate

    suite = load_suite(day.tasks[0])
    # Kernels that are timed alone exchange no replicas.
    sharding_types = [name for name in SHARED_TYPES if name != "data_parallel"]
    solvers = [*SOLVERS, SolverSpec("neuroshard_plus", {"sharding_types": sharding_types})]
    done = 0
    took_s = 0.0
    with make_cost("fbgemm", device="cuda", rounds=ROUNDS) as judge:
        while done < tasks and day.left_s > took_s:
            done += 1
            left_s = day.left_s
            evaluate(suite, solvers, out=day.work / folder, judge=judge, oracle="roofline", limit=done)
            took_s = left_s - day.left_s
    return done


def again(day: Day) -> Outcome:
    """Measure the first samples of the survey, and the plans of the first tasks, a second time."""
    missing = _collect(day, max(1, round(REPEATED * _samples(day))), repeated=1.0, seconds=day.left_s / 2)
    first = _totals(day.work / "plans")
    tasks = max(1, round(REPEATED * len({task for task, *_ in first})))
    done = _evaluate(day, "plans-again", tasks)
    second = _totals(day.work / "plans-again")
    told = f"{missing} samples are left, and {tasks - done} of {tasks} tasks"
    if both := sorted(first.keys() & second.keys()):
        off = statistics.median(abs(second[key] / first[key] - 1) for key in both)
        told += f"; plans take {off:.1%} more or less the second time (median of {len(both)})"
    return not missing and done == tasks and bool(both), told


def _totals(folder: Path) -> dict[Any, float]:
    """Return the total of each plan in ms, by task, solver and seed."""
    from shardgym.evaluation import read_records

    path = folder / "records.jsonl"
    records: Sequence[Any] = read_records(path) if path.exists() else []
    return {record.key: record.cost.total_ms for record in records if record.status == "ok"}


STAGES: dict[str, Callable[[Day], Outcome]] = {
    "unpack": unpack, "tests": tests, "kernels": kernels, "survey": survey, "plans": plans, "again": again,
    "memory": memory,
}  # fmt: skip
