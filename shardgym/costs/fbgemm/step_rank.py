"""One rank of complete training steps: `python -m shardgym.costs.fbgemm.step_rank SETTINGS DESCRIPTOR`.

Memory comes from the allocator as it is: no huge pages, nothing recycled on purpose. A young process would touch new
pages in every step. A training process has freed large blocks before, so that glibc keeps what it frees
(`studies/torchrec_step`); a rank does that first.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from cachetools import LRUCache, cachedmethod

from shardgym.child import Handler, serve
from shardgym.costs.fbgemm import rank
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec
from shardgym.costs.fbgemm.machine import available_bytes, cpu_tag
from shardgym.costs.fbgemm.namespaces import join_network
from shardgym.costs.fbgemm.operator import (
    TableIds,
    build_operator,
    check_rows,
    cut_rows,
    dtype_of,
    tensor_bytes,
    versions,
)
from shardgym.costs.fbgemm.step import RankSteps, StepJob
from shardgym.costs.links import samples_per_device
from shardgym.ids import draw_bags
from shardgym.table import EmbeddingTable, RecordedIds

#: Share of the available memory that a rank keeps drawn ids in.
_FOR_IDS = 1 / 32
#: Value of all weights. It does not matter, but each page must have been written to: else it is the kernel's zero page.
_WEIGHT = 0.01
#: Seconds from agreeing on the start of an exchange to the start, so that all ranks know it in time.
_LEAD_S = 0.002
#: Seconds that ranks may take to link up.
_LINKS_S = 60.0


class Clock:
    """The clock of one device in one step: work counts by CPU time, exchanges by wall time if they are timed.

    Args:
        timed_exchanges: whether devices enter an exchange as far apart as their clocks are.

    Attributes:
        parts_ms: of all parts so far.
    """

    def __init__(self, timed_exchanges: bool) -> None:
        self.parts_ms: list[float] = []
        self._timed = timed_exchanges
        self._cpu_s = time.thread_time()

    def work(self) -> None:
        """End a part of a step in which this device worked alone."""
        self._add(time.thread_time() - self._cpu_s)

    def exchange(self, run: Callable[[], object]) -> None:
        """Run an exchange, which is a part of a step.

        A device with an early clock enters early: it sends while the others sleep. All wait at the end for the
        last one, outside of what is timed, so that nobody works while others exchange.
        """
        if not self._timed:
            run()
            self._add(0.0)
            return
        now_s = sum(self.parts_ms) / 1e3
        agreed = torch.tensor([-now_s, time.perf_counter() + _LEAD_S], dtype=torch.float64)
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        enter_s = float(agreed[1]) + now_s + float(agreed[0])
        time.sleep(max(0.0, enter_s - time.perf_counter()))
        run()
        took_s = time.perf_counter() - enter_s
        dist.barrier()
        self._add(took_s)

    def _add(self, seconds: float) -> None:
        self.parts_ms.append(1e3 * seconds)
        self._cpu_s = time.thread_time()


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

    def __call__(self, job: StepJob) -> RankSteps:
        """Run the steps of a plan.

        Raises:
            InputError: recorded ids are missing, or ids lie outside their table; all ranks find that before they talk.
        """
        keep_freed_memory()
        example = next(held for held in job.shard_sets if held is not None)
        samples = samples_per_device(example.batch_size, len(job.shard_sets)).tolist()
        features = [self._features(job, samples, batch) for batch in job.batches]
        plan = _PlanOnRank(job.shard_sets, samples, self._number)
        parts_ms = []
        gc.disable()
        try:
            for sent in features:
                clock = Clock(job.timed_exchanges)
                plan.step(sent, clock)
                parts_ms.append(clock.parts_ms)
        finally:
            gc.enable()
        sent_counts = [
            [
                [sum(len(ids.lengths) for ids in to) for to in sent],
                [sum(len(ids.indices) for ids in to) for to in sent],
                [count * plan.width for count in samples],
            ]
            for sent in features[job.warmups :]
        ]
        return RankSteps(np.array(parts_ms[job.warmups :]), np.array(sent_counts, dtype=np.int64))

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
        """Run one step; the clock hears of each of its `PARTS`."""
        sent_lengths, sent_ids = _packed(features)
        lengths_from = [count * self._num_shards for count in self._samples]
        lengths_to = [self._own_samples * len(to) for to in features]
        lengths = torch.empty(sum(lengths_from), dtype=torch.int64)
        clock.work()
        clock.exchange(lambda: dist.all_to_all_single(lengths, sent_lengths, lengths_from, lengths_to))
        ids_from = [int(part.sum()) for part in torch.split(lengths, lengths_from)]
        ids_to = [sum(len(ids.indices) for ids in to) for to in features]
        received = torch.empty(sum(ids_from), dtype=torch.int64)
        clock.work()
        clock.exchange(lambda: dist.all_to_all_single(received, sent_ids, ids_from, ids_to))
        ids, offsets = self._grouped(received, lengths, lengths_from)
        clock.work()
        pooled: Any
        if self._operator is None:
            pooled = torch.empty(self._batch_size, 0, dtype=self._dtype)
        else:
            pooled = self._operator(ids, offsets)
        values_to = [count * self.width for count in self._samples]
        values_from = [self._own_samples * width for width in self._widths]
        outputs = torch.empty(sum(values_from), dtype=self._dtype)
        clock.work()
        clock.exchange(lambda: dist.all_to_all_single(outputs, pooled.detach().view(-1), values_from, values_to))
        # The dense part of a model would turn these into gradients; its time is the same for all plans.
        blocks = zip(torch.split(outputs, values_from), self._widths, strict=True)
        joined = torch.cat([part.view(self._own_samples, width) for part, width in blocks], dim=1)
        clock.work()
        sent_gradients = torch.cat([part.reshape(-1) for part in torch.split(joined, self._widths, dim=1)])
        gradient = torch.empty(self._batch_size * self.width, dtype=self._dtype)
        clock.work()
        clock.exchange(lambda: dist.all_to_all_single(gradient, sent_gradients, values_to, values_from))
        if self._operator is not None:
            pooled.backward(gradient.view(self._batch_size, self.width))
        clock.work()

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
    """Link up and join the group, and load FBGEMM, so that incompatible versions fail here.

    Args:
        settings: those of `shardgym.costs.fbgemm.rank.start`, and "link_rate": bytes per second of each device's
            link, None for the loopback interface.
    """
    # Before the group exists: gloo's threads inherit both.
    real_time = take_real_time_priority()
    if settings["link_rate"] is not None:
        folder = Path(settings["file"]).parent
        join_network(settings["rank"], settings["world_size"], settings["link_rate"], folder, _LINKS_S)
    rank.start(settings)
    shard = ShardSpec(EmbeddingTable("check", 4, 4), (0, 4), 4)
    build_operator(ShardSet((shard,), 2, "fp32", "exact_sgd"), torch.device("cpu"))
    facts = {"hardware": cpu_tag(), "versions": versions(), "real_time": real_time}
    return StepRank(settings["rank"]), facts


if __name__ == "__main__":
    serve(start)
