"""collect: measure shard sets and complete steps into a folder. finish: write the Parquet files of what is there."""

from __future__ import annotations

import dataclasses
import functools
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

from tqdm import tqdm

from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS, RANKS_PER_CORE
from shardgym.costs.fbgemm.pool import WorkerPool, require_fbgemm
from shardgym.costs.simulator.sample_files import DataInfo, write_rows
from shardgym.engines import Engine, HereEngine, make_engine
from shardgym.engines.base import OpenWorker
from shardgym.errors import InputError, import_extra
from shardgym.files import only_writer
from shardgym.machine import usable_cores, utc_now, versions
from shardgym.progress import progress_bar
from shardgym.training.measurements import (
    INFO,
    LOG,
    CollectionInfo,
    Measurement,
    MeasurementLog,
    Summary,
    repeat_noise,
    rows_of,
)
from shardgym.training.measuring import BATCH, TIMEOUT_S, QuietWatch, SampleWorker, reference_ms
from shardgym.training.schedule import Block, CollectionPlan, SampleId
from shardgym.training.settings import KINDS, WIDE_PRESETS, Space, preset_counts
from shardgym.training.step_sampling import DEVICES

_OpenWorker = OpenWorker[Block, list[Measurement]]


def collect(
    out: str | Path,
    *,
    device: str = "cpu",
    preset: str = "survey",
    compute: int | None = None,
    steps: int | None = None,
    repeat_share: float = 0.15,
    minutes: float | None = None,
    quiet: float | None = None,
    space: Space | None = None,
    seed: int = 0,
    engine: str | Engine = "here",
    progress: bool = False,
) -> Summary:
    """Measure what the folder lacks, in random order, then write its Parquet files.

    What sample number i of a role is follows from `seed` alone. Every measurement is appended to the folder and
    flushed, so a run that was killed or timed out continues where it was, and more samples can be asked for later.

    Args:
        out: the folder; one process at a time writes to it.
        device: "cpu" or "cuda".
        preset: "survey" or "quick" of tables of a pool; "oracle" or "judge" of tables made from a space.
        compute: shard sets over all roles, without repeats; the preset's number when None.
        steps: tasks, likewise; all plans of a task are measured in complete steps, on the CPU.
        repeat_share: share of the samples that is measured a second time, at another moment.
        minutes: begin nothing new after that long.
        quiet: measure only while a reference takes at most this share longer than on the quiet machine; wait otherwise.
            None measures at any time.
        space: that the presets "oracle" and "judge" draw shard sets from; `Space()` when None.
        seed: of all draws.
        engine: where samples are measured: "here", or "ray" on the nodes of a Ray cluster, all of this hardware; or one
            by `shardgym.engines.make_engine`. The folder is written here, a batch of samples at a time.
        progress: show progress on standard error.

    Raises:
        InputError: an argument is out of range, or the folder is in use, damaged or about something else.
        MissingDependencyError: FBGEMM or pyarrow are not installed.
        MeasurementError: no worker can be started.
    """
    if not 0 <= repeat_share <= 1:
        raise InputError(f"repeat_share={repeat_share}: expected a share from 0 to 1")
    if quiet is not None and not 0 < quiet <= 10:
        raise InputError(f"quiet={quiet}: expected a share above 0, such as 0.1")
    doing = make_engine(engine) if isinstance(engine, str) else engine
    if quiet is not None and not isinstance(doing, HereEngine):
        raise InputError(f"quiet={quiet}: the quiet level is of one machine: leave it out, or take engine 'here'")
    if space is not None and preset not in WIDE_PRESETS:
        raise InputError(f"preset '{preset}' draws from a pool: a space goes with preset {' or '.join(WIDE_PRESETS)}")
    left_out: list[str] = []
    if preset in WIDE_PRESETS:
        space, left_out = _space_of_device(space or Space(), device)
    plan, notices = _plan_for_machine(device, preset, compute, steps, repeat_share, seed, space)
    notices += left_out
    # What is missing is said before hours of measuring, not after.
    import_extra("pyarrow.parquet", "collecting")
    require_fbgemm(device)
    folder = Path(out)
    with ExitStack() as stack:
        stack.enter_context(only_writer(folder))
        pool = WorkerPool(device, seed, TIMEOUT_S)
        stack.callback(pool.close)
        info = CollectionInfo(pool.facts()["hardware"], versions(), plan.settings())
        info.write_or_check(folder)
        log = MeasurementLog(folder)
        samples = [str(sample) for sample in plan.samples()]
        done = sum(name in log.done for name in samples)
        bar = stack.enter_context(progress_bar(shown=progress, total=len(samples), initial=done, unit="sample"))
        run = _Kept(log, bar)
        deadline = None if minutes is None else time.time() + 60 * minutes
        watch = None if quiet is None else QuietWatch(folder, lambda: reference_ms(pool), quiet)
        if isinstance(doing, HereEngine):
            here = SampleWorker(plan, pool, deadline, run.keep, watch, bar.set_postfix_str)
            stack.callback(here.close)
            open_worker = cast("_OpenWorker", functools.partial(nullcontext, _MeasuredHere(here)))
        else:
            pool.close()
            open_worker = functools.partial(_open_elsewhere, plan, info, seed, deadline)
        for _, measurements in doing.run(open_worker, _missing_blocks(plan, log), alone=True):
            for measurement in measurements:
                run.keep(measurement)
        if watch is not None:
            notices.append(watch.notice())
        if log.dropped:
            notices.append("a line that a kill had cut off was dropped, its sample was measured again")
        missing = sum(name not in log.done and name not in log.failed for name in samples)
        return _write_files(folder, info, plan, log, notices, run, missing)


