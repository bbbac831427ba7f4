"""One rank of complete training steps, on a core or on a GPU.

On a CPU memory comes from the allocator as it is: no huge pages, nothing recycled on purpose. A young process would
touch new pages in every step. A training process has freed large blocks before, so that glibc keeps what it frees; a
rank does that first.
"""

import datetime
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

from shardgym.arrays import Floats
from shardgym.costs.fbgemm.cuda import gpu_tag
from shardgym.costs.fbgemm.jobs import ReferenceJob, ShardSet, ShardSpec
from shardgym.costs.fbgemm.kernels import CpuBackend, Measurer
from shardgym.costs.fbgemm.namespaces import ShapedLinks, join_network
from shardgym.costs.fbgemm.operator import TableIds, build_operator, cut_rows, draw_ids, tensor_bytes
from shardgym.costs.fbgemm.plan_on_rank import Domains, Features, PlanOnRank
from shardgym.costs.fbgemm.step import PARTS, RankSteps, StepJob
from shardgym.costs.links import samples_per_device
from shardgym.machine import available_bytes, cpu_tag
from shardgym.processes import Handler
from shardgym.tables.ids import draw_bags, what_is_drawn
from shardgym.tables.table import EmbeddingTable, RecordedIds

#: Share of the available memory that a rank keeps drawn ids in.
_FOR_IDS = 1 / 32
#: Seconds from agreeing on the start of an exchange to the start, so that all ranks know it in time.
_LEAD_S = 0.002
#: Seconds that ranks may take to link up.
_LINKS_S = 60.0


