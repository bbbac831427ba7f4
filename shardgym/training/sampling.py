"""What compute sample number i of a role is: the shard set of one device, of tables of a pool.

Draws depend on nothing but the seed and the sample's own name. So samples can be drawn in any order and added later,
and every machine draws the same ones.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.records import canonical_json, sha256
from shardgym.tables.pools import TablePool, load_pool
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import block_bytes
from shardgym.training.settings import OVERFULL, PLAN_DEVICES, PLANS_PER_TASK, Role, Setup

T = TypeVar("T")

#: Number of the rules that samples are drawn by. Raise it when any draw changes, so that folders are not mixed.
DRAWS = 2

#: Widths of the suites' tables, and the unit in which columns are cut.
DIMS = (4, 8, 16, 32, 64, 128)
UNIT = 4

#: Shares of the kinds of shard sets: single tables, any tables, nearly full devices; the rest are devices of random
#: placements.
_SINGLE = 0.12
_ANY_TABLES = 0.33
_FILLED = 0.15
_MAX_TABLES = 60
#: Among sets of any tables: shares of tables cut to an uneven width, of sets with row ranges, of row ranges in such
#: sets, and of cut tables whose other half is on the device too.
_UNEVEN = 0.15
_ROW_SETS = 0.06
_ROW_RANGES = 0.5
_BOTH_HALVES = 0.05

#: Random placements: tables of a task by its number of devices, as in the suites for four and eight devices; the most
#: column cuts; and the share of placements that are not finished yet.
_TASK_TABLES = {2: (5, 30), 4: (10, 59), 8: (20, 120)}
_MAX_CUTS = 10
_PARTIAL = 0.3
#: Complete plans: of so many trial placements of a task, more than a quarter must fit into memory.
_TRIALS = 40


class StableRandom:
    """Random draws that are the same in every version of Python: only `random.Random.random` is kept stable.

    Args:
        name: what the draws are for, e.g. a seed, a role and a number. Every name has draws of its own.
    """

    def __init__(self, *name: object) -> None:
        digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
        self._rng = random.Random(int.from_bytes(digest[:8], "big"))

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Return a number in [low, high)."""
        return low + (high - low) * self._rng.random()

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self._rng.random() < probability

    def integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included."""
        return low + int(self._rng.random() * (high - low + 1))

    def log_integer(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`, both included, log-uniform."""
        return min(high, int(low * ((high + 1) / low) ** self._rng.random()))

    def choice(self, items: Sequence[T]) -> T:
        """Return one of `items`."""
        return items[int(self._rng.random() * len(items))]

    def sample(self, items: Sequence[T], count: int) -> list[T]:
        """Return `count` of `items` without replacement: the first steps of a Fisher-Yates shuffle."""
        rest = list(items)
        for i in range(count):
            j = self.integer(i, len(rest) - 1)
            rest[i], rest[j] = rest[j], rest[i]
        return rest[:count]


def may_have(role: Role, digest: str) -> bool:
    """Say whether a sample of this digest may belong to `role`, so that oracle and judge never share one.

    Five of seven samples may be the oracle's and two the judge's, about the ratio in which they are collected.
    """
    if role not in ("oracle", "judge"):
        return True
    return (int(digest[:8], 16) % 7 < 5) == (role == "oracle")


def shard_set_digest(shard_set: ShardSet, *, of_pool: bool = True) -> str:
    """Return the identity of a shard set: tables by name, rows and widths, batch, precision and optimiser.

    Of tables that are not `of_pool`, names do not say all: their ids are part of the identity.
    """
    shards: list[list[Any]] = [[s.table.name, s.table.num_embeddings, *s.rows, s.width] for s in shard_set.shards]
    if not of_pool:
        laws = [s.table.ids.to_dict() for s in shard_set.shards]
        # An order of rows that is not stated is no part of it.
        stated = [{name: value for name, value in law.items() if value is not None} for law in laws]
        shards = [
            [*of, s.table.pooling_factor, law] for of, s, law in zip(shards, shard_set.shards, stated, strict=True)
        ]
    return sha256(canonical_json([shards, shard_set.batch_size, shard_set.precision, shard_set.optimizer]))