class _Kept:
    """Appends measurements to a log, and counts them.

    Attributes:
        measured: measurements made, by kind.
        minutes: how long that took, by kind: the time since the one before.
    """

    def __init__(self, log: MeasurementLog, bar: tqdm[Any]) -> None:
        self._log = log
        self._bar = bar
        self._last = time.monotonic()
        self.measured: Counter[str] = Counter()
        self.minutes: dict[str, float] = dict.fromkeys(KINDS, 0.0)

    def keep(self, measurement: Measurement) -> None:
        """Append a measurement and flush it."""
        self._log.append(measurement)
        kind = measurement.sample.kind
        now = time.monotonic()
        self.measured[kind] += 1
        self.minutes[kind] += (now - self._last) / 60
        self._last = now
        self._bar.set_postfix_str(kind)
        self._bar.update()


class _MeasuredHere:
    """Measures blocks in this process, where each measurement is kept at once."""

    def __init__(self, worker: SampleWorker) -> None:
        self._worker = worker

    def __call__(self, block: Block) -> list[Measurement]:
        """Measure a block; nothing is left to keep."""
        self._worker.measure(block)
        return []


@contextmanager
def _open_elsewhere(
    plan: CollectionPlan, info: CollectionInfo, seed: int, deadline: float | None
) -> Iterator[Callable[[Block], list[Measurement]]]:
    """Start what measures in another process, maybe on another machine.

    Raises:
        InputError: its hardware or versions are not those of the collection.
    """
    with ExitStack() as stack:
        pool = WorkerPool(plan.device, seed, TIMEOUT_S)
        stack.callback(pool.close)
        facts = pool.facts()
        for what, here, there in (
            ("hardware", facts["hardware"], info.hardware), ("versions", versions(), info.versions),
        ):  # fmt: skip
            if here != there:
                raise InputError(
                    f"{socket.gethostname()} has {what} {here}, the collection has {there}: leave this machine out"
                )
        found: list[Measurement] = []
        worker = SampleWorker(plan, pool, deadline, found.append)
        stack.callback(worker.close)

        def measure(block: Block) -> list[Measurement]:
            found.clear()
            worker.measure(block)
            return list(found)

        yield measure


