"""collect: measure shard sets and complete steps into a folder."""

from __future__ import annotations

import dataclasses
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm import step
from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS, RANKS_PER_CORE
from shardgym.costs.fbgemm.jobs import ShardSet, TimingJob
from shardgym.costs.fbgemm.pace import Pace
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.costs.fbgemm.workers import Workers, kernel_timer, require_fbgemm, step_ranks
from shardgym.costs.links import samples_per_device
from shardgym.errors import InputError, MeasurementError, UnknownNameError, import_extra
from shardgym.files import append_flushed, drop_torn_line, only_writer, read_lines, write_whole
from shardgym.machine import usable_cores, utc_now, versions
from shardgym.progress import progress_bar
from shardgym.records import canonical_json, parse_json, sha256
from shardgym.tables.table import REUSE_BINS
from shardgym.training.samples import STEP_PARTS, DataInfo, Kind, write_rows
from shardgym.training.sampling import Role, Space, draw_shard_set, draw_share, random_of
from shardgym.training.step_sampling import DEVICES, Plan, draw_plans, num_devices

#: What all measurements of a folder have in common, a `DataInfo`; and the measurements, one JSON line each.
INFO = "collection.json"
LOG = "measurements.jsonl"

#: Shard sets and tasks of complete steps unless something else is asked for.
SAMPLES = 15_000
STEPS = 500
#: Who learns from samples in turn: asking for more keeps those that were there.
_TURNS: tuple[Role, ...] = (
    "oracle", "oracle", "test", "judge", "oracle", "oracle", "judge", "oracle", "oracle", "judge"
)  # fmt: skip
#: Share of the samples that is measured a second time, at another moment.
REPEATED = 0.15

#: Seconds that one sample may take before its process is replaced.
_TIMEOUT_S = 120.0
#: Tasks after which the processes of complete steps start anew. Each keeps the ids that it draws, up to a share of the
#: memory, and no later task has the same: kept for 394 tasks on 24 GB, 71 tasks had plans that lacked memory.
TASKS_PER_START = 60

#: Steps of a plan or a shard set: untimed and timed ones. Small sets, which read fewer values in a step, get more:
#: 12 instead of 4 took the spread between repeats below 1 ms from 12 to 7 %. Large ones gain nothing, because they
#: differ from one measurement to the next as a whole.
_WARMUPS = 1
_ITERATIONS = 3
_SMALL_ITERATIONS = 9
_SMALL_VALUES = 1_000_000

#: Parts of a step that are kept: exchanges are not timed, and plans have neither row shards nor replicas.
WORK = ("forward", "backward", *STEP_PARTS)


class Sample(NamedTuple):
    """Name of one measurement, e.g. "compute/oracle/17/0" as text; of steps, of all plans of a task."""

    kind: Kind
    role: Role
    number: int  #: what it is follows from this, the role and the seed
    repeat: int  #: 0 for the first measurement, 1 for the second

    def __str__(self) -> str:
        return "/".join(map(str, self))


