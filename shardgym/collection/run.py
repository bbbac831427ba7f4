"""collect: measure shard sets and exchanges into a folder. finish: make Parquet files of what is there."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from shardgym.collection.info import INFO, CollectionInfo
from shardgym.collection.log import LOG, Measurement, MeasurementLog
from shardgym.collection.measure import Collector
from shardgym.collection.plan import CollectionPlan
from shardgym.collection.rows import comm_row, compute_row
from shardgym.collection.setup import KINDS, PRESETS, SETUPS, Counts, Kind, preset_counts
from shardgym.collection.summary import Rows, Summary, repeat_noise, role_counts
from shardgym.collection.timer import RunTimer
from shardgym.costs.fbgemm.communication import measures
from shardgym.costs.fbgemm.pool import WorkerPool, require_fbgemm
from shardgym.costs.simulator.dataset import DataInfo, write_rows
from shardgym.costs.simulator.optional import need
from shardgym.errors import InputError, UnknownNameError
from shardgym.files import only_writer, write_whole
from shardgym.progress import ProgressBar
from shardgym.provenance import utc_now, versions

#: What the device does besides FBGEMM kernels: a `DeviceFacts` record.
DEVICE = "device.json"

#: Seconds that one sample may take before its worker is replaced.
TIMEOUT_S = 120.0


def collect(
    out: str | Path,
    *,
    device: str = "cpu",
    preset: str = "survey",
    compute: int | None = None,
    comm: int | None = None,
    workers: int = 1,
    repeat_share: float = 0.15,
    minutes: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Summary:
    """Measure what the folder lacks, in random order, then write its Parquet files.

    What sample number i of a role is follows from `seed` alone. Every measurement is appended to the folder and
    flushed, so a run that was killed or timed out continues where it was, and more samples can be asked for later.

    Args:
        out: the folder; one process at a time writes to it.
        device: "cpu" or "cuda".
        preset: "survey" or "quick".
        compute: shard sets over all roles, without repeats; the preset's number when None.
        comm: exchanges, likewise.
        workers: processes that measure compute at the same time, each with a core or GPU of its own.
        repeat_share: share of the samples that is measured a second time, at another moment.
        minutes: begin nothing new after that long.
        seed: of all draws.
        progress: show progress on standard error.

    Raises:
        InputError: an argument is out of range, or the folder is in use, damaged or about something else.
        MissingDependencyError: FBGEMM or pyarrow are not installed.
        MeasurementError: no worker can be started.
    """
    _check(device, workers, repeat_share)
    need("pyarrow.parquet", "collecting")
    require_fbgemm(device)
    counts = preset_counts(preset, device, compute, comm)
    plan, notices = _plan(device, PRESETS[preset].device_counts, counts, repeat_share, seed, comm_asked=bool(comm))
    folder = Path(out)
    with ExitStack() as stack:
        stack.enter_context(only_writer(folder))
        pool = WorkerPool(device, workers, seed, TIMEOUT_S)
        stack.callback(pool.close)
        info = CollectionInfo(pool.facts()["hardware"], versions(), plan.settings() | {"workers": workers})
        info.claim(folder)
        _probe(pool, folder)
        log = MeasurementLog(folder)
        entries = [entry.sample_id for entry in plan.entries()]
        bar = stack.enter_context(ProgressBar(shown=progress, total=len(entries), unit="sample"))
        bar.initial = bar.n = sum(name in log.done for name in entries)

        def advance(measurement: Measurement) -> None:
            bar.remark(measurement.entry.kind)
            bar.update()

        timer = RunTimer(minutes, advance)
        Collector(plan, log, pool, timeout_s=TIMEOUT_S, stop=timer.over, progress=timer.count).run()
        if log.dropped:
            notices.append("a line that a kill had cut off was dropped, its sample was measured again")
        missing = sum(name not in log.done and name not in log.failed for name in entries)
        return _finish(folder, info, plan, log, notices, timer, missing)


def _probe(pool: WorkerPool, folder: Path) -> None:
    """Measure the device itself once per folder."""
    if not (folder / DEVICE).exists():
        write_whole(folder / DEVICE, pool.probe().to_json(indent=1) + "\n")


def finish(out: str | Path) -> Summary:
    """Write the Parquet files of what has been measured so far.

    Raises:
        InputError: the folder is in use, damaged, or holds no measurements.
        MissingDependencyError: pyarrow is not installed.
    """
    need("pyarrow.parquet", "writing samples")
    folder = Path(out)
    info = CollectionInfo.of_folder(folder)
    with only_writer(folder):
        s = info.settings
        try:
            plan = CollectionPlan(s["device"], {}, 0.0, tuple(s["device_counts"]), s["seed"])
            same = plan.settings().items() <= s.items()
        except (KeyError, TypeError):
            same = False
        if not same:
            raise InputError(f"{folder / INFO}: its settings are not those of this version of shardgym")
        return _finish(folder, info, plan, MeasurementLog(folder), [], RunTimer(None, lambda _: None), 0)


def _check(device: str, workers: int, repeat_share: float) -> None:
    if device not in SETUPS:
        raise UnknownNameError("device", device, SETUPS)
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise InputError(f"workers={workers!r}: expected a whole number, at least 1")
    if not 0 <= repeat_share <= 1:
        raise InputError(f"repeat_share={repeat_share}: expected a share from 0 to 1")


def _plan(
    device: str, wanted: tuple[int, ...], counts: Counts, repeat_share: float, seed: int, *, comm_asked: bool
) -> tuple[CollectionPlan, list[str]]:
    """Return the plan as far as the machine has devices, and what was left out."""
    exchanges = any(counts["comm"].values())
    able = tuple(n for n in wanted if measures("auto", device, n)) if exchanges else wanted
    if exchanges and not able:
        if comm_asked:
            raise InputError(f"comm: exchanges need {wanted[0]} devices, this machine measures fewer; use comm=0")
        counts = {**counts, "comm": dict.fromkeys(counts["comm"], 0)}
    lacking = [str(n) for n in wanted if n not in able]
    left_out = [f"exchanges over {', '.join(lacking)} devices were left out: this machine cannot measure them"]
    return CollectionPlan(device, counts, repeat_share, able, seed), left_out if lacking else []


def _finish(
    folder: Path, info: CollectionInfo, plan: CollectionPlan, log: MeasurementLog,
    notices: list[str], timer: RunTimer, missing: int,
) -> Summary:  # fmt: skip
    """Write one Parquet file per kind that has measurements, sorted by name, and summarise."""
    rows = {kind: _rows(plan, log, kind) for kind in KINDS}
    files = {"measurements": str(folder / LOG)}
    if (folder / DEVICE).exists():
        files["device"] = str(folder / DEVICE)
    for kind in KINDS:
        if rows[kind]:
            path = folder / f"{kind}.parquet"
            write_rows(path, rows[kind], DataInfo(kind, info.hardware, info.versions, info.settings, utc_now()))
            files[kind] = str(path)
    if not log.done and not log.failed and missing == 0:
        raise InputError(f"{folder} holds no measurements")
    return Summary(
        counts={kind: role_counts(rows[kind]) for kind in KINDS if rows[kind]},
        noise={kind: noise for kind in KINDS if (noise := repeat_noise(rows[kind])) is not None},
        failed=dict(log.failed), missing=missing, measured=timer.measured, minutes=timer.minutes,
        files=files, notices=tuple(notices),
    )  # fmt: skip


def _rows(plan: CollectionPlan, log: MeasurementLog, kind: Kind) -> Rows:
    chosen = sorted((m for m in log.done.values() if m.entry.kind == kind), key=lambda m: m.entry)
    if kind == "compute":
        return [compute_row(plan, measurement) for measurement in chosen]
    return [comm_row(plan, measurement) for measurement in chosen]