class Clock:
    """The clock of one device in one step.

    Work counts by the CPU time of this thread, on a GPU until its queue is empty, by wall time. Exchanges count by wall
    time if they are timed: then devices enter an exchange as far apart as their clocks are. Over emulated links, which
    `links` are, `links.dilation` seconds of an exchange count as one at pace 1. Work takes `pace` times longer than at
    pace 1, so exchanges over emulated links do.
    """

    def __init__(self, timed_exchanges: bool, links: ShapedLinks | None = None, pace: float = 1.0) -> None:
        #: Of all parts so far, 0 of those that the plan has not.
        self.parts_ms = dict.fromkeys(PARTS, 0.0)
        #: To every rank in each exchange so far.
        self.sent_bytes: dict[str, Sequence[int]] = {}
        self._timed = timed_exchanges
        self._links = links
        self._dilation = 1.0 if links is None else links.dilation / pace
        self._on_gpu = torch.get_default_device().type == "cuda"
        self._begin_s = self._worked_s()

    def work(self, part: str) -> None:
        """End a part of a step in which this device worked alone."""
        self._add(part, self._worked_s() - self._begin_s)

    def exchange(
        self, part: str, run: Callable[[], object], sent_bytes: Sequence[int], group: dist.ProcessGroup | None = None
    ) -> None:
        """Run an exchange of a group of devices, which is a part of a step.

        A device with an early clock enters early: it sends while the others sleep. All wait at the end for the
        last one, outside of what is timed, so that nobody works while others exchange.

        Over emulated links the exchange takes all of its group until the last one is through, as it would if flows
        shared the busiest link fairly. TCP does not: what a device sends to the busiest one gets ahead if little comes
        back to it, and the device would leave up to a third earlier, on another kernel up to another share.
        """
        self.sent_bytes[part] = sent_bytes
        if not self._timed:
            run()
            self._add(part, 0.0)
            return
        now_s = sum(self.parts_ms.values()) / 1e3
        agreed = torch.tensor([-now_s, time.perf_counter() + _LEAD_S], dtype=torch.float64, device="cpu")
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX)
        enter_s = float(agreed[1]) + self._dilation * (now_s + float(agreed[0]))
        time.sleep(max(0.0, enter_s - time.perf_counter()))
        run()
        self._wait_for_gpu()
        through_s = torch.tensor([time.perf_counter()], dtype=torch.float64, device="cpu")
        if self._links is not None:
            dist.all_reduce(through_s, op=dist.ReduceOp.MAX, group=group)
        dist.all_reduce(agreed)  # all groups are through
        self._add(part, (float(through_s) - enter_s) / self._dilation)

    def _add(self, part: str, seconds: float) -> None:
        self.parts_ms[part] = 1e3 * seconds
        self._begin_s = self._worked_s()

    def _worked_s(self) -> float:
        self._wait_for_gpu()
        return time.perf_counter() if self._on_gpu else time.thread_time()

    def _wait_for_gpu(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()


def keep_freed_memory() -> None:
    """Bring the allocator to where it is in a process that has freed a large block.

    glibc maps large blocks anew each time, up to the largest one that was freed, or 32 MiB (`man mallopt`). The block
    has a little less, as glibc adds a header.
    """
    torch.empty(31 * 2**20, dtype=torch.uint8, device="cpu")


class StepRank:
    """Answers jobs with the parts of its steps; it has no `domains` where one fast domain has all ranks."""

    def __init__(self, number: int, domains: Domains | None, links: ShapedLinks | None) -> None:
        self._number = number
        self._links = links
        self._domains = domains
        on_gpu = torch.get_default_device().type == "cuda"
        memory = torch.cuda.mem_get_info()[0] if on_gpu else available_bytes()
        self._kernels = Measurer(CpuBackend(), seed=0)
        #: By table, samples of ranks, seed and batch.
        self.drawn: LRUCache[Any, TableIds] = LRUCache(int(memory * _FOR_IDS), tensor_bytes)

    def __call__(self, job: StepJob | ReferenceJob) -> RankSteps | list[Floats]:
        """Run the steps of a plan; raises `InputError` about ids on all ranks, before they talk.

        The answer to a `ReferenceJob` are forward and backward ms of this rank's jobs, each of shape (iterations, 2).
        """
        keep_freed_memory()
        if isinstance(job, ReferenceJob):
            return [self._kernels(own).times for own in job.of_ranks[self._number]]
        samples = samples_per_device(job.plan.example.batch_size, job.plan.num_devices).tolist()
        features = [self._features(job, samples, batch) for batch in job.batches]
        plan = PlanOnRank(job.plan, samples, self._number, self._domains)
        clocks = []
        gc.disable()
        try:
            for looked_up in features:
                clock = Clock(job.timed_exchanges, self._links, job.pace)
                plan.step(looked_up, clock)
                clocks.append(clock)
        finally:
            gc.enable()
        timed = clocks[job.warmups :]
        return RankSteps(
            np.array([list(clock.parts_ms.values()) for clock in timed]),
            {part: np.array([clock.sent_bytes[part] for clock in timed]) for part in timed[0].sent_bytes},
        )

    def _features(self, job: StepJob, samples: Sequence[int], batch: int) -> Features:
        """Return what this rank's samples look up."""
        plan = job.plan

        def of(held: ShardSet) -> list[TableIds]:
            return [cut_rows(self._ids(s.table, tuple(samples), job.seed, batch), s) for s in held.shards]

        exchanged = [[ids for held in plan.exchanged(d) for ids in of(held)] for d in range(plan.num_devices)]
        unpooled = {
            table.name: self._ids(table, tuple(samples), job.seed, batch).indices for table in plan.unpooled_tables
        }
        return Features(exchanged, [ids for held in plan.replicated() for ids in of(held)], unpooled)

    @cachedmethod(lambda self: self.drawn, key=lambda _, table, *rest: (*what_is_drawn(table), *rest))
    def _ids(self, table: EmbeddingTable, samples: tuple[int, ...], seed: int, batch: int) -> TableIds:
        """Return the ids of this rank's samples of a table."""
        if isinstance(table.ids, RecordedIds):
            first = sum(samples[: self._number])
            whole = draw_bags(table, sum(samples), seed=seed, batch=batch)
            return TableIds(*map(torch.tensor, whole.samples(first, samples[self._number])))
        own = batch * len(samples) + self._number
        return draw_ids(torch.get_default_device(), table, samples[self._number], seed=seed, batch=own)


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
    """Load FBGEMM, so that incompatible versions fail here, link up and join the group; settings are of `step_ranks`.

    "file" is that of the rendezvous, "cores" are those that ranks may run on.
    """
    number = settings["rank"]
    size = settings["world_size"]
    on_gpu = settings["device"] == "cuda"
    torch.set_num_threads(1)
    os.sched_setaffinity(0, settings["cores"])  # those of the hardware tag, which the fork server may not have
    hardware = gpu_tag(number) if on_gpu else cpu_tag()
    if on_gpu:
        torch.cuda.set_device(number)
        torch.set_default_device(torch.device("cuda", number))
    # Before ranks know each other: one that ended while others join would make those complain about the connection.
    shard = ShardSpec(EmbeddingTable("check", 4, 4), (0, 4), 4)
    build_operator(ShardSet((shard,), 2, "fp32", "exact_sgd"))
    # Before the group exists: gloo's threads inherit both.
    real_time = on_gpu or take_real_time_priority()
    links = settings["links"]
    if links is not None:
        join_network(number, links, Path(settings["file"]).parent, _LINKS_S)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
        store=dist.FileStore(settings["file"], size),  # type: ignore[attr-defined]
        rank=number,
        world_size=size,
        timeout=datetime.timedelta(seconds=settings["timeout_s"]),
    )
    # Now, as later the file of the rendezvous is gone.
    domains = Domains.join(settings["domain_size"]) if settings["domain_size"] < size else None
    if on_gpu:  # NCCL links up at the first exchange
        dist.all_reduce(torch.zeros(1))
    gc.collect()
    gc.freeze()
    return StepRank(number, domains, links), {"hardware": hardware, "real_time": real_time}
