"""Times the distinct device contents of many plans, interleaved."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.measurer import Job
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.workers.schedule import interleaved


class Timed(NamedTuple):
    """What was found about contents; each is in one of `samples` and `failed`.

    Attributes:
        samples: forward and backward times in ms, shape (rounds, iterations, 2).
        failed: why there are no times.
        notes: what a reader of the times must know, of contents where there is something to know.
    """

    samples: dict[Content, Floats]
    failed: dict[Content, str]
    notes: dict[Content, tuple[str, ...]]


def time_contents(
    pool: WorkerPool,
    contents: Iterable[Content],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> Timed:
    """Time every distinct content once per round."""
    samples: dict[Content, list[Floats]] = {}
    failed: dict[Content, str] = {}
    notes: dict[Content, tuple[str, ...]] = {}
    order = interleaved(list(dict.fromkeys(contents)), rounds, rng, failed)
    with closing(pool.run(Job(content, warmups, iterations) for content in order)) as outcomes:
        for job, outcome in outcomes:
            if isinstance(outcome, str):
                failed[job.content] = outcome
            else:
                samples.setdefault(job.content, []).append(outcome.times)
                if outcome.notes:
                    notes[job.content] = distinct([*notes.get(job.content, ()), *outcome.notes])
    return Timed({c: np.stack(rows) for c, rows in samples.items() if c not in failed}, failed, notes)


def distinct(notes: Iterable[str]) -> tuple[str, ...]:
    """Return notes once each, in order."""
    return tuple(dict.fromkeys(notes))
