"""Rounds of measurements: their order, their summary in one number, and its standard error."""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, TypeVar

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.jobs import ShardSet, TimingJob
from shardgym.costs.fbgemm.pool import WorkerPool

K = TypeVar("K")

_RESAMPLES = 200


def interleaved(keys: Sequence[K], rounds: int, rng: random.Random, failed: Container[K]) -> Iterator[K]:
    """Yield every key once per round in random order, so that drift of the machine affects all of them alike.

    Args:
        keys: of the things to measure, distinct.
        rounds: number of rounds.
        rng: shuffles every round.
        failed: keys that are in this container when their turn comes are skipped; the caller may add to it meanwhile.
    """
    for _ in range(rounds):
        for key in rng.sample(keys, len(keys)):
            if key not in failed:
                yield key


class ShardSetTimes(NamedTuple):
    """Measured times; each shard set is either in `samples` or in `failed`.

    Attributes:
        samples: forward and backward times in ms, shape (rounds, iterations, 2).
        failed: why there are no times.
        notes: caveats for a reader of the times, for shard sets that have any.
    """

    samples: dict[ShardSet, Floats]
    failed: dict[ShardSet, str]
    notes: dict[ShardSet, tuple[str, ...]]


def time_shard_sets(
    pool: WorkerPool, shard_sets: Iterable[ShardSet], *, rounds: int, warmups: int, iterations: int, rng: random.Random
) -> ShardSetTimes:
    """Time every distinct shard set once per round."""
    samples: dict[ShardSet, list[Floats]] = {}
    failed: dict[ShardSet, str] = {}
    notes: dict[ShardSet, tuple[str, ...]] = {}
    order = interleaved(list(dict.fromkeys(shard_sets)), rounds, rng, failed)
    with closing(pool.run(TimingJob(shard_set, warmups, iterations) for shard_set in order)) as answers:
        for job, answer in answers:
            if isinstance(answer, str):
                failed[job.shard_set] = answer
            else:
                samples.setdefault(job.shard_set, []).append(answer.times)
                if answer.notes:
                    notes[job.shard_set] = tuple(dict.fromkeys([*notes.get(job.shard_set, ()), *answer.notes]))
    return ShardSetTimes({s: np.stack(rows) for s, rows in samples.items() if s not in failed}, failed, notes)


def mean_of_medians(samples: Floats) -> Floats:
    """Return the mean over steps of the median over rounds.

    Args:
        samples: shape (rounds, steps, ...): step i of every round did exactly the same work, other steps did not.

    Returns:
        Shape (...).
    """
    return np.asarray(np.median(samples, axis=0).mean(axis=0), dtype=np.float64)


def relative_error_of_total(compute: Floats, forward: Floats, backward: Floats) -> float:
    """Return the relative standard error of a plan's total, by a bootstrap over rounds.

    The forward exchange makes everybody wait for the device that comes last, so the total is that device's compute and
    backward communication plus its forward communication, which contains no wait.

    Args:
        compute: rounds of forward and backward compute, shape (rounds, steps, D, 2).
        forward: rounds of forward communication, shape (rounds, steps, D).
        backward: rounds of backward communication, shape (rounds, steps, D).
    """
    busy = mean_of_medians(compute).sum(axis=-1) + mean_of_medians(backward)
    last = int(busy.argmax())
    resampled_busy = _resampled(compute, seed=0).sum(axis=-1) + _resampled(backward, seed=1)
    totals = resampled_busy.max(axis=-1) + _resampled(forward, seed=2)[:, last]
    return float(totals.std() / totals.mean()) if totals.mean() > 0 else 0.0


def _resampled(samples: Floats, seed: int) -> Floats:
    """Return `mean_of_medians` of bootstrap resamples of the rounds, shape (resamples, ...)."""
    rounds = len(samples)
    chosen = np.random.default_rng(seed).integers(0, rounds, size=(_RESAMPLES, rounds))
    return np.stack([mean_of_medians(samples[rows]) for rows in chosen])
