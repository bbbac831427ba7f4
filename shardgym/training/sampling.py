"""What shard set number i of a role is, drawn from a `Space`.

Tables are made for their sample alone: rows, pooling factor, width and ids are drawn apart from each other, so no two
of them go together as they do in a pool. Names of tables say role, seed and sample, so roles share none. Draws depend
on nothing but the seed and the sample's own name, so samples can be drawn in any order and added later.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar, get_args

import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.errors import InputError
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.records import CONFIG, Name, Number, Record, Whole
from shardgym.tables.ids import expected_row_shares
from shardgym.tables.pools import load_pool
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision, UniformIds, ZipfIds
from shardgym.tasks.suites import load_suite
from shardgym.tasks.suites.mixed import MixedSource
from shardgym.tasks.suites.sources import DrawnSource
from shardgym.tasks.task import block_bytes
from shardgym.tasks.topology import GIB

T = TypeVar("T")

#: Who learns from a sample; nobody learns from tests.
Role = Literal["oracle", "judge", "test"]
ROLES: tuple[Role, ...] = get_args(Role)

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

#: Pool whose laws "recorded" tables have; every role has a third of its tables.
_LAW_POOL = "synthetic-2021"
_ZIPF_S = (0.3, 1.8)
#: Draws after which a space is taken to hold nothing that keeps to its limits.
_TRIES = 1_000
_PLAN_SIZES = (2, 4, 8, 16)

#: How the ids of a table are distributed: "uniform"; "zipf" with an exponent of its own; "recorded" with the law of a
#: table of `synthetic-2021`, which was fitted to recorded ids, and bags of random sizes.
IdsKind = Literal["uniform", "zipf", "recorded"]

WholeRange = tuple[Annotated[Whole, Field(ge=1)], Annotated[Whole, Field(ge=1)]]
NumberRange = tuple[Annotated[Number, Field(gt=0)], Annotated[Number, Field(gt=0)]]


@dataclass(frozen=True, config=CONFIG)
class Space(Record):
    """Ranges that shard sets are drawn from. Both ends are included, and numbers are log-uniform between them.

    Attributes:
        batch: samples per batch over all devices, powers of two.
        precision: precision of weights and of pooled values.
        optimizer: fused into the backward pass. FBGEMM has no Adam for CPUs, where it is left out.
        width: columns of a table, multiples of 4.
        pooling: mean ids per sample of a table.
        rows: rows of a table.
        ids: distributions of ids, drawn apart from rows and pooling.
        shards: shards on a device.
        memory_bytes: the most that a shard set takes, optimiser state included.
        suites: suites. If any are given, a shard set is what a device holds in a plan of a task drawn like theirs (see
            `draw_share`), and of the other axes only `memory_bytes` counts.
    """

    batch: WholeRange = (256, 65_536)
    precision: Annotated[tuple[Precision, ...], Field(min_length=1)] = ("fp32", "fp16")
    optimizer: Annotated[tuple[Optimizer, ...], Field(min_length=1)] = get_args(Optimizer)
    width: WholeRange = (4, 512)
    pooling: NumberRange = (0.05, 500.0)
    rows: WholeRange = (1, 100_000_000)
    ids: Annotated[tuple[IdsKind, ...], Field(min_length=1)] = get_args(IdsKind)
    shards: WholeRange = (1, 250)
    memory_bytes: Annotated[Whole, Field(ge=2**20)] = 3 * GIB
    suites: tuple[Name, ...] = ()
    schema: Literal["shardgym.space/1"] = "shardgym.space/1"

    @model_validator(mode="after")
    def _ranges_rise(self) -> Space:
        for name in ("batch", "width", "pooling", "rows", "shards"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(f"{name}: expected low <= high, got {low}:{high}")
        if self.width[0] % COLUMN_UNIT or self.width[1] % COLUMN_UNIT:
            raise ValueError(f"width: expected multiples of 4, got {self.width[0]}:{self.width[1]}")
        if any(end & (end - 1) for end in self.batch):
            raise ValueError(f"batch: expected powers of two, got {self.batch[0]}:{self.batch[1]}")
        return self


def random_of(*name: object) -> np.random.RandomState:
    """Return draws of their own for every name; they are the same in every version of NumPy (NEP 19)."""
    digest = hashlib.sha256("/".join(map(str, name)).encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, dtype="<u4"))


def pick(rng: np.random.RandomState, items: Sequence[T]) -> T:
    """Return one of some items."""
    return items[rng.randint(len(items))]


def log_number(rng: np.random.RandomState, low: float, high: float) -> float:
    """Return a number between two, log-uniform."""
    return float(low * (high / low) ** rng.random_sample())


def log_integer(rng: np.random.RandomState, low: int, high: int) -> int:
    """Return an integer from `low` to `high`, both included, log-uniform."""
    return min(high, int(log_number(rng, low, high + 1)))


def draw_shard_set(space: Space, seed: int, role: Role, number: int) -> ShardSet:
    """Return the shard set of a sample; `InputError` where nothing in the space keeps to its limits."""
    rng = random_of(seed, "shard set", role, number)
    for _ in range(_TRIES):
        found = _draw(rng, space, role, f"{role}-{seed}-{number}")
        if found is not None:
            return found
    raise InputError(
        f"no sample fits the limits of this space ({space.to_json()}): allow more memory, or smaller batches, "
        "rows, pooling factors or widths"
    )


def _draw(rng: np.random.RandomState, space: Space, role: Role, name: str) -> ShardSet | None:
    """Draw one set; None when nothing of it keeps to the limits."""
    precision = pick(rng, space.precision)
    optimizer = pick(rng, space.optimizer)
    widest = pick(rng, [width for width in _widths_up_to(space.width[1]) if width >= space.width[0]])
    low, high = (end.bit_length() - 1 for end in space.batch)
    batch_size = 1 << rng.randint(low, high + 1)
    count = log_integer(rng, *space.shards)
    tables = [draw_table(rng, space, role, f"{name}-{i}", batch_size) for i in range(count)]
    shards = [whole_table(table, draw_width(rng, space.width[0], widest)) for table in tables]
    kind = rng.random_sample()
    if kind < _SINGLE and space.shards[0] == 1:
        shards = shards[:1]
    elif kind < _SINGLE + _ANY_TABLES:
        pass
    elif kind < _SINGLE + _ANY_TABLES + _SPLIT_TABLES:
        shards = _split_tables(rng, shards, count)
    else:
        placed = balanced(rng, shards, pick(rng, _PLAN_SIZES), error=0.1, cuts=rng.randint(13))
        shards = pick(rng, [device for device in placed if device])
    limits = np.array([log_number(rng, *ends) for ends in (_IDS, _GATHERED, _POOLED)])
    most = np.array([_IDS[1], _GATHERED[1], _POOLED[1]], dtype=np.float64)
    free = space.memory_bytes
    kept: list[ShardSpec] = []
    for shard in shards[: space.shards[1]]:
        ids = batch_size * shard.table.pooling_factor * shard.num_rows / shard.table.num_embeddings
        amounts = np.array([ids, ids * shard.width, batch_size * shard.width])
        if not kept:
            limits = np.minimum(np.maximum(limits, amounts / _FIRST), most)
        size = block_bytes(shard.num_rows, shard.width, precision, optimizer)
        if size <= free and (amounts <= limits).all():
            free -= size
            limits -= amounts
            kept.append(shard)
    return ShardSet.in_order(kept, batch_size, precision, optimizer) if len(kept) >= space.shards[0] else None


def draw_table(rng: np.random.RandomState, space: Space, role: Role, name: str, batch_size: int) -> EmbeddingTable:
    """Make a table; its width is a placeholder, and its reuse histogram is the expected one."""
    rows = int(log_number(rng, *space.rows))
    pooling = round(log_number(rng, *space.pooling), 4)
    kind = pick(rng, space.ids)
    law: UniformIds | ZipfIds = UniformIds()
    if kind == "zipf":
        law = ZipfIds(s=round(rng.uniform(*_ZIPF_S), 4))
    elif kind == "recorded":
        known = pick(rng, _laws(role))
        assert isinstance(known.ids, ZipfIds)
        # Stretched to the rows of this table, so that the shape of the law stays.
        q = (known.ids.q + 0.5) * rows / known.num_embeddings - 0.5
        law = ZipfIds(s=known.ids.s, q=round(q, 3), lengths="poisson")
    return EmbeddingTable(name, rows, COLUMN_UNIT, pooling, law, expected_row_shares(law, rows, pooling * batch_size))


@functools.cache
def _laws(role: Role) -> tuple[EmbeddingTable, ...]:
    return load_pool(_LAW_POOL)[ROLES.index(role) :: len(ROLES)]


def draw_width(rng: np.random.RandomState, narrowest: int, widest: int) -> int:
    """Draw a power of two, or any multiple of 4 in one of four cases."""
    if rng.random_sample() < 0.25:
        return max(narrowest, int(log_number(rng, narrowest, widest)) // COLUMN_UNIT * COLUMN_UNIT)
    return pick(rng, [width for width in _widths_up_to(widest) if width >= narrowest])


def _widths_up_to(most: int) -> list[int]:
    """Return powers of two from 4, and the most itself."""
    return sorted({COLUMN_UNIT << k for k in range((most // COLUMN_UNIT).bit_length())} | {most})


def whole_table(table: EmbeddingTable, width: int) -> ShardSpec:
    """Return all rows of a table at a width; the table's own width is a placeholder that nothing measures."""
    return ShardSpec(table, (0, table.num_embeddings), width)