def _missing_blocks(plan: CollectionPlan, log: MeasurementLog) -> list[Block]:
    """Return what the log lacks, in order, shard sets in batches."""

    def missing(samples: Sequence[SampleId]) -> tuple[SampleId, ...]:
        return tuple(sample for sample in samples if str(sample) not in log.done)

    blocks = []
    for block in plan.blocks:
        shard_sets = missing(block.shard_sets)
        blocks += [Block(shard_sets[first : first + BATCH], ()) for first in range(0, len(shard_sets), BATCH)]
        if plans := missing(block.plans):
            blocks.append(Block((), plans))
    return blocks


def finish(out: str | Path) -> Summary:
    """Write the Parquet files of what has been measured so far.

    Raises:
        InputError: the folder is in use, damaged, or holds no measurements.
        MissingDependencyError: pyarrow is not installed.
    """
    import_extra("pyarrow.parquet", "writing samples")
    folder = Path(out)
    info = CollectionInfo.of_folder(folder)
    with only_writer(folder):
        old = info.settings
        try:
            space = Space.from_dict(old["space"], str(folder / INFO)) if "space" in old else None
            plan = CollectionPlan(old["device"], {}, 0.0, old["seed"], space)
            same = plan.settings().items() <= old.items()
        except (KeyError, TypeError):
            same = False
        if not same:
            raise InputError(f"{folder / INFO}: its settings are not those of this version of shardgym")
        return _write_files(folder, info, plan, MeasurementLog(folder))


def _plan_for_machine(
    device: str,
    preset: str,
    compute: int | None,
    steps: int | None,
    repeat_share: float,
    seed: int,
    space: Space | None,
) -> tuple[CollectionPlan, list[str]]:
    """Return the plan as far as the machine can measure it, and a sentence about what was left out."""
    counts = preset_counts(preset, device, compute, steps)
    most = RANKS_PER_CORE * len(usable_cores())
    notices = []
    if device == "cuda":
        notices.append("no complete steps: on CUDA kernels are timed apart")
    elif any(counts["steps"].values()) and most < max(DEVICES):
        notices.append(f"tasks of more than {most} devices were left out: this machine runs up to {most} processes")
    return CollectionPlan(device, counts, repeat_share, seed, space, most), notices


def _space_of_device(space: Space, device: str) -> tuple[Space, list[str]]:
    """Return the part of a space that a device has kernels for, and a sentence about what was left out."""
    without = [name for name in space.optimizer if device == "cpu" and name not in CPU_OPTIMIZERS]
    if not without:
        return space, []
    rest = tuple(name for name in space.optimizer if name not in without)
    if not rest:
        raise InputError(f"optimizer {', '.join(without)}: FBGEMM has no kernel of it for the CPU")
    notice = f"{', '.join(without)} was left out: FBGEMM has no kernel of it for the CPU"
    return dataclasses.replace(space, optimizer=rest), [notice]


def _write_files(
    folder: Path, info: CollectionInfo, plan: CollectionPlan, log: MeasurementLog,
    notices: Sequence[str] = (), run: _Kept | None = None, missing: int = 0,
) -> Summary:  # fmt: skip
    """Write one Parquet file per kind that has measurements, and summarise."""
    rows = {kind: found for kind in KINDS if (found := rows_of(log, plan, kind))}
    files = {"measurements": str(folder / LOG)}
    for kind, of_kind in rows.items():
        path = folder / f"{kind}.parquet"
        write_rows(path, of_kind, DataInfo(kind, info.hardware, info.versions, info.settings, utc_now()))
        files[kind] = str(path)
    if not log.done and not log.failed and missing == 0:
        raise InputError(f"{folder} holds no measurements")
    samples = [measurement.sample for measurement in log.done.values()]
    return Summary(
        counts={kind: dict(Counter(s.role for s in samples if s.kind == kind)) for kind in rows},
        noise={kind: noise for kind, of_kind in rows.items() if (noise := repeat_noise(of_kind)) is not None},
        failed=dict(log.failed),
        missing=missing,
        measured=dict(run.measured) if run else {},
        minutes={kind: run.minutes[kind] for kind in run.measured} if run else {},
        files=files,
        notices=tuple(notices),
    )
