"""Measures what a plan lists and the log lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shardgym.collection.contents import content_digest
from shardgym.collection.log import Measurement, MeasurementLog
from shardgym.collection.plan import CollectionPlan
from shardgym.collection.rows import ids_per_sample
from shardgym.collection.schedule import Block, Entry
from shardgym.collection.setup import EFFORT
from shardgym.costs.collectives.interleave import ROUND_MS
from shardgym.costs.collectives.jobs import Exchange
from shardgym.costs.collectives.measured import CollectiveGroup
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.measurer import Job
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.errors import MeasurementError

#: Jobs that a worker has in advance. A GPU must not wait for this process; a core shares its caches and its memory with
#: others, so that this process had better be still while a CPU worker measures.
_AHEAD = {"cpu": 0, "cuda": 1}
#: Digits of a time in ms that are kept.
_DIGITS = 6


class Collector:
    """Runs through the blocks of a plan.

    Args:
        plan: what to measure.
        log: what has been measured; new measurements are appended.
        pool: workers for compute.
        timeout_s: seconds that one sample may take.
        stop: asked before every sample; nothing new is begun once it says True.
        progress: called with every measurement that was appended.
    """

    def __init__(
        self,
        plan: CollectionPlan,
        log: MeasurementLog,
        pool: WorkerPool,
        *,
        timeout_s: float,
        stop: Callable[[], bool],
        progress: Callable[[Measurement], None],
    ) -> None:
        self._plan, self._log, self._pool = plan, log, pool
        self._timeout_s, self._stop, self._progress = timeout_s, stop, progress

    def run(self) -> None:
        """Measure what is missing, failed samples included.

        Raises:
            MeasurementError: no worker can be started.
        """
        for block in self._plan.blocks:
            self._compute(self._missing(block.compute))
            self._comm(block, self._missing(block.comm))

    def _missing(self, entries: Sequence[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.sample_id not in self._log.done]

    def _compute(self, entries: Sequence[Entry]) -> None:
        if not entries or self._stop():
            return
        waiting: dict[Content, list[Entry]] = {}
        for job, outcome in self._pool.run(self._jobs(entries, waiting), _AHEAD[self._plan.device]):
            entry = waiting[job.content].pop(0)
            digest = content_digest(job.content)
            if isinstance(outcome, str):
                self._append(Measurement(entry.sample_id, digest, reason=outcome))
            elif outcome.notes:  # nobody reads the notes of a sample that a model is trained on
                self._append(Measurement(entry.sample_id, digest, reason="; ".join(outcome.notes)))
            else:
                self._append(_measurement(entry, digest, outcome.times[:, :1], outcome.times[:, 1:]))

    def _jobs(self, entries: Sequence[Entry], waiting: dict[Content, list[Entry]]) -> Iterator[Job]:
        """Yield a job per entry and note who waits for it."""
        for entry in entries:
            if self._stop():
                return
            content = self._plan.content(entry)
            waiting.setdefault(content, []).append(entry)
            yield Job(content, EFFORT.warmups, iterations_of(content))

    def _comm(self, block: Block, entries: Sequence[Entry]) -> None:
        if not entries or self._stop():
            return
        group = CollectiveGroup(block.devices, self._plan.device, self._timeout_s)
        try:
            for entry in entries:
                if self._stop():
                    return
                self._append(self._exchange(group, entry))
        finally:
            group.close()

    def _exchange(self, group: CollectiveGroup, entry: Entry) -> Measurement:
        spec = self._plan.exchange(entry)
        try:
            forward = _time(group, spec.exchange(backward=False))
            backward = _time(group, spec.exchange(backward=True))
        except MeasurementError as error:
            return Measurement(entry.sample_id, spec.digest, reason=str(error))
        return _measurement(entry, spec.digest, forward, backward)

    def _append(self, measurement: Measurement) -> None:
        self._log.append(measurement)
        self._progress(measurement)


def iterations_of(content: Content) -> int:
    """Return how many timed steps a shard set gets."""
    values = content.batch_size * sum(ids_per_sample(piece) * piece.width for piece in content.pieces)
    return EFFORT.small_iterations if values < EFFORT.small_values else EFFORT.iterations


def _time(group: CollectiveGroup, exchange: Exchange) -> npt.NDArray[np.float64]:
    """Return times in ms, shape (iterations, D); fewer iterations where large offsets are slept through."""
    fitting = int(ROUND_MS / max(1.0, *exchange.offsets_ms))
    return group.time(exchange, EFFORT.comm_warmups, min(EFFORT.comm_iterations, fitting))


def _measurement(
    entry: Entry, digest: str, forward: npt.NDArray[np.float64], backward: npt.NDArray[np.float64]
) -> Measurement:
    times = [tuple(tuple(step) for step in np.round(t, _DIGITS).tolist()) for t in (forward, backward)]
    return Measurement(entry.sample_id, digest, times[0], times[1])
