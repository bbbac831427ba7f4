"""A training step of sharded embeddings as a training script does it: FBGEMM, gloo, one process per device.

It shares no step with the measured cost, which `benchmarks/validity.py` holds against it: ids are drawn from the
tables' distributions, torch and FBGEMM do the rest. Every rank holds its share of the batch. A step exchanges ids
(lengths, then values), pools, exchanges pooled values, exchanges their gradients, and updates weights in the backward
pass. There is no dense part: the pooled values serve as gradients. All-to-alls are batches of sends and receives, as
NCCL's are; gloo's own would send one way at a time.

All plans are built first and stay in memory; rounds take them in random order. Ranks have real-time priority, which
keeps other programs off their cores and takes root, as their links do. Plans have whole tables and column shards. Not a
script.
"""

import itertools
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes

from shardgym.costs.fbgemm.namespaces import INTERFACE, ShapedLinks, join_network
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.ids import draw_bags
from shardgym.tasks.task import ShardingTask

#: Different batches that steps take in turn.
BATCHES = 4
_SCALE = 1e-4
#: Seconds that ranks may take to link up.
_LINKS_S = 60.0
#: File of what ranks measured.
TIMES = "times.json"


class Step:
    """The embedding part of a model under one plan, as one rank sees it.

    Args:
        task: batch size, optimiser and precision.
        plan: whole tables and column shards.
        rank: of this process.
    """

    def __init__(self, task: ShardingTask, plan: ShardingPlan, rank: int) -> None:
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        number = {table.name: n for n, table in enumerate(task.tables)}
        self.size = task.num_devices
        self.samples = task.batch_size // self.size
        shards = [plan.on(device) for device in range(self.size)]
        self.tables = [[number[s.table] for s in on] for on in shards]
        self.widths = [sum(s.num_columns for s in on) for on in shards]
        self.width = self.widths[rank]
        self.held = len(shards[rank])
        self.embeddings: Any = None
        if self.held:
            precision = SparseType.FP16 if task.precision == "fp16" else SparseType.FP32
            optimizers = {
                "exact_sgd": EmbOptimType.EXACT_SGD,
                "rowwise_adagrad": EmbOptimType.EXACT_ROWWISE_ADAGRAD,
                "adagrad": EmbOptimType.EXACT_ADAGRAD,
            }
            where = (EmbeddingLocation.HOST, ComputeDevice.CPU)
            rows = [task.table(s.table).num_embeddings for s in shards[rank]]
            self.embeddings = SplitTableBatchedEmbeddingBagsCodegen(
                [(n, s.num_columns, *where) for n, s in zip(rows, shards[rank], strict=True)],
                optimizer=optimizers[task.optimizer],
                learning_rate=0.01,
                weights_precision=precision,
                output_dtype=precision,
            )
            for weights in self.embeddings.split_embedding_weights():
                weights.uniform_(-0.01, 0.01)
        self.dtype = torch.float16 if task.precision == "fp16" else torch.float32
        # Received ids come rank by rank; FBGEMM wants them table by table.
        order = [p * self.held + s for s in range(self.held) for p in range(self.size)]
        self.recat = torch.tensor(order, dtype=torch.int32)

    def __call__(self, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Run one step on this rank's share of a batch: (values, lengths) of every table."""
        values, offsets = self.exchange_ids(batch)
        if self.held:
            pooled = self.embeddings(values, offsets)
        else:
            pooled = torch.zeros(self.samples * self.size, 0, dtype=self.dtype)
        received = torch.empty(self.samples * sum(self.widths), dtype=self.dtype)
        sizes_out = [self.samples * self.width] * self.size
        sizes_in = [self.samples * width for width in self.widths]
        all_to_all(received, pooled.detach().view(-1), sizes_in, sizes_out)
        parts = [part.view(self.samples, -1) for part in received.split(sizes_in) if part.numel()]
        features = torch.cat(parts, dim=1)
        gradients = (features * _SCALE).split([width for width in self.widths if width], dim=1)
        sent = torch.cat([gradient.reshape(-1) for gradient in gradients])
        gradient = torch.empty(self.samples * self.size * self.width, dtype=self.dtype)
        all_to_all(gradient, sent, sizes_out, sizes_in)
        if self.held:
            pooled.backward(gradient.view(-1, self.width))

    def exchange_ids(self, batch: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Send every rank the ids of its shards; return values and offsets of the shards here, table by table."""
        lengths_out = torch.cat([batch[t][1] for tables in self.tables for t in tables])
        values_out = torch.cat([batch[t][0] for tables in self.tables for t in tables])
        counts_out = [sum(len(batch[t][0]) for t in tables) for tables in self.tables]
        lengths = torch.empty(self.size * self.held * self.samples, dtype=torch.int64)
        all_to_all(
            lengths,
            lengths_out,
            [self.held * self.samples] * self.size,
            [len(tables) * self.samples for tables in self.tables],
        )
        counts_in = lengths.view(self.size, -1).sum(dim=1).tolist()
        values = torch.empty(sum(counts_in), dtype=torch.int64)
        all_to_all(values, values_out, counts_in, counts_out)
        if self.held:
            lengths, values, _ = torch.ops.fbgemm.permute_2D_sparse_data(
                self.recat, lengths.view(self.size * self.held, self.samples), values
            )
        return values, torch.ops.fbgemm.asynchronous_complete_cumsum(lengths.view(-1))


def all_to_all(received: torch.Tensor, sent: torch.Tensor, counts_in: list[int], counts_out: list[int]) -> None:
    """Exchange values as NCCL does, by sends and receives that are under way at once; counts are by rank."""
    rank = dist.get_rank()
    incoming, outgoing = received.split(counts_in), sent.split(counts_out)
    incoming[rank].copy_(outgoing[rank])
    peers = [peer for peer in range(len(counts_in)) if peer != rank]
    messages = [dist.P2POp(dist.irecv, incoming[peer], peer) for peer in peers if counts_in[peer]]
    messages += [dist.P2POp(dist.isend, outgoing[peer], peer) for peer in peers if counts_out[peer]]
    for work in dist.batch_isend_irecv(messages) if messages else []:
        work.wait()


def train(
    rank: int, task: ShardingTask, plans: list[ShardingPlan], rounds: int, steps: int, warmups: int, seed: int,
    folder: Path,
) -> None:  # fmt: skip
    """Run all plans on one rank; the first one writes what `real_ms` returns."""
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    size = task.num_devices
    join_network(rank, ShapedLinks.of(task.topology, dilation=1.0), folder, _LINKS_S)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=size)
    samples = task.batch_size // size
    batches = []
    for number in range(BATCHES):
        drawn = [draw_bags(t, samples, seed=seed, batch=number * size + rank) for t in task.tables]
        batches.append([(torch.from_numpy(bags.indices), torch.from_numpy(bags.lengths)) for bags in drawn])
    under = [Step(task, plan, rank) for plan in plans]
    order = random.Random(seed)
    times: list[list[list[float]]] = [[] for _ in plans]
    for _ in range(rounds):
        for n in order.sample(range(len(plans)), len(plans)):
            for number in range(warmups):
                under[n](batches[number % BATCHES])
            dist.barrier()
            marks = [time.perf_counter()]
            for number in range(steps):
                under[n](batches[number % BATCHES])
                marks.append(time.perf_counter())
            mean = torch.tensor([b - a for a, b in itertools.pairwise(marks)], dtype=torch.float64)
            dist.all_reduce(mean)
            times[n].append((mean / size * 1e3).tolist())
    if rank == 0:
        (folder / TIMES).write_text(json.dumps(times))
    dist.destroy_process_group()


def real_ms(
    task: ShardingTask, plans: list[ShardingPlan], *, rounds: int, steps: int, warmups: int, seed: int
) -> list[list[list[float]]]:
    """Return the wall time of steps in ms, mean over ranks, by plan, round and step.

    Args:
        task: with as many devices as divide its batch.
        plans: to run.
        rounds: passes over the plans.
        steps: timed steps of a plan in a round.
        warmups: untimed steps before them.
        seed: of ids and of the order of plans.
    """
    if task.batch_size % task.num_devices:
        raise SystemExit(f"{task.name}: {task.num_devices} devices do not divide the batch of {task.batch_size}")
    times: list[list[list[float]]] = in_ranks("spawn", train, task, plans, rounds, steps, warmups, seed)
    return times


def in_ranks(method: str, target: Callable[..., None], task: ShardingTask, *arguments: Any) -> Any:
    """Run a function in a process per device; returns what it wrote to `TIMES` in the folder that it is given.

    Args:
        method: of starting processes.
        target: called with the rank, the task, the arguments and the folder.
        task: that has the devices.
        arguments: of the function.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start_processes(target, (task, *arguments, folder), nprocs=task.num_devices, start_method=method)
        return json.loads((folder / TIMES).read_text())
