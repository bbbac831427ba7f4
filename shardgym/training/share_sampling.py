"""Shard sets that are the whole share of a device in plans of tasks like those of suites.

A task is drawn anew as its suite draws them: for the oracle and the judge from the train halves of its pools, for tests
from the test halves. Plans are balanced as searches leave them, from well to badly.
"""

import dataclasses
import functools
from typing import Literal

from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.errors import InputError
from shardgym.tables.ids import expected_row_shares
from shardgym.tables.table import EmbeddingTable, UniformIds, ZipfIds
from shardgym.tasks.suites import load_suite
from shardgym.tasks.suites.mixed import MixedSource
from shardgym.tasks.suites.sources import DrawnSource
from shardgym.tasks.task import block_bytes
from shardgym.training.sampling import Role, Space, balanced, pick, random_of, whole_table

#: Tasks of each group of a suite that can be drawn; of mixed pools, times as many as the suite has.
_PER_GROUP = 2**14
_TIMES = 2**12
#: Error of the logarithm of costs by which plans are balanced, and the most cuts.
_ERRORS = (0.05, 0.8)
_CUTS = 40
#: Draws after which tables are taken to be too large for the memory.
_TRIES = 100


def draw_share(space: Space, seed: int, role: Role, number: int) -> ShardSet:
    """Return the shard set of a sample. The space names the suites, and the memory: what does not fit is left out."""
    rng = random_of(seed, "share", role, number)
    for _ in range(_TRIES):
        source = _source(pick(rng, space.suites), role == "test")
        task = source.build(rng.randint(len(source)), "")
        shards = [whole_table(table, table.embedding_dim) for table in task.tables]
        placed = balanced(rng, shards, task.num_devices, error=rng.uniform(*_ERRORS), cuts=rng.randint(_CUTS + 1))
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
        raise InputError(f"suite '{suite}' is not drawn from pools, so nothing can be drawn like it: name another")
    return source.redrawn(source.spec.pool, half, _PER_GROUP)


def _counted(table: EmbeddingTable, batch_size: int) -> EmbeddingTable:
    """Return a table with the reuse histogram that is expected of it, where none was counted."""
    if table.reuse_histogram is not None or not isinstance(table.ids, UniformIds | ZipfIds):
        return table
    histogram = expected_row_shares(table.ids, table.num_embeddings, table.pooling_factor * batch_size)
    return dataclasses.replace(table, reuse_histogram=histogram)
