"""What plans of a task are measured in complete steps, from balanced ones to lopsided ones.

Half of the tasks are of the usual kind: batch, precision and optimiser of the suites. Tables are of the pool in two of
three tasks, else made for their task alone. The oracle and the judge take the train half of the pool, tests the test
half; names of made tables say role, seed and task.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.records import canonical_json, sha256
from shardgym.tables.pools import load_pool
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision
from shardgym.tasks.task import block_bytes
from shardgym.tasks.topology import GIB
from shardgym.training.sampling import DIMS, UNIT, StableRandom, shard_set_digest, whole_table
from shardgym.training.settings import SETUPS, Role, Space
from shardgym.training.space_sampling import analytic_cost, draw_table, draw_width

#: Number of the rules that plans are drawn by. Raise it when any draw changes, so that folders are not mixed.
STEP_DRAWS = 1

#: Devices of a task: four and eight twice as often as two. And the most tables of a task, by its devices.
DEVICES = (2, 4, 4, 8, 8)
_MOST_TABLES = {2: 40, 4: 80, 8: 120}
_USUAL = 0.5
_USUAL_BATCH = 8192
#: Batches of other tasks, as powers of two.
_BATCH_BITS = (9, 16)
_OPTIMIZERS: list[Optimizer] = sorted(name for name in get_args(Optimizer) if name in CPU_OPTIMIZERS)
_OF_POOL = 0.65
#: Tables that are made.
_SPACE = Space(pooling=(0.1, 200.0), rows=(10, 4_000_000))
_WIDEST = (*DIMS[2:], 256)
#: What one step may take over all devices: ids, values that they gather, and pooled values. Tasks that are not of the
#: usual kind draw a share of the limit, log-uniform, so that small ones are as frequent as large ones.
_USUAL_LIMITS = (8e6, 5e8, 1e8)
_LIMITS = (4e6, 3e8, 6e7)
_LEAST_SHARE = 0.03
#: Memory of all devices; ids of made tables are drawn for one task, and drawing them takes memory too.
_POOL_BYTES = 2 * GIB
_MADE_BYTES = _POOL_BYTES // 3

#: Plans by their number within a task, modulo so many kinds: the first kind is placed anywhere, the others are
#: balanced, and the last kind has up to six shards moved.
_KINDS = 4
_MOVED = (1, 6)
_NO_CUTS = 0.3
_CUTS = (1, 12)
#: Plans are balanced by an analytic cost, with an error of up to so much in its logarithm.
_ERRORS = (0.05, 0.8)


def plans_per_task(role: Role) -> int:
    """Return how many plans of a task of this role are measured; tests are about how plans are ranked."""
    return 6 if role == "test" else 4


class StepTask(NamedTuple):
    """The plans of one task.

    Attributes:
        of_pool: whether tables are of the pool.
        plans: shard sets of each plan's devices, None where a device holds nothing.
    """

    of_pool: bool
    plans: tuple[tuple[ShardSet | None, ...], ...]

    def digests(self, plan: int) -> list[str | None]:
        """Return the identity of what each device of a plan holds, as of a shard set that is measured alone."""
        return [None if held is None else shard_set_digest(held, of_pool=self.of_pool) for held in self.plans[plan]]

    def digest(self, plan: int) -> str:
        """Return the identity of a plan."""
        return sha256(canonical_json(self.digests(plan)))


class StepSampler:
    """Draws tasks and their plans.

    Args:
        seed: of all draws.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def devices(self, role: Role, number: int) -> int:
        """Return the number of devices of a task."""
        return self._random(role, number).choice(DEVICES)

    @functools.lru_cache(maxsize=8)  # noqa: B019  (lives as long as one collection)
    def task(self, role: Role, number: int) -> StepTask:
        """Return a task's plans."""
        rng = self._random(role, number)
        devices = rng.choice(DEVICES)
        while True:
            usual = rng.chance(_USUAL)
            batch_size = _USUAL_BATCH if usual else 1 << rng.integer(*_BATCH_BITS)
            precision: Precision = "fp32" if usual else rng.choice(("fp32", "fp16"))
            optimizer: Optimizer = "exact_sgd" if usual else rng.choice(_OPTIMIZERS)
            of_pool = rng.chance(_OF_POOL)
            shards = self._shards(rng, role, number, devices, batch_size, of_pool=of_pool)
            share = math.exp(rng.uniform(math.log(_LEAST_SHARE), 0.0))
            limits = np.array(_USUAL_LIMITS) if usual else share * np.array(_LIMITS)
            kept = _within_limits(shards, limits, batch_size, precision, optimizer, of_pool=of_pool)
            if len(kept) >= max(4, devices):
                break
        plans = []
        for kind in range(plans_per_task(role)):
            placed = _placed(rng, kept, devices, kind % _KINDS)
            held = (ShardSet.in_order(on, batch_size, precision, optimizer) if on else None for on in placed)
            plans.append(tuple(held))
        return StepTask(of_pool, tuple(plans))

    def _random(self, role: Role, number: int) -> StableRandom:
        return StableRandom(self._seed, "step task", role, number)

    def _shards(
        self, rng: StableRandom, role: Role, number: int, devices: int, batch_size: int, *, of_pool: bool
    ) -> list[ShardSpec]:
        """Draw whole tables, more than may fit."""
        count = rng.log_integer(2 * devices, _MOST_TABLES[devices])
        low = rng.integer(0, 3)
        dims = DIMS[low : rng.integer(low, len(DIMS) - 1) + 1]
        if of_pool:
            train, test = _pool_halves()
            tables = rng.sample(test if role == "test" else train, count)
            return [whole_table(table, rng.choice(dims)) for table in tables]
        names = [f"steps-{role}-{self._seed}-{number}-{i}" for i in range(count)]
        made = [draw_table(rng, _SPACE, role, name, batch_size) for name in names]
        return [whole_table(table, draw_width(rng, UNIT, rng.choice(_WIDEST))) for table in made]


