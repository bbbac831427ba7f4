"""What sample number i of a wide collection is, drawn from a `Space`.

Tables are made for their sample alone: rows, pooling factor, width and ids are drawn apart from each other, so no two
of them go together as they do in a pool. Names of tables say role, seed and sample, so oracle and judge share none.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Sequence

import numpy as np

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.errors import InputError
from shardgym.tables.ids import expected_row_shares
from shardgym.tables.pools import load_pool
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision, UniformIds, ZipfIds
from shardgym.tasks.task import block_bytes
from shardgym.training.sampling import UNIT, StableRandom, whole_table
from shardgym.training.settings import PLAN_DEVICES, PLANS_PER_TASK, Role, Space

#: Number of the rules that samples are drawn by. Raise it when any draw changes, so that folders are not mixed.
SPACE_DRAWS = 1

#: Kinds of shard sets: single tables, any tables, several shards of few tables; the rest are devices of plans that are
#: balanced as searches leave them.
_SINGLE = 0.12
_ANY_TABLES = 0.43
_SPLIT_TABLES = 0.15

#: What one step of a shard set may take: ids, values that they gather, and pooled values. Every set draws limits of its
#: own below these, so that small ones are as frequent as large ones.
_IDS = (300_000, 40_000_000)
_GATHERED = (3_000_000, 1_000_000_000)
_POOLED = (3_000_000, 200_000_000)
#: The first shard takes at most this share of them, so that it is not alone.
_FIRST = 0.25

#: Pool of role "transfer", and the factors by which its rows and batch are divided.
TRANSFER_POOL = "synthetic-2022"
_TRANSFER_SCALES = (8, 16, 32, 64, 128)
#: Pool whose laws "recorded" tables have: a third of its tables for the oracle, one for the judge, one for tests.
_LAW_POOL = "synthetic-2021"
_LAW_THIRDS: dict[Role, int] = {"oracle": 0, "judge": 1, "test": 2, "plans": 2, "transfer": 2}

_ZIPF_S = (0.3, 1.8)
#: Draws after which a space is taken to hold nothing that keeps to its limits.
_TRIES = 1_000
_PLAN_SIZES = (2, 4, 8, 16)


class SpaceSampler:
    """Draws shard sets.

    Args:
        space: from where to where.
        seed: of all draws.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def shard_set(self, role: Role, number: int) -> ShardSet:
        """Return the shard set of a sample.

        Of role "plans", sample number i is device `i % PLAN_DEVICES` of plan `i // PLAN_DEVICES`; plans of a task are
        balanced, with up to six shards moved at random.
        """
        if role == "plans":
            return self._plan(number // PLAN_DEVICES)[number % PLAN_DEVICES]
        rng = StableRandom(self._seed, "space", role, number)
        for _ in range(_TRIES):
            found = self._draw(rng, role, f"{role}-{self._seed}-{number}")
            if found is not None:
                return found
        raise _nothing_fits(self._space)

    def _draw(self, rng: StableRandom, role: Role, name: str) -> ShardSet | None:
        """Draw one set; None when nothing of it keeps to the limits."""
        space = self._space
        precision = rng.choice(space.precision)
        optimizer = rng.choice(space.optimizer)
        widest = rng.choice([width for width in _widths_up_to(space.width[1]) if width >= space.width[0]])
        tables: Sequence[EmbeddingTable]
        if role == "transfer":
            pool = load_pool(TRANSFER_POOL).scaled(rng.choice(_TRANSFER_SCALES))
            batch_size = pool.batch_size
            count = rng.log_integer(space.shards[0], min(space.shards[1], len(pool)))
            tables = rng.sample(pool.tables, count)
        else:
            batch_size = self._batch(rng)
            count = rng.log_integer(*space.shards)
            tables = [draw_table(rng, space, role, f"{name}-{i}", batch_size) for i in range(count)]
        shards = [whole_table(table, draw_width(rng, space.width[0], widest)) for table in tables]
        kind = rng.uniform()
        if kind < _SINGLE and space.shards[0] == 1:
            shards = shards[:1]
        elif kind < _SINGLE + _ANY_TABLES:
            pass
        elif kind < _SINGLE + _ANY_TABLES + _SPLIT_TABLES:
            shards = _split_tables(rng, shards, count)
        else:
            devices = _balanced(rng, shards, rng.choice(_PLAN_SIZES))
            shards = rng.choice([device for device in devices if device])
        kept = self._within_limits(rng, shards[: space.shards[1]], batch_size, precision, optimizer)
        return ShardSet.in_order(kept, batch_size, precision, optimizer) if len(kept) >= space.shards[0] else None

    def _batch(self, rng: StableRandom) -> int:
        low, high = (end.bit_length() - 1 for end in self._space.batch)
        return 1 << rng.integer(low, high)

    def _within_limits(
        self, rng: StableRandom, shards: Sequence[ShardSpec], batch_size: int, precision: Precision,
        optimizer: Optimizer,
    ) -> list[ShardSpec]:  # fmt: skip
        """Leave out shards that exceed the memory, or the set's own limits of work."""
        most = np.array([_IDS[1], _GATHERED[1], _POOLED[1]], dtype=np.float64)
        limits = np.array([_log(rng, *ends) for ends in (_IDS, _GATHERED, _POOLED)])
        free = self._space.memory_bytes
        kept: list[ShardSpec] = []
        for shard in shards:
            ids = batch_size * shard.table.pooling_factor * shard.num_rows / shard.table.num_embeddings
            amounts = np.array([ids, ids * shard.width, batch_size * shard.width])
            if not kept:
                limits = np.minimum(np.maximum(limits, amounts / _FIRST), most)
            size = block_bytes(shard.num_rows, shard.width, precision, optimizer)
            if size <= free and (amounts <= limits).all():
                free -= size
                limits -= amounts
                kept.append(shard)
        return kept

    @functools.lru_cache(maxsize=8)  # noqa: B019  (lives as long as one collection)
    def _plan(self, number: int) -> list[ShardSet]:
        """Return the devices of a complete plan; all hold something."""
        batch_size, precision, optimizer, shards = self._plan_task(number // PLANS_PER_TASK)
        rng = StableRandom(self._seed, "space plan", number)
        while True:
            devices = _balanced(rng, shards, PLAN_DEVICES)
            for _ in range(number % PLANS_PER_TASK % 7):
                source = rng.choice([device for device in devices if device])
                rng.choice(devices).append(source.pop(rng.integer(0, len(source) - 1)))
            if all(devices):
                return [ShardSet.in_order(device, batch_size, precision, optimizer) for device in devices]

    def _plan_task(self, number: int) -> tuple[int, Precision, Optimizer, list[ShardSpec]]:
        """Return the shards of a task, at least four per device."""
        rng = StableRandom(self._seed, "space task", number)
        space = self._space
        most = max(4 * PLAN_DEVICES, min(space.shards[1], 15 * PLAN_DEVICES))
        for _ in range(_TRIES):
            precision = rng.choice(space.precision)
            optimizer = rng.choice(space.optimizer)
            batch_size = self._batch(rng)
            widest = rng.choice([width for width in _widths_up_to(space.width[1]) if width >= space.width[0]])
            count = rng.log_integer(4 * PLAN_DEVICES, most)
            name = f"plans-{self._seed}-{number}"
            tables = [draw_table(rng, space, "plans", f"{name}-{i}", batch_size) for i in range(count)]
            shards = [whole_table(table, draw_width(rng, space.width[0], widest)) for table in tables]
            kept = self._within_limits(rng, shards, batch_size, precision, optimizer)
            if len(kept) >= 4 * PLAN_DEVICES:
                return batch_size, precision, optimizer, kept
        raise _nothing_fits(space)


def draw_table(rng: StableRandom, space: Space, role: Role, name: str, batch_size: int) -> EmbeddingTable:
    """Make a table; its width is a placeholder, and its reuse histogram is the expected one."""
    rows = int(_log(rng, *space.rows))
    pooling = round(_log(rng, *space.pooling), 4)
    kind = rng.choice(space.ids)
    law: UniformIds | ZipfIds = UniformIds()
    if kind == "zipf":
        law = ZipfIds(s=round(rng.uniform(*_ZIPF_S), 4))
    elif kind == "recorded":
        known = rng.choice(_laws(_LAW_THIRDS[role]))
        assert isinstance(known.ids, ZipfIds)
        # Stretched to the rows of this table, so that the shape of the law stays.
        q = (known.ids.q + 0.5) * rows / known.num_embeddings - 0.5
        law = ZipfIds(s=known.ids.s, q=round(q, 3), lengths="poisson")
    shares = expected_row_shares(law, rows, pooling * batch_size)
    return EmbeddingTable(name, rows, UNIT, pooling, law, shares)


def draw_width(rng: StableRandom, narrowest: int, widest: int) -> int:
    """Draw a power of two, or any multiple of 4 in one of four cases."""
    if rng.chance(0.25):
        return max(narrowest, int(_log(rng, narrowest, widest)) // UNIT * UNIT)
    return rng.choice([width for width in _widths_up_to(widest) if width >= narrowest])


def _nothing_fits(space: Space) -> InputError:
    return InputError(
        f"no sample keeps to the limits of this space ({space.to_json()}): allow more memory, or smaller batches, "
        "rows, pooling factors or widths"
    )


def _log(rng: StableRandom, low: float, high: float) -> float:
    return float(low * (high / low) ** rng.uniform())


def _widths_up_to(most: int) -> list[int]:
    """Return powers of two from 4, and the most itself."""
    return sorted({UNIT << k for k in range((most // UNIT).bit_length())} | {most})


@functools.cache
def _laws(third: int) -> tuple[EmbeddingTable, ...]:
    return load_pool(_LAW_POOL)[third::3]


def _split_tables(rng: StableRandom, shards: Sequence[ShardSpec], count: int) -> list[ShardSpec]:
    """Return several shards each of few tables, as many as there were: pieces of the columns, or ranges of the rows."""
    pieces: list[ShardSpec] = []
    for shard in shards:
        parts = rng.integer(2, 8)
        if rng.chance(0.5) and shard.num_rows >= parts:
            edges = [shard.num_rows * i // parts for i in range(parts + 1)]
            ranges = list(itertools.pairwise(edges))
            pieces += [shard._replace(rows=ends) for ends in rng.sample(ranges, rng.integer(1, parts))]
        else:
            width = max(UNIT, shard.width // parts // UNIT * UNIT)
            pieces += [shard._replace(width=width)] * rng.integer(1, min(parts, shard.width // width))
        if len(pieces) >= count:
            break
    return pieces[: max(count, 1)]


def _balanced(rng: StableRandom, shards: Sequence[ShardSpec], devices: int) -> list[list[ShardSpec]]:
    """Place shards as a search would: what exceeds half of a device's share is cut, the longest are placed first.

    Times are analytic, with an error of up to a tenth per draw, as no search knows them exactly.
    """
    heap = [(-analytic_cost(shard), i, shard) for i, shard in enumerate(shards)]
    heapq.heapify(heap)
    share = -sum(cost for cost, _, _ in heap) / devices
    done: list[ShardSpec] = []
    while heap:
        cost, i, shard = heapq.heappop(heap)
        if -cost > share / 2 and shard.width >= 2 * UNIT and len(heap) + len(done) < 4 * len(shards):
            first = shard.width // 2 // UNIT * UNIT
            for width in (first, shard.width - first):
                piece = shard._replace(width=width)
                heapq.heappush(heap, (-analytic_cost(piece), i, piece))
        else:
            done.append(shard)
    loads = [(0.0, device) for device in range(devices)]
    placed: list[list[ShardSpec]] = [[] for _ in range(devices)]
    guesses = [(analytic_cost(shard) * rng.uniform(0.9, 1.1), number) for number, shard in enumerate(done)]
    for guess, number in sorted(guesses, reverse=True):
        load, device = heapq.heappop(loads)
        placed[device].append(done[number])
        heapq.heappush(loads, (load + guess, device))
    return placed


def analytic_cost(shard: ShardSpec) -> float:
    """Return about what a shard costs, in no unit: only ratios count."""
    return (shard.ids_per_sample + 0.05) * (1 + shard.width / 16) * (1 + math.log10(shard.num_rows))