def collect(
    out: str | Path,
    *,
    device: str = "cpu",
    samples: int = SAMPLES,
    steps: int | None = None,
    minutes: float | None = None,
    space: Space | None = None,
    repeated: float = REPEATED,
    seed: int = 0,
    progress: bool = False,
) -> Summary:
    """Measure what the folder lacks, in random order, then write `compute.parquet` and `steps.parquet`.

    What sample number i is follows from `seed` and `space` alone. Every measurement is appended to the folder and
    flushed, so a run that was killed or timed out continues where it was, and more samples can be asked for later.

    Args:
        out: the folder; one process at a time writes to it.
        device: "cpu" or "cuda".
        samples: shard sets, without repeats.
        steps: tasks, likewise, all of whose plans are measured in complete steps; on the CPU alone, where it is
            `STEPS` when None.
        minutes: begin nothing new after that long.
        space: space to draw shard sets from; `Space()` when None.
        repeated: share of the samples, and of the tasks, that is measured a second time, at another moment.
        seed: seed of all draws.
        progress: show progress on standard error.

    Raises:
        InputError: steps are wanted on CUDA, `repeated` is not a share, the folder is in use, damaged or of another
            run, or a suite of the space cannot be sampled.
        MissingDependencyError: FBGEMM or pyarrow are not installed.
        MeasurementError: no process can be started.
    """
    if device not in ("cpu", "cuda"):
        raise UnknownNameError("device", device, ("cpu", "cuda"))
    if steps and device == "cuda":
        raise InputError(f"steps={steps} on cuda: complete steps are measured on the CPU; use steps=0")
    if not 0 <= repeated <= 1:
        raise InputError(f"repeated={repeated}: expected a share of the samples, 0 to 1")
    space = space or Space()
    notices = []
    if device == "cpu":
        known = tuple(name for name in space.optimizer if name in CPU_OPTIMIZERS)
        left_out = ", ".join(sorted({*space.optimizer} - {*known}))
        notices += [f"{left_out} was left out: FBGEMM has no CPU kernel for it"] if left_out else []
        space = dataclasses.replace(space, optimizer=known)
        steps = STEPS if steps is None else steps
    # Fail before hours of measuring, not after.
    import_extra("pyarrow.parquet", "collecting")
    require_fbgemm(device)
    most = RANKS_PER_CORE * len(usable_cores())
    wanted = _samples("compute", samples, repeated) + _samples("steps", steps or 0, repeated)
    wanted = [s for s in wanted if s.kind == "compute" or num_devices(seed, s.role, s.number) <= most]
    if steps and most < max(DEVICES):
        notices.append(f"tasks of more than {most} devices were left out: this machine runs up to {most} processes")
    with ExitStack() as stack:
        stack.enter_context(only_writer(Path(out)))
        measuring = stack.enter_context(_Measuring(device, space, seed))
        settings = {"device": device, "space": space.to_dict(), "seed": seed}
        info = DataInfo(measuring.hardware, versions(), settings, utc_now())
        log = _Log(Path(out), info)
        if log.dropped:
            notices.append("a line cut off by a kill was dropped, and its sample measured again")
        missing = [s for s in wanted if str(s) not in log.rows or str(s) in log.failed]
        bar = progress_bar(shown=progress, total=len(wanted), initial=len(wanted) - len(missing), unit="sample")
        stack.enter_context(bar)
        deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        for number in random_of(seed, "order").permutation(len(missing)):
            if time.monotonic() >= deadline:
                break
            bar.set_postfix_str(missing[number].kind)
            log.append(missing[number], *measuring.measure(missing[number]))
            bar.update()
        summary = log.write(info)
    done = {*log.rows, *log.failed}
    return dataclasses.replace(
        summary, missing=sum(str(sample) not in done for sample in wanted), notices=tuple(notices)
    )


def _samples(kind: Kind, count: int, repeated: float) -> list[Sample]:
    repeats = [(number, 0) for number in range(count)] + [(number, 1) for number in range(round(repeated * count))]
    return [Sample(kind, _TURNS[number % len(_TURNS)], number, repeat) for number, repeat in repeats]


class _Log:
    """The measurements of a folder: one JSON line each, with all that a data set says of them."""

    def __init__(self, folder: Path, info: DataInfo) -> None:
        path = folder / INFO
        if path.exists():
            old = DataInfo.load(path)
            for what, before, now in (
                ("hardware", old.hardware, info.hardware), ("versions", old.versions, info.versions),
                *((name, old.settings.get(name), value) for name, value in info.settings.items()),
            ):  # fmt: skip
                if before != now:
                    raise InputError(
                        f"{folder} holds measurements of {what} {before!r}, this run has {now!r}: use another folder"
                    )
        elif others := sorted(p.name for p in folder.iterdir() if p.suffix in (".jsonl", ".parquet")):
            raise InputError(f"{folder} holds {others[0]} but no {INFO}: use an empty folder")
        else:
            write_whole(path, info.to_json(indent=2) + "\n")
        self._folder = folder
        self._path = folder / LOG
        #: Rows of the data set by sample; and why a sample has none (yet), or lacks some of its plans.
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.failed: dict[str, str] = {}
        self.dropped = drop_torn_line(self._path) is not None
        for line in read_lines(self._path) if self._path.exists() else []:
            self._add(**parse_json(line.text, line.where(self._path)))

    def append(self, sample: Sample, rows: list[dict[str, Any]], reason: str) -> None:
        """Append what was measured, and why something was not, and flush it to the disk."""
        line: dict[str, Any] = {"sample": str(sample), "rows": rows, "reason": reason}
        append_flushed(self._path, (json.dumps(line) + "\n").encode())
        self._add(**line)

    def _add(self, sample: str, rows: list[dict[str, Any]], reason: str) -> None:
        self.failed.pop(sample, None)
        if rows:
            self.rows[sample] = rows
        if reason:
            self.failed[sample] = reason

    def write(self, info: DataInfo) -> Summary:
        """Write one Parquet file per kind that has measurements, in the order of their names, and summarise."""
        files = {"measurements": str(self._path)}
        counts: dict[str, dict[str, int]] = {}
        noise = {}
        for kind in get_args(Kind):
            names = sorted(name for name in self.rows if name.startswith(kind))
            if names:
                rows = [row for name in names for row in self.rows[name]]
                write_rows(self._folder / f"{kind}.parquet", kind, rows, info)
                files[kind] = str(self._folder / f"{kind}.parquet")
                counts[kind] = dict(Counter(name.split("/")[1] for name in names))
                noise[kind] = _repeat_noise(rows)
        return Summary(counts, noise, dict(self.failed), 0, files, ())