def _split_tables(rng: np.random.RandomState, shards: Sequence[ShardSpec], count: int) -> list[ShardSpec]:
    """Return several shards each of few tables, as many as there were: pieces of the columns, or ranges of the rows."""
    pieces: list[ShardSpec] = []
    for shard in shards:
        parts = rng.randint(2, 9)
        if rng.random_sample() < 0.5 and shard.num_rows >= parts:
            ranges = list(itertools.pairwise(shard.num_rows * i // parts for i in range(parts + 1)))
            chosen = rng.permutation(parts)[: rng.randint(1, parts + 1)]
            pieces += [shard._replace(rows=ranges[i]) for i in chosen]
        else:
            width = max(COLUMN_UNIT, shard.width // parts // COLUMN_UNIT * COLUMN_UNIT)
            pieces += [shard._replace(width=width)] * rng.randint(1, min(parts, shard.width // width) + 1)
        if len(pieces) >= count:
            break
    return pieces[:count]


def balanced(
    rng: np.random.RandomState, shards: Sequence[ShardSpec], devices: int, *, error: float, cuts: int
) -> list[list[ShardSpec]]:
    """Place shards as a search would: costly ones are halved by columns, so often, and the costliest is placed first.

    No search knows costs exactly: `error` is that of their logarithm.
    """
    shards = list(shards)
    for _ in range(cuts):
        wide = [i for i, shard in enumerate(shards) if shard.width >= 2 * COLUMN_UNIT]
        if not wide:
            break
        i = max(wide, key=lambda k: analytic_cost(shards[k]) * rng.uniform(0.7, 1.3))
        half = shards[i].width // 2 // COLUMN_UNIT * COLUMN_UNIT
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


def analytic_cost(shard: ShardSpec) -> float:
    """Return about what a shard costs, in no unit: only ratios count."""
    return (shard.ids_per_sample + 0.05) * (1 + shard.width / 16) * (1 + math.log10(shard.num_rows))


# --- shard sets that are the whole share of a device in plans of tasks like those of suites ---------------------------

#: Tasks of each group of a suite that can be drawn; of mixed pools, times as many as the suite has.
_PER_GROUP = 2**14
_TIMES = 2**12
#: Error of the logarithm of costs by which plans are balanced, and the most cuts.
_SHARE_ERRORS = (0.05, 0.8)
_SHARE_CUTS = 40
#: Draws after which tables are taken to be too large for the memory.
_SHARE_TRIES = 100


def draw_share(space: Space, seed: int, role: Role, number: int) -> ShardSet:
    """Return the shard set of a sample. The space names the suites, and the memory: what does not fit is left out.

    A task is drawn anew as its suite draws them: for the oracle and the judge from the train halves of its pools, for
    tests from the test halves. Plans are balanced as searches leave them, from well to badly.
    """
    rng = random_of(seed, "share", role, number)
    for _ in range(_SHARE_TRIES):
        source = _source(pick(rng, space.suites), role == "test")
        task = source.build(rng.randint(len(source)), "")
        shards = [whole_table(table, table.embedding_dim) for table in task.tables]
        error = rng.uniform(*_SHARE_ERRORS)
        placed = balanced(rng, shards, task.num_devices, error=error, cuts=rng.randint(_SHARE_CUTS + 1))
        kept: list[ShardSpec] = []
        free = space.memory_bytes
        for shard in pick(rng, [held for held in placed if held]):
            size = block_bytes(shard.num_rows, shard.width, task.precision, task.optimizer)
            if size <= free:
                free -= size
                kept.append(shard._replace(table=_counted(shard.table, task.batch_size)))
        if kept:
            return ShardSet.in_order(kept, task.batch_size, task.precision, task.optimizer)
    raise InputError(f"no table of {', '.join(space.suites)} fits memory_bytes={space.memory_bytes}: allow more memory")


@functools.cache
def _source(suite: str, for_tests: bool) -> DrawnSource | MixedSource:
    source = load_suite(suite).source
    half: Literal["train", "test"] = "test" if for_tests else "train"
    if isinstance(source, MixedSource):
        return source.redrawn(half, _TIMES)
    if not isinstance(source, DrawnSource):
        raise InputError(f"suite '{suite}' is not drawn from pools, so it cannot be sampled: name another")
    return source.redrawn(source.spec.pool, half, _PER_GROUP)


def _counted(table: EmbeddingTable, batch_size: int) -> EmbeddingTable:
    """Return a table with the reuse histogram that is expected of it, where none was counted."""
    if table.reuse_histogram is not None or not isinstance(table.ids, UniformIds | ZipfIds):
        return table
    histogram = expected_row_shares(table.ids, table.num_embeddings, table.pooling_factor * batch_size)
    return dataclasses.replace(table, reuse_histogram=histogram)
