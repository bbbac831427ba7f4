"""Times the distinct device contents of many plans, interleaved."""

from __future__ import annotations

import random
from collections.abc import Iterable
from contextlib import closing

import numpy as np
import numpy.typing as npt

from shardgym.costs.fbgemm.content import Content
from shardgym.costs.fbgemm.measurer import Job
from shardgym.costs.fbgemm.pool import WorkerPool
from shardgym.costs.workers.schedule import interleaved

Floats = npt.NDArray[np.float64]


def time_contents(
    pool: WorkerPool,
    contents: Iterable[Content],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> tuple[dict[Content, Floats], dict[Content, str]]:
    """Time every distinct content once per round.

    Returns:
        Forward and backward times in ms, shape (rounds, iterations, 2), and the reason for each content that failed; a
        content is in one of the two.
    """
    samples: dict[Content, list[Floats]] = {}
    failed: dict[Content, str] = {}
    order = interleaved(list(dict.fromkeys(contents)), rounds, rng, failed)
    with closing(pool.run(Job(content, warmups, iterations) for content in order)) as outcomes:
        for job, outcome in outcomes:
            if isinstance(outcome, str):
                failed[job.content] = outcome
            else:
                samples.setdefault(job.content, []).append(outcome)
    return {c: np.stack(rows) for c, rows in samples.items() if c not in failed}, failed