class _Measuring:
    """Measures samples with processes of their own, which end with the context."""

    def __init__(self, device: str, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._timer = kernel_timer(device, seed, _TIMEOUT_S)
        #: By number of devices. They stay for later tasks: starting one takes seconds.
        self._groups: dict[int, tuple[Workers, Pace]] = {}
        self._num_tasks = 0
        self._rng = random.Random(seed)

    def __enter__(self) -> _Measuring:
        self._timer.start()
        self.hardware: str = self._timer.facts[0]["hardware"]
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.close()
        self._close_groups()

    def measure(self, sample: Sample) -> tuple[list[dict[str, Any]], str]:
        """Return the rows of a sample, and why there are none, or fewer than could be."""
        return self._shard_set(sample) if sample.kind == "compute" else self._task(sample)

    def _shard_set(self, sample: Sample) -> tuple[list[dict[str, Any]], str]:
        draw = draw_share if self._space.suites else draw_shard_set
        held = draw(self._space, self._seed, sample.role, sample.number)
        values = held.batch_size * sum(shard.ids_per_sample * shard.width for shard in held.shards)
        iterations = _SMALL_ITERATIONS if values < _SMALL_VALUES else _ITERATIONS
        try:
            (outcome,) = self._timer.ask(TimingJob(held, _WARMUPS, iterations))
        except MeasurementError as error:
            return [], str(error)
        if outcome.notes:  # nobody reads the notes of a sample that a model is trained on
            return [], "; ".join(outcome.notes)
        return [{"sample_id": str(sample), **_common(sample, held, outcome.times)}], ""

    def _task(self, sample: Sample) -> tuple[list[dict[str, Any]], str]:
        """Measure all plans of a task together: they take the same ids."""
        plans = draw_plans(self._seed, sample.role, sample.number)
        if self._num_tasks % TASKS_PER_START == 0:
            self._close_groups()
        self._num_tasks += 1
        size = len(plans[0])
        if size not in self._groups:
            ranks = step_ranks(size, "cpu", _TIMEOUT_S, domain_size=size)
            self._groups[size] = ranks, Pace(ranks, size)
        group, pace = self._groups[size]
        group.start()
        try:
            now = pace.now()
        except MeasurementError as error:
            return [], str(error)
        found, failed = step.time_steps(
            group,
            {n: StepPlan(plan) for n, plan in enumerate(plans)},
            rounds=1,
            warmups=_WARMUPS,
            iterations=_ITERATIONS,
            seed=self._seed + sample.number,
            rng=self._rng,
            timed_exchanges=False,
            pace=now,
        )
        work = [step.PARTS.index(part) for part in WORK]
        rows = []
        for n, steps in found.items():
            rows += _step_rows(sample, n, plans[n], now, steps.parts_ms[0][:, :, work])
        return rows, "; ".join(sorted(set(failed.values())))

    def _close_groups(self) -> None:
        while self._groups:
            self._groups.popitem()[1][0].close()


def _step_rows(sample: Sample, number: int, plan: Plan, pace: float, times: Floats) -> list[dict[str, Any]]:
    """Return a row for each device that holds something, of times of shape (steps, devices, `WORK`)."""
    held = [shard_set for shard_set in plan if shard_set is not None]
    batch_size = held[0].batch_size
    of_plan = {
        "plan": f"{sample.role}/{sample.number}/{number}",
        "num_devices": len(plan),
        "plan_shards": sum(len(shard_set.shards) for shard_set in held),
        "plan_ids": batch_size * sum(shard.ids_per_sample for shard_set in held for shard in shard_set.shards),
        "plan_columns": sum(shard_set.width for shard_set in held),
    }
    return [
        {
            "sample_id": f"steps/{of_plan['plan']}/{device}/{sample.repeat}",
            **_common(sample, shard_set, times[:, device, :2]),
            **of_plan,
            "device": device,
            "samples": int(samples_per_device(batch_size, len(plan))[device]),
            "pace": round(pace, 6),
            **{f"{part}_ms": _typical(times[:, device, WORK.index(part)]) for part in STEP_PARTS},
        }
        for device, shard_set in enumerate(plan)
        if shard_set is not None
    ]


def _common(sample: Sample, held: ShardSet, times: Floats) -> dict[str, Any]:
    """Return the columns of all rows: what a device holds, and its forward and backward times, (steps, 2)."""
    columns = {
        "batch_size": held.batch_size,
        "precision": held.precision,
        "optimizer": held.optimizer,
        "num_embeddings": [s.num_rows for s in held.shards],
        "embedding_dim": [s.width for s in held.shards],
        "pooling_factor": [s.ids_per_sample for s in held.shards],
        "reuse_histogram": [list(s.table.reuse_histogram or (0.0,) * REUSE_BINS) for s in held.shards],
        "table_name": [s.table.name for s in held.shards],
    }
    total = times.sum(axis=1)
    error = float(total.std(ddof=1) / np.sqrt(len(total)) / total.mean()) if len(total) > 1 else 0.0
    return {
        "role": sample.role, "content": sha256(canonical_json(columns)), "repeat": sample.repeat, **columns,
        "forward_ms": _typical(times[:, 0]), "backward_ms": _typical(times[:, 1]), "noise": error,
    }  # fmt: skip


def _typical(ms: Floats) -> float:
    return round(float(np.median(ms)), 6)


def _repeat_noise(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Compare the first measurement of every row with its repeat, by all work of a device; see `Summary.noise`."""
    totals = {row["sample_id"]: sum(row.get(f"{part}_ms", 0.0) for part in WORK) for row in rows}
    ratios = [
        totals[first] / totals[name]
        for name in totals
        if name.endswith("/1") and (first := name.removesuffix("/1") + "/0") in totals
    ]
    if not ratios:
        return {"pairs": 0}
    cv = math.sqrt((np.log(ratios) ** 2).mean() / 2)
    return {"pairs": len(ratios), "cv": cv, "mape": float(np.abs(np.subtract(ratios, 1)).mean())}


@dataclasses.dataclass(frozen=True)
class Summary:
    """The state of a folder."""

    counts: dict[str, dict[str, int]]  #: measurements by kind and role, repeats included; of steps tasks
    #: By kind: pairs of a measurement and its repeat, and how these differ: coefficient of variation, root mean square
    #: over the pairs ("cv"), and mean absolute percentage error, as a share ("mape").
    noise: dict[str, dict[str, float]]
    failed: dict[str, str]  #: reasons by sample, of what could not be measured
    missing: int  #: measurements that the folder lacks
    files: dict[str, str]  #: paths by content
    notices: tuple[str, ...]  #: sentences that a reader must know

    def lines(self) -> list[str]:
        """Return it as text."""
        found: list[str] = []
        for kind, of_role in self.counts.items():
            roles = ", ".join(f"{role} {count}" for role, count in of_role.items())
            found.append(f"{kind}: {sum(of_role.values())} ({roles})")
            noise = self.noise[kind]
            if noise["pairs"]:
                found[-1] += f"; repeats: CV {noise['cv']:.1%}, MAPE {noise['mape']:.1%} over {noise['pairs']} pairs"
        found += [f"failed: {name}: {reason}" for name, reason in list(self.failed.items())[:3]]
        if self.failed:
            found.append(f"{len(self.failed)} samples failed; run the same command to retry them")
        if self.missing:
            found.append(f"{self.missing} samples are missing; run the same command to resume")
        return [*found, *self.notices, *(f"{what}: {path}" for what, path in self.files.items())]
