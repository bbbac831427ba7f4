"""Measuring samples by workers, at any time or while the machine is quiet."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm import step
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.fbgemm.ranks import RankGroup
from shardgym.costs.fbgemm.step_plan import StepPlan
from shardgym.errors import MeasurementError
from shardgym.files import append_flushed, read_lines
from shardgym.records import parse_json
from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.training.measurements import WORK, Measurement
from shardgym.training.schedule import Block, CollectionPlan, SampleId
from shardgym.training.settings import STEPS, StepCounts

#: Seconds that one sample may take before its worker is replaced.
TIMEOUT_S = 120.0

#: Tasks after which the processes of complete steps start anew. Each keeps the ids that it draws, up to a share of the
#: memory, and no later task has the same: kept for 394 tasks on 24 GB, 71 tasks had plans that lacked memory.
TASKS_PER_START = 60

#: Digits of a time in ms that are kept.
_DIGITS = 6

#: References of a `QuietWatch`, one JSON line each.
REFERENCES = "references.jsonl"
#: Seconds between two looks at a machine that is not quiet.
PAUSE_S = 10.0
#: Samples between two references.
BATCH = 20
#: The quiet level is this quantile of all references: a lucky one should not condemn those after it.
_QUANTILE = 0.1


def reference_set() -> ShardSet:
    """Return what is measured as the reference: four tables that together leave the caches, some 10 ms a step."""
    table = EmbeddingTable("reference", 200_000, 64, 8.0, ZipfIds(s=1.05))
    return ShardSet((ShardSpec(table, (0, table.num_embeddings), 64),) * 4, 4_096, "fp32", "exact_sgd")


def reference_ms(pool: WorkerPool) -> float:
    """Measure the reference of a `QuietWatch`: median of forward plus backward; raises `MeasurementError`."""
    _, outcome = next(pool.run(iter([TimingJob(reference_set(), 1, STEPS.small_iterations)])))
    if isinstance(outcome, str):
        raise MeasurementError(f"the reference cannot be measured: {outcome}")
    return float(np.median(outcome.times.sum(axis=1)))


class QuietWatch:
    """Compares references with the quiet level, which is kept in the folder over runs.

    Args:
        folder: of the collection.
        measure: measures the reference in ms.
        tolerance: by how much a reference may exceed the quiet level, as a share.
        sleep: waits for so many seconds.

    Attributes:
        pauses: times that measuring was interrupted.
        paused_s: how long in all.
        discarded: samples that were measured while the machine was not quiet, and thrown away.
    """

    def __init__(
        self, folder: Path, measure: Callable[[], float], tolerance: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._path = folder / REFERENCES
        self._measure = measure
        self._tolerance = tolerance
        self._sleep = sleep
        lines = read_lines(self._path) if self._path.exists() else []
        self._known = [float(parse_json(line.text, line.where(self._path))["ms"]) for line in lines]
        self.pauses = 0
        self.paused_s = 0.0
        self.discarded = 0

    def is_quiet(self) -> bool:
        """Measure the reference and say whether it is near the quiet level."""
        ms = self._measure()
        append_flushed(self._path, (json.dumps({"ms": round(ms, 6), "utc_s": int(time.time())}) + "\n").encode())
        self._known.append(ms)
        return ms <= (1 + self._tolerance) * float(np.quantile(self._known, _QUANTILE))

    def wait(self, time_is_up: Callable[[], bool]) -> bool:
        """Wait until the machine is quiet; False when the time was up before."""
        if self.is_quiet():
            return True
        self.pauses += 1
        while not time_is_up():
            self._sleep(PAUSE_S)
            self.paused_s += PAUSE_S
            if self.is_quiet():
                return True
        return False

    def notice(self) -> str:
        """Say what the watch did."""
        level = float(np.quantile(self._known, _QUANTILE)) if self._known else 0.0
        return (
            f"quiet level {level:.3g} ms over {len(self._known)} references; paused {self.pauses} times for "
            f"{self.paused_s / 60:.1f} minutes, {self.discarded} samples of noisy moments thrown away"
        )


class SampleWorker:
    """Measures blocks of samples, failed ones included.

    Args:
        plan: what the samples are.
        pool: workers for shard sets.
        deadline: begin nothing new after that, in seconds of `time.time`; None for no limit.
        keep: takes each measurement as soon as it counts.
        watch: says when the machine is quiet; None measures at any time.
        tell: hears that it waits.
    """

    def __init__(
        self, plan: CollectionPlan, pool: WorkerPool, deadline: float | None, keep: Callable[[Measurement], None],
        watch: QuietWatch | None = None, tell: Callable[[str], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._plan = plan
        self._pool = pool
        self._deadline = deadline
        self._keep = keep
        self._watch = watch
        self._tell = tell
        self._was_quiet = False
        self._pending: list[Measurement] = []
        #: By number of devices. They stay for later tasks: starting one takes seconds.
        self._groups: dict[int, RankGroup] = {}
        self._num_tasks = 0
        self._rng = random.Random(plan.seed)

    def measure(self, block: Block) -> None:
        """Measure a block; raises `MeasurementError` when no worker can be started."""
        self._while_quiet(block.shard_sets, self._measure_shard_sets)
        self._while_quiet(block.plans, self._measure_plans)

    def close(self) -> None:
        """End the processes of complete steps."""
        while self._groups:
            self._groups.popitem()[1].close()

    def _while_quiet(self, samples: Sequence[SampleId], measure: Callable[[Sequence[SampleId]], None]) -> None:
        """Measure samples; with a watch in batches, which count when the machine is quiet before and after."""
        if self._watch is None:
            measure(samples)
            return
        for first in range(0, len(samples), BATCH):
            batch = samples[first : first + BATCH]
            while not self._time_is_up():
                if not self._was_quiet:
                    self._tell("waiting for a quiet machine")
                    if not self._watch.wait(self._time_is_up):
                        return
                measure(batch)
                pending, self._pending = self._pending, []
                self._was_quiet = self._watch.is_quiet()
                if self._was_quiet:
                    for measurement in pending:
                        self._keep(measurement)
                    break
                self._watch.discarded += len(pending)

    def _time_is_up(self) -> bool:
        return self._deadline is not None and time.time() >= self._deadline

    def _measure_shard_sets(self, samples: Sequence[SampleId]) -> None:
        if not samples or self._time_is_up():
            return
        # Jobs come back in any order, and a sample and its repeat have equal jobs.
        queues: dict[ShardSet, list[SampleId]] = {}

        def jobs() -> Iterator[TimingJob]:
            for sample in samples:
                if self._time_is_up():
                    return
                shard_set = self._plan.shard_set(sample)
                queues.setdefault(shard_set, []).append(sample)
                yield TimingJob(shard_set, self._plan.steps.warmups, iterations_of(shard_set, self._plan.steps))

        for job, outcome in self._pool.run(jobs()):
            sample = queues[job.shard_set].pop(0)
            digest = self._plan.set_digest(job.shard_set)
            if isinstance(outcome, str):
                self._append(Measurement(str(sample), digest, reason=outcome))
            elif outcome.notes:  # nobody reads the notes of a sample that a model is trained on
                self._append(Measurement(str(sample), digest, reason="; ".join(outcome.notes)))
            else:
                self._append(_measurement(sample, digest, outcome.times[:, None]))

    def _measure_plans(self, samples: Sequence[SampleId]) -> None:
        """Measure complete steps of plans of one task together: they take the same ids."""
        if not samples or self._time_is_up():
            return
        task, steps = self._plan.task(samples[0]), self._plan.steps
        plans = {n: StepPlan(tuple(task.plans[sample.plan])) for n, sample in enumerate(samples)}
        if self._num_tasks % TASKS_PER_START == 0:
            self.close()
        self._num_tasks += 1
        group = self._group(plans[0].num_devices)
        group.start()
        found, failed = step.time_steps(
            group,
            plans,
            rounds=1,
            warmups=steps.plan_warmups,
            iterations=steps.plan_iterations,
            first_batch=0,
            seed=self._plan.seed + samples[0].task,
            rng=self._rng,
            timed_exchanges=False,
        )
        work = [step.PARTS.index(part) for part in WORK]
        for n, sample in enumerate(samples):
            digest = task.digest(sample.plan)
            if n in failed:
                self._append(Measurement(str(sample), digest, reason=failed[n]))
            else:
                self._append(_measurement(sample, digest, found[n].parts_ms[0][:, :, work]))

    def _group(self, devices: int) -> RankGroup:
        if devices not in self._groups:
            self._groups[devices] = RankGroup(devices, "cpu", TIMEOUT_S)
        return self._groups[devices]

    def _append(self, measurement: Measurement) -> None:
        """Keep a measurement that was just made, with a watch after the next reference."""
        if self._watch is None:
            self._keep(measurement)
        else:
            self._pending.append(measurement)


def iterations_of(shard_set: ShardSet, steps: StepCounts = STEPS) -> int:
    """Return how many timed steps a shard set gets."""
    values = shard_set.batch_size * sum(shard.ids_per_sample * shard.width for shard in shard_set.shards)
    return steps.small_iterations if values < steps.small_values else steps.iterations


def _measurement(sample: SampleId, digest: str, times: Floats) -> Measurement:
    """Return the measurement of times of shape (steps, devices, parts)."""
    rounded = np.round(times, _DIGITS).tolist()
    return Measurement(str(sample), digest, tuple(tuple(map(tuple, of_step)) for of_step in rounded))
