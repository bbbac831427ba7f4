"""One rank of complete training steps: `python -m shardgym.costs.fbgemm.step_rank SETTINGS DESCRIPTOR`.

Memory comes from the allocator as it is: no huge pages, nothing recycled on purpose. Version 2 starts with a young
process, which touches new pages in every step. A training process has freed large blocks before, so that glibc keeps
what it frees (`studies/torchrec_step`); in version 3 a rank does that first.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from cachetools import LRUCache, cachedmethod

from shardgym.child import Handler, serve
from shardgym.costs.fbgemm import rank
from shardgym.costs.fbgemm.jobs import ShardSet
from shardgym.costs.fbgemm.machine import available_bytes
from shardgym.costs.fbgemm.operator import (
    TableIds,
    build_operator,
    check_rows,
    cut_rows,
    dtype_of,
    tensor_bytes,
    versions,
)
from shardgym.costs.fbgemm.step import StepJob, StepMarks
from shardgym.costs.links import samples_per_device
from shardgym.ids import draw_bags
from shardgym.table import EmbeddingTable, RecordedIds

#: Share of the available memory that a rank keeps drawn ids in.
_FOR_IDS = 1 / 32
#: Value of all weights. It does not matter, but each page must have been written to: else it is the kernel's zero page.
_WEIGHT = 0.01


class Clock:
    """Marks on the wall clock and on the CPU clock of this thread."""

    def __init__(self) -> None:
        self.wall_s: list[float] = []
        self.cpu_s: list[float] = []

    def mark(self) -> None:
        """Note both clocks."""
        self.wall_s.append(time.perf_counter())
        self.cpu_s.append(time.thread_time())


def keep_freed_memory() -> None:
    """Bring the allocator to where it is in a process that has freed a large block.

    glibc maps large blocks anew each time, up to the largest one that was freed, or 32 MiB (`man mallopt`). The block
    has a little less, as glibc adds a header.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8)


class StepRank:
    """Answers jobs with the marks of its steps.

    Args:
        number: of this rank.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._drawn: LRUCache[Any, TableIds] = LRUCache(int(available_bytes() * _FOR_IDS), tensor_bytes)

    def __call__(self, job: StepJob) -> StepMarks:
        """Run the steps of a plan.

        Raises:
            InputError: recorded ids are missing, or ids lie outside their table; all ranks find that before they talk.
        """
        if job.keeps_freed:
            keep_freed_memory()
        example = next(held for held in job.shard_sets if held is not None)
        samples = samples_per_device(example.batch_size, len(job.shard_sets)).tolist()
        features = [self._features(job, samples, batch) for batch in job.batches]
        plan = _PlanOnRank(job.shard_sets, samples, self._number)
        clocks = []
        gc.disable()
        try:
            for sent in features:
                clocks.append(Clock())
                plan.step(sent, clocks[-1])
        finally:
            gc.enable()
        timed = clocks[job.warmups :]
        sent_counts = [
            [
                [sum(len(ids.lengths) for ids in to) for to in sent],
                [sum(len(ids.indices) for ids in to) for to in sent],
                [count * plan.width for count in samples],
            ]
            for sent in features[job.warmups :]
        ]
        return StepMarks(
            np.array([clock.wall_s for clock in timed]),
            np.array([clock.cpu_s for clock in timed]),
            np.array(sent_counts, dtype=np.int64),
        )

    def _features(self, job: StepJob, samples: Sequence[int], batch: int) -> list[list[TableIds]]:
        """Return what this rank's samples look up in each shard, by device and shard."""
        return [
            [cut_rows(self._ids(s.table, tuple(samples), job.seed, batch), s) for s in (held.shards if held else ())]
            for held in job.shard_sets
        ]

    @cachedmethod(
        lambda self: self._drawn,
        key=lambda _, table, *rest: (table.name, table.num_embeddings, table.pooling_factor, table.ids, *rest),
    )
    def _ids(self, table: EmbeddingTable, samples: tuple[int, ...], seed: int, batch: int) -> TableIds:
        """Return the ids of this rank's samples of a table."""
        if isinstance(table.ids, RecordedIds):
            first = sum(samples[: self._number])
            bags = draw_bags(table, sum(samples), seed=seed)
            ends = np.cumsum([0, *bags.lengths])
            last = first + samples[self._number]
            indices, lengths = bags.indices[ends[first] : ends[last]], bags.lengths[first:last]
        else:
            own = batch * len(samples) + self._number
            indices, lengths = draw_bags(table, samples[self._number], seed=seed, batch=own)
        check_rows(table, indices)
        return TableIds(torch.tensor(indices), torch.tensor(lengths))


