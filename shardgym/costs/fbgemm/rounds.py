"""Rounds of measurements: their order, their summary in one number, and its standard error."""

import random
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.fbgemm.jobs import ShardSet, TimingJob
from shardgym.costs.fbgemm.workers import Workers
from shardgym.errors import MeasurementError

K = TypeVar("K")

_RESAMPLES = 200


def interleaved(keys: Sequence[K], rounds: int, rng: random.Random, failed: Container[K]) -> Iterator[K]:
    """Yield every key once per round in random order, so that drift of the machine affects all of them alike.

    Keys that are in `failed` when their turn comes are skipped; the caller may add to it meanwhile.
    """
    for _ in range(rounds):
        for key in rng.sample(keys, len(keys)):
            if key not in failed:
                yield key


def time_shard_sets(
    timer: Workers, shard_sets: Iterable[ShardSet], *, rounds: int, warmups: int, iterations: int, rng: random.Random
) -> tuple[dict[ShardSet, Floats], dict[ShardSet, str], dict[ShardSet, tuple[str, ...]]]:
    """Time every distinct shard set once per round.

    Returns:
        Forward and backward times in ms, shape (rounds, iterations, 2); why there are none; and caveats.
    """
    samples: dict[ShardSet, list[Floats]] = {}
    failed: dict[ShardSet, str] = {}
    notes: dict[ShardSet, dict[str, None]] = {}
    timer.start()
    for shard_set in interleaved(list(dict.fromkeys(shard_sets)), rounds, rng, failed):
        try:
            (answer,) = timer.ask(TimingJob(shard_set, warmups, iterations))
        except MeasurementError as error:
            failed[shard_set] = str(error)
        else:
            samples.setdefault(shard_set, []).append(answer.times)
            notes.setdefault(shard_set, {}).update(dict.fromkeys(answer.notes))
    times = {s: np.stack(rows) for s, rows in samples.items() if s not in failed}
    return times, failed, {s: tuple(noted) for s, noted in notes.items()}


def mean_of_medians(samples: Floats) -> Floats:
    """Return the mean over steps of the median over rounds, shape (...), from samples of shape (rounds, steps, ...).

    Step i of every round did exactly the same work, other steps did not.
    """
    return np.asarray(np.median(samples, axis=0).mean(axis=0), dtype=np.float64)


def relative_error(phases_of: Callable[[Ints], Floats], rounds: int) -> float:
    """Return the relative standard error of a plan's total, by a bootstrap over rounds.

    `phases_of` returns the phases that count, shape (D, phases), from some of the rounds, by their numbers.
    """
    chosen = np.random.default_rng(0).integers(0, rounds, size=(_RESAMPLES, rounds))
    totals = np.array([phases_of(rows).sum(axis=1).max() for rows in chosen])
    return float(totals.std() / totals.mean()) if totals.any() else 0.0
