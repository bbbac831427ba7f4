"""What plans of a task are measured in complete steps, from balanced ones to lopsided ones.

Half of the tasks are of the usual kind: batch and precision of the suites, and their optimiser or row-wise Adagrad.
Tables are of the pool in two of three tasks, else made for their task alone. The oracle and the judge take the train
half of the pool, tests the test half; names of made tables say role, seed and task.
"""

import functools
from collections.abc import Sequence
from typing import get_args

import numpy as np

from shardgym.costs.fbgemm.cost import CPU_OPTIMIZERS
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.tables.pools import load_pool
from shardgym.tables.table import EmbeddingTable, Optimizer, Precision
from shardgym.tasks.task import block_bytes
from shardgym.tasks.topology import GIB
from shardgym.training.sampling import (
    Role,
    Space,
    balanced,
    draw_table,
    draw_width,
    log_integer,
    log_number,
    pick,
    random_of,
    whole_table,
)

#: What each device of a plan holds.
Plan = tuple[ShardSet | None, ...]

#: Devices of a task: four and eight twice as often as two. And the most tables of a task, by its devices: of the usual
#: kind, and of other tasks.
DEVICES = (2, 4, 4, 8, 8)
_MOST_TABLES = {2: 40, 4: 80, 8: 120}
_MOST_UNUSUAL_TABLES = {2: 300, 4: 400, 8: 500}
_USUAL = 0.5
_USUAL_BATCH = 8192
_USUAL_OPTIMIZERS: tuple[Optimizer, ...] = ("exact_sgd", "exact_sgd", "rowwise_adagrad")
#: Batches of other tasks, as powers of two.
_BATCH_BITS = (9, 16)
_OPTIMIZERS: list[Optimizer] = sorted(name for name in get_args(Optimizer) if name in CPU_OPTIMIZERS)
#: Share of the tasks whose tables are of the pool; its rows and batch are divided, as in the suites for CPUs.
_OF_POOL = 0.65
_POOL = "synthetic-2021"
_SCALE = 8
_POOL_WIDTHS = (4, 8, 16, 32, 64, 128, 256)
#: Tables that are made.
_SPACE = Space(pooling=(0.1, 200.0), rows=(10, 4_000_000))
_WIDEST = (16, 32, 64, 128, 256)
#: What one step may take over all devices: ids, values that they gather, and pooled values. Tasks that are not of the
#: usual kind draw a share of the limit, log-uniform, so that small ones are as frequent as large ones.
_USUAL_LIMITS = (8e6, 5e8, 1e8)
_LIMITS = (4e6, 3e8, 6e7)
_LEAST_SHARE = 0.03
#: Share of these that take tables with few ids first, so that devices hold up to hundreds.
_MANY_SMALL = 0.3
#: Memory of all devices; ids of made tables are drawn for one task, and drawing them takes memory too.
_POOL_BYTES = 2 * GIB
_MADE_BYTES = _POOL_BYTES // 3

#: Plans by their number within a task, modulo so many kinds: the first kind is placed anywhere, the others are
#: balanced, and the last kind has up to six shards moved.
_KINDS = 4
_MOVED = 6
_NO_CUTS = 0.3
_CUTS = (1, 40)
#: Plans are balanced by an analytic cost, with an error of up to so much in its logarithm.
_ERRORS = (0.05, 0.8)


def num_devices(seed: int, role: Role, number: int) -> int:
    """Return the number of devices of a task."""
    return pick(random_of(seed, "step task", role, number), DEVICES)


def draw_plans(seed: int, role: Role, number: int) -> list[Plan]:
    """Return the plans of a task: four, and six of tests, which are about how plans are ranked."""
    rng = random_of(seed, "step task", role, number)
    devices = pick(rng, DEVICES)
    while True:
        usual = rng.random_sample() < _USUAL
        batch_size = _USUAL_BATCH if usual else 1 << rng.randint(_BATCH_BITS[0], _BATCH_BITS[1] + 1)
        precision: Precision = "fp32" if usual else pick(rng, ("fp32", "fp16"))
        optimizer: Optimizer = pick(rng, _USUAL_OPTIMIZERS if usual else _OPTIMIZERS)
        of_pool = rng.random_sample() < _OF_POOL
        count = log_integer(rng, 2 * devices, (_MOST_TABLES if usual else _MOST_UNUSUAL_TABLES)[devices])
        if of_pool:
            train, test = _pool_halves()
            tables = test if role == "test" else train
            low = rng.randint(4)
            widths = _POOL_WIDTHS[low : rng.randint(low, len(_POOL_WIDTHS)) + 1]
            shards = [whole_table(tables[i], pick(rng, widths)) for i in rng.permutation(len(tables))[:count]]
        else:
            made = [
                draw_table(rng, _SPACE, role, f"steps-{role}-{seed}-{number}-{i}", batch_size) for i in range(count)
            ]
            shards = [whole_table(table, draw_width(rng, COLUMN_UNIT, pick(rng, _WIDEST))) for table in made]
        if not usual and rng.random_sample() < _MANY_SMALL:
            shards.sort(key=lambda shard: shard.table.pooling_factor)
        limits = np.array(_USUAL_LIMITS) if usual else log_number(rng, _LEAST_SHARE, 1.0) * np.array(_LIMITS)
        free = _POOL_BYTES if of_pool else _MADE_BYTES
        kept = []
        for shard in shards:
            ids = batch_size * shard.table.pooling_factor
            amounts = np.array([ids, ids * shard.width, batch_size * shard.width])
            size = block_bytes(shard.num_rows, shard.width, precision, optimizer)
            if size <= free and (amounts <= limits).all():
                free -= size
                limits -= amounts
                kept.append(shard)
        if len(kept) >= max(4, devices):
            break
    plans = []
    for kind in range(6 if role == "test" else 4):
        placed = _placed(rng, kept, devices, kind % _KINDS)
        plans.append(tuple(ShardSet.in_order(on, batch_size, precision, optimizer) if on else None for on in placed))
    return plans


@functools.cache
def _pool_halves() -> tuple[Sequence[EmbeddingTable], Sequence[EmbeddingTable]]:
    train, test = load_pool(_POOL).split()
    return train.scaled(_SCALE).tables, test.scaled(_SCALE).tables


def _placed(rng: np.random.RandomState, shards: Sequence[ShardSpec], devices: int, kind: int) -> list[list[ShardSpec]]:
    """Return what each device of a plan of a kind holds."""
    cuts = 0 if rng.random_sample() < _NO_CUTS else log_integer(rng, *_CUTS)
    placed: list[list[ShardSpec]] = [[] for _ in range(devices)]
    if kind == 0:
        # How unevenly devices are preferred is random, too.
        weights = rng.uniform(0.2, 1.0, devices)
        for shard, device in zip(shards, rng.choice(devices, len(shards), p=weights / weights.sum()), strict=True):
            placed[device].append(shard)
        return placed
    placed = balanced(rng, shards, devices, error=rng.uniform(*_ERRORS), cuts=cuts)
    if kind == _KINDS - 1:
        for _ in range(rng.randint(1, _MOVED + 1)):
            source = pick(rng, [device for device in placed if device])
            pick(rng, placed).append(source.pop(rng.randint(len(source))))
    return placed