class PoolSampler:
    """Draws shard sets; those of the oracle and of the judge are disjoint.

    The oracle's and the judge's shard sets come from the train half of the pool. Test sets and the devices of complete
    plans come from the test half.

    Args:
        setup: pool, sizes and limits.
        seed: of all draws.
    """

    def __init__(self, setup: Setup, seed: int) -> None:
        self._setup = setup
        self._seed = seed

    def shard_set(self, role: Role, number: int) -> ShardSet:
        """Return the shard set of a sample.

        Of role "plans", sample number i is device `i % PLAN_DEVICES` of plan `i // PLAN_DEVICES`.
        """
        if role == "plans":
            return self._shard_set_of(self._plan(number // PLAN_DEVICES)[number % PLAN_DEVICES])
        train, test = self._halves
        tables = (train if role in ("oracle", "judge") else test).tables
        rng = StableRandom(self._seed, "compute", role, number)
        while True:
            shards = list(self._within_limits(self._draw(rng, tables)))
            if shards:
                shard_set = self._shard_set_of(shards)
                if may_have(role, shard_set_digest(shard_set)):
                    return shard_set

    @functools.cached_property
    def _halves(self) -> tuple[TablePool, TablePool]:
        train, test = load_pool(self._setup.pool).split()
        return train.scaled(self._setup.scale), test.scaled(self._setup.scale)

    def _draw(self, rng: StableRandom, tables: Sequence[EmbeddingTable]) -> list[ShardSpec]:
        kind = rng.uniform()
        if kind < _SINGLE:
            return _draw_any(rng, tables, 1)
        most = min(_MAX_TABLES, len(tables))
        if kind < _SINGLE + _ANY_TABLES:
            return _draw_any(rng, tables, rng.log_integer(1, most))
        if kind < _SINGLE + _ANY_TABLES + _FILLED:
            shards = _draw_any(rng, tables, most)
            memory = int(rng.uniform(0.2, OVERFULL) * self._setup.memory_bytes)
            sums = itertools.accumulate(map(self._bytes, shards))
            return [s for s, total in zip(shards, sums, strict=True) if total <= memory] or shards[:1]
        return _draw_placed(rng, tables)

    def _within_limits(self, shards: Sequence[ShardSpec]) -> Iterator[ShardSpec]:
        """Leave out shards that do not fit any more."""
        free = int(OVERFULL * self._setup.memory_bytes)
        for shard in shards[:_MAX_TABLES]:
            if self._bytes(shard) <= free:
                free -= self._bytes(shard)
                yield shard

    @functools.lru_cache(maxsize=8)  # noqa: B019  (lives as long as one collection)
    def _plan(self, number: int) -> list[list[ShardSpec]]:
        """Return what the devices of a complete table-wise plan hold. All hold something and have the memory."""
        shards = self._plan_task(number // PLANS_PER_TASK)
        rng = StableRandom(self._seed, "plan", number)
        while True:
            devices = _place_anywhere(rng, shards)
            if self._fits(devices):
                return devices

    def _plan_task(self, number: int) -> list[ShardSpec]:
        """Return the tables of a task that plans of any balance have the memory for."""
        tables = self._halves[1].tables
        rng = StableRandom(self._seed, "plan task", number)
        while True:
            shards = _draw_task(rng, tables, PLAN_DEVICES)
            if sum(self._fits(_place_anywhere(rng, shards)) for _ in range(_TRIALS)) > _TRIALS // 4:
                return shards

    def _fits(self, devices: Sequence[Sequence[ShardSpec]]) -> bool:
        return all(shards and sum(map(self._bytes, shards)) <= self._setup.memory_bytes for shards in devices)

    def _bytes(self, shard: ShardSpec) -> int:
        return block_bytes(shard.num_rows, shard.width, self._setup.precision, self._setup.optimizer)

    def _shard_set_of(self, shards: Sequence[ShardSpec]) -> ShardSet:
        return ShardSet.in_order(shards, self._halves[0].batch_size, self._setup.precision, self._setup.optimizer)


def whole_table(table: EmbeddingTable, width: int) -> ShardSpec:
    """Return all rows of a table at a width; the table's own width is a placeholder that nothing measures."""
    return ShardSpec(table, (0, table.num_embeddings), width)


def _draw_any(rng: StableRandom, tables: Sequence[EmbeddingTable], count: int) -> list[ShardSpec]:
    """Draw any tables up to a random width, at times cut by columns or rows, at times both halves of one table."""
    dims = DIMS[: rng.integer(1, len(DIMS))]
    has_row_ranges = rng.chance(_ROW_SETS)
    shards: list[ShardSpec] = []
    for table in rng.sample(tables, count):
        width = rng.choice(dims)
        if width > UNIT and rng.chance(_UNEVEN):
            width, other = _cut_in_two(rng, width)
            if len(shards) + 1 < count and rng.chance(_BOTH_HALVES):
                shards.append(whole_table(table, other))
        shard = whole_table(table, width)
        if has_row_ranges and rng.chance(_ROW_RANGES):
            # From a sixteenth of the table to nearly all of it.
            length = max(1, int(shard.num_rows * 16 ** (-rng.uniform())))
            first = rng.integer(0, shard.num_rows - length)
            shard = shard._replace(rows=(first, first + length))
        shards.append(shard)
    return shards[:count]


def _draw_task(rng: StableRandom, tables: Sequence[EmbeddingTable], devices: int) -> list[ShardSpec]:
    """Draw the tables of a task, as in the suites."""
    dims = DIMS[: rng.integer(1, len(DIMS))]
    count = rng.integer(*_TASK_TABLES[devices])
    return [whole_table(table, rng.choice(dims)) for table in rng.sample(tables, min(len(tables), count))]


def _draw_placed(rng: StableRandom, tables: Sequence[EmbeddingTable]) -> list[ShardSpec]:
    """Return what one device of a random placement of a random task holds, at least one shard.

    Largest shards are placed first. Each goes to the least loaded device or, with a probability of its own, to any. In
    some draws only the first shards are placed yet, as in the middle of a search.
    """
    devices = rng.choice(tuple(_TASK_TABLES))
    shards = _draw_task(rng, tables, devices)
    for _ in range(rng.integer(0, _MAX_CUTS) if rng.chance(0.6) else 0):
        wide = [i for i, shard in enumerate(shards) if shard.width >= 2 * UNIT]
        if not wide:
            break
        i = max((rng.choice(wide), rng.choice(wide)), key=lambda k: shards[k].width)
        first, second = _cut_in_two(rng, shards[i].width)
        shards.append(shards[i]._replace(width=second))
        shards[i] = shards[i]._replace(width=first)
    if rng.chance(_PARTIAL):
        shards = shards[: rng.integer(1, len(shards))]
    measure = rng.choice(("size", "dim", "lookup", "size_lookup"))
    anywhere = rng.uniform()
    placed: list[list[ShardSpec]] = [[] for _ in range(devices)]
    loads = [0.0] * devices
    for shard in sorted(shards, key=lambda s: -_load(measure, s)):
        device = rng.integer(0, devices - 1) if rng.chance(anywhere) else loads.index(min(loads))
        placed[device].append(shard)
        loads[device] += _load(measure, shard)
    return rng.choice([shards for shards in placed if shards])


def _cut_in_two(rng: StableRandom, width: int) -> tuple[int, int]:
    """Cut a width of at least two units, half of the time evenly, else anywhere."""
    units = width // UNIT
    first = units // 2 if rng.chance(0.5) else rng.integer(1, units - 1)
    return first * UNIT, width - first * UNIT


def _load(measure: str, shard: ShardSpec) -> float:
    if measure == "size":
        return shard.num_rows * shard.width
    if measure == "dim":
        return shard.width
    lookups = shard.width * shard.table.pooling_factor
    return lookups if measure == "lookup" else lookups * math.log10(max(10, shard.num_rows))


def _place_anywhere(rng: StableRandom, shards: Sequence[ShardSpec]) -> list[list[ShardSpec]]:
    """Put every shard on a random device; how unevenly devices are preferred is random too."""
    weights = [rng.uniform(0.3, 1.0) for _ in range(PLAN_DEVICES)]
    placed: list[list[ShardSpec]] = [[] for _ in range(PLAN_DEVICES)]
    for shard in shards:
        rest = rng.uniform(0.0, sum(weights))
        for device, weight in enumerate(weights):
            rest -= weight
            if rest <= 0 or device == PLAN_DEVICES - 1:
                placed[device].append(shard)
                break
    return placed