class _PlanOnRank:
    """The part of a plan that one rank holds, and the buffers of its exchanges.

    Args:
        shard_sets: of all devices.
        samples: of all devices.
        number: of this rank.
    """

    def __init__(self, shard_sets: Sequence[ShardSet | None], samples: Sequence[int], number: int) -> None:
        held = shard_sets[number]
        example = next(h for h in shard_sets if h is not None)
        self.width = 0 if held is None else held.width
        self._samples = samples
        self._own_samples = samples[number]
        self._batch_size = example.batch_size
        self._num_shards = 0 if held is None else len(held.shards)
        self._dtype = dtype_of(example)
        self._widths = [0 if h is None else h.width for h in shard_sets]
        self._operator: Any = None
        if held is not None:
            self._operator = build_operator(held, torch.device("cpu"), bounds_check=True)
            for weights in self._operator.split_embedding_weights():
                weights.fill_(_WEIGHT)
        # Ids arrive device by device, the kernel takes them shard by shard.
        size = len(samples)
        order = [p * self._num_shards + s for s in range(self._num_shards) for p in range(size)]
        self._by_shard = torch.tensor(order, dtype=torch.int32)

    def step(self, features: Sequence[Sequence[TableIds]], clock: Clock) -> None:
        """Run one step, with a mark before each part (`shardgym.costs.fbgemm.step.PARTS`) and after the last."""
        clock.mark()
        sent_lengths, sent_ids = _packed(features)
        lengths_from = [count * self._num_shards for count in self._samples]
        lengths_to = [self._own_samples * len(to) for to in features]
        lengths = torch.empty(sum(lengths_from), dtype=torch.int64)
        clock.mark()
        dist.all_to_all_single(lengths, sent_lengths, lengths_from, lengths_to)
        clock.mark()
        ids_from = [int(part.sum()) for part in torch.split(lengths, lengths_from)]
        ids_to = [sum(len(ids.indices) for ids in to) for to in features]
        ids = torch.empty(sum(ids_from), dtype=torch.int64)
        clock.mark()
        dist.all_to_all_single(ids, sent_ids, ids_from, ids_to)
        clock.mark()
        ids, offsets = self._grouped(ids, lengths, lengths_from)
        clock.mark()
        pooled: Any
        if self._operator is None:
            pooled = torch.empty(self._batch_size, 0, dtype=self._dtype)
        else:
            pooled = self._operator(ids, offsets)
        values_to = [count * self.width for count in self._samples]
        values_from = [self._own_samples * width for width in self._widths]
        outputs = torch.empty(sum(values_from), dtype=self._dtype)
        clock.mark()
        dist.all_to_all_single(outputs, pooled.detach().view(-1), values_from, values_to)
        clock.mark()
        # The dense part of a model would turn these into gradients; its time is the same for all plans.
        blocks = zip(torch.split(outputs, values_from), self._widths, strict=True)
        joined = torch.cat([part.view(self._own_samples, width) for part, width in blocks], dim=1)
        clock.mark()
        sent_gradients = torch.cat([part.reshape(-1) for part in torch.split(joined, self._widths, dim=1)])
        gradient = torch.empty(self._batch_size * self.width, dtype=self._dtype)
        clock.mark()
        dist.all_to_all_single(gradient, sent_gradients, values_to, values_from)
        clock.mark()
        if self._operator is not None:
            pooled.backward(gradient.view(self._batch_size, self.width))
        clock.mark()

    def _grouped(
        self, ids: torch.Tensor, lengths: torch.Tensor, lengths_from: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and offsets shard by shard, the samples of all devices in order."""
        if self._operator is None:
            return ids, lengths
        blocks = [part.view(self._num_shards, -1) for part in torch.split(lengths, lengths_from)]
        counts = torch.cat([block.sum(dim=1) for block in blocks])
        _, ids, _ = torch.ops.fbgemm.permute_1D_sparse_data(self._by_shard, counts, ids)
        return ids, torch.ops.fbgemm.asynchronous_complete_cumsum(torch.cat(blocks, dim=1).view(-1))


def _packed(features: Sequence[Sequence[TableIds]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return lengths and ids for all shards, device by device."""
    flat = [ids for to in features for ids in to]
    return torch.cat([ids.lengths for ids in flat]), torch.cat([ids.indices for ids in flat])


def take_real_time_priority() -> bool:
    """Let no ordinary program run on this process's core while it has work; False where the system forbids it.

    A higher niceness would not do: Linux applies it within a terminal session only.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except OSError:
        return False
    return True


def start(settings: dict[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Join the group.

    Args:
        settings: those of `shardgym.costs.fbgemm.rank.start`.
    """
    # Before the group exists: gloo's threads inherit it.
    real_time = take_real_time_priority()
    rank.start(settings)
    return StepRank(settings["rank"]), {"real_time": real_time, "versions": versions()}


if __name__ == "__main__":
    serve(start)
