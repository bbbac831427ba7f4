"""Times many exchanges interleaved, in random order, so that they can be compared."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.collectives.jobs import Exchange
from shardgym.costs.collectives.measured import CollectiveGroup
from shardgym.costs.workers.schedule import interleaved
from shardgym.errors import MeasurementError

#: Start offsets are really slept through, so a round of an exchange with large ones has fewer iterations.
ROUND_MS = 300.0
#: Of an exchange's iterations: what counts as its time.
QUANTILE = 0.25


def time_exchanges(
    group: CollectiveGroup,
    exchanges: Sequence[Exchange],
    *,
    rounds: int,
    warmups: int,
    iterations: int,
    rng: random.Random,
) -> tuple[dict[Exchange, Floats], dict[Exchange, str]]:
    """Time exchanges over the ranks of one group.

    Disturbance by other processes only ever adds, in whole time slices, and more so where ranks outnumber cores. So a
    round's time is the lower quartile of its iterations; with four ranks on two busy cores that
    brought the coefficient of variation from 12-65 % (median) to 12-36 %.

    Returns:
        Times in ms of every round, shape (rounds, D), and the reason for each exchange that failed; an exchange
        is in one of the two. A failure ends the group's processes; the next exchange starts new ones.
    """
    samples: dict[Exchange, list[Floats]] = {}
    failed: dict[Exchange, str] = {}
    for exchange in interleaved(list(dict.fromkeys(exchanges)), rounds, rng, failed):
        fitting = int(ROUND_MS / max(1.0, *exchange.offsets_ms))
        try:
            times = group.time(exchange, warmups, max(1, min(iterations, fitting)))
        except MeasurementError as error:
            failed[exchange] = str(error)
        else:
            samples.setdefault(exchange, []).append(np.quantile(times, QUANTILE, axis=0))
    return {e: np.stack(rows) for e, rows in samples.items() if e not in failed}, failed