@functools.cache
def _pool_halves() -> tuple[Sequence[EmbeddingTable], Sequence[EmbeddingTable]]:
    """Return the tables of the train half and of the test half, scaled as on the CPU."""
    setup = SETUPS["cpu"]
    train, test = load_pool(setup.pool).split()
    return train.scaled(setup.scale).tables, test.scaled(setup.scale).tables


def _within_limits(
    shards: Sequence[ShardSpec], limits: Floats, batch_size: int, precision: Precision, optimizer: Optimizer, *,
    of_pool: bool,
) -> list[ShardSpec]:  # fmt: skip
    """Leave out shards that exceed what is left of the memory or of the work."""
    free = _POOL_BYTES if of_pool else _MADE_BYTES
    kept = []
    for shard in shards:
        ids = batch_size * shard.table.pooling_factor
        amounts = np.array([ids, ids * shard.width, batch_size * shard.width])
        size = block_bytes(shard.num_rows, shard.width, precision, optimizer)
        if size <= free and (amounts <= limits).all():
            free -= size
            limits = limits - amounts
            kept.append(shard)
    return kept


def _placed(rng: StableRandom, shards: Sequence[ShardSpec], devices: int, kind: int) -> list[list[ShardSpec]]:
    """Return what each device of a plan of a kind holds."""
    cuts = 0 if rng.chance(_NO_CUTS) else rng.log_integer(*_CUTS)
    if kind == 0:
        return _placed_anywhere(rng, shards, devices)
    placed = _balanced(rng, shards, devices, rng.uniform(*_ERRORS), cuts)
    if kind == _KINDS - 1:
        for _ in range(rng.integer(*_MOVED)):
            source = rng.choice([device for device in placed if device])
            rng.choice(placed).append(source.pop(rng.integer(0, len(source) - 1)))
    return placed


def _placed_anywhere(rng: StableRandom, shards: Sequence[ShardSpec], devices: int) -> list[list[ShardSpec]]:
    """Put every shard on a random device; how unevenly devices are preferred is random too."""
    weights = [rng.uniform(0.2, 1.0) for _ in range(devices)]
    placed: list[list[ShardSpec]] = [[] for _ in range(devices)]
    for shard in shards:
        rest = rng.uniform(0, sum(weights))
        device = 0
        while device < devices - 1 and rest > weights[device]:
            rest -= weights[device]
            device += 1
        placed[device].append(shard)
    return placed


def _balanced(
    rng: StableRandom, shards: Sequence[ShardSpec], devices: int, error: float, cuts: int
) -> list[list[ShardSpec]]:
    """Halve costly tables by columns, and place the costliest shard first on the device with the least load."""
    shards = list(shards)
    for _ in range(cuts):
        wide = [i for i, shard in enumerate(shards) if shard.width >= 2 * UNIT]
        if not wide:
            break
        i = max(wide, key=lambda k: analytic_cost(shards[k]) * rng.uniform(0.7, 1.3))
        half = shards[i].width // 2 // UNIT * UNIT
        shards.append(shards[i]._replace(width=shards[i].width - half))
        shards[i] = shards[i]._replace(width=half)
    guesses = [(analytic_cost(s) * math.exp(error * rng.uniform(-1.0, 1.0)), n) for n, s in enumerate(shards)]
    loads = [0.0] * devices
    placed: list[list[ShardSpec]] = [[] for _ in range(devices)]
    for guess, n in sorted(guesses, reverse=True):
        device = loads.index(min(loads))
        placed[device].append(shards[n])
        loads[device] += guess
    return placed
