"""TorchRec's own training step under plans of a task: `DistributedModelParallel` over gloo, a process per device.

A small DLRM trains: the task's tables in one collection, and a dense part. Each rank is in a network namespace and has
a full-duplex link of known rate. Plans take turns in random order in every round, and each turn builds the model anew.
Between them the dense part is trained alone, on outputs of the tables that do not change: costs are of embeddings, so
its time is to be taken off the steps.
"""

import json
import logging
import os
import random
import statistics
import time
import warnings
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from real_step import TIMES, in_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym import ShardingPlan, ShardingTask
from shardgym.arrays import Floats
from shardgym.costs.fbgemm import namespaces
from shardgym.tables.ids import draw_bags
from shardgym.torchrec import model_from_task, to_torchrec

#: Ranks of a host.
HOST = 2
#: Different batches that steps take in turn.
BATCHES = 3
WARMUPS = 2
DENSE_FEATURES = 13
HIDDEN = 64
_LINKS_S = 60.0


class Dense(nn.Module):
    """Pooled values and transformed dense features, concatenated, into a network with one output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE_FEATURES, HIDDEN), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, features: torch.Tensor, pooled: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return one number per sample."""
        values: torch.Tensor = self.top(torch.cat([self.bottom(features), *pooled], dim=1))
        return values.squeeze(1)


class Dlrm(nn.Module):
    """All tables in one collection, and the dense part."""

    def __init__(self, task: ShardingTask) -> None:
        super().__init__()
        self.names = [table.name for table in task.tables]
        self.tables = model_from_task(task)
        self.dense = Dense(sum(table.embedding_dim for table in task.tables))

    def forward(self, features: torch.Tensor, sparse: KeyedJaggedTensor) -> torch.Tensor:
        """Return one number per sample."""
        pooled = self.tables(sparse).to_dict()
        values: torch.Tensor = self.dense(features, [pooled[name] for name in self.names])
        return values


def make_batches(
    task: ShardingTask, rank: int, seed: int
) -> list[tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]]:
    """Return dense features, ids and labels of a rank's share of the batch."""
    ranks = task.num_devices
    samples = task.batch_size // ranks
    generator = torch.Generator().manual_seed(seed * ranks + rank)
    batches = []
    for number in range(BATCHES):
        bags = [draw_bags(table, samples, seed=seed * ranks + rank, batch=number) for table in task.tables]
        ids = KeyedJaggedTensor.from_lengths_sync(
            [table.name for table in task.tables],
            torch.from_numpy(np.concatenate([bag.indices for bag in bags])),
            torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
        )
        features = torch.randn(samples, DENSE_FEATURES, generator=generator)
        batches.append((features, ids, (features.sum(dim=1) > 0).float()))
    return batches


def train(
    rank: int, task: ShardingTask, plans: list[ShardingPlan], rounds: int, steps: int, seed: int, folder: Path
) -> None:
    """Train every plan, and the dense part alone, in every round.

    The first rank writes ms of the plans and, last, of the dense part.
    """
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    ranks = task.num_devices
    os.environ |= {"GLOO_SOCKET_IFNAME": namespaces.INTERFACE, "LOCAL_WORLD_SIZE": str(HOST)}
    namespaces.join_network(rank, namespaces.ShapedLinks.of(task.topology, dilation=1.0), folder, _LINKS_S)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    batches = make_batches(task, rank, seed)
    jobs = [*plans, None]
    taken: list[list[float]] = [[] for _ in jobs]
    order = list(range(len(jobs)))
    shuffle = random.Random(seed)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for number in order:
            torch.manual_seed(0)
            plan = jobs[number]
            run = _dense_steps(task) if plan is None else _model_steps(task, plan)
            times = _timed(run, batches, steps)
            dist.all_reduce(times, op=dist.ReduceOp.MAX)  # the slowest rank of each step
            taken[number].append(float(times.median()))
    if rank == 0:
        (folder / TIMES).write_text(json.dumps([statistics.median(by_round) for by_round in taken]))
    dist.destroy_process_group()


def _model_steps(task: ShardingTask, plan: ShardingPlan) -> Any:
    """Return a function that gives the output of the sharded model, and its optimisers for what TorchRec's is not."""
    model = Dlrm(task)
    exported = to_torchrec(plan, task, device_type="cpu").plan[""]
    copied = [name for name, sharding in exported.items() if sharding.sharding_type == "data_parallel"]
    sharder = EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.01})
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=TorchRecPlan({"tables": exported}), sharders=[sharder]
    )
    own = [
        parameter
        for name, parameter in sharded.named_parameters()
        if "embedding_bags" not in name or name.split(".")[-2] in copied
    ]
    return sharded, torch.optim.SGD(own, lr=0.01)


def _dense_steps(task: ShardingTask) -> Any:
    """Return the same for the dense part, whose input stays as it is; gradients reach it nevertheless."""
    dense = DistributedDataParallel(Dense(sum(table.embedding_dim for table in task.tables)))
    samples = task.batch_size // task.num_devices
    pooled = [torch.randn(samples, table.embedding_dim, requires_grad=True) for table in task.tables]
    return lambda features, _: dense(features, pooled), torch.optim.SGD(dense.parameters(), lr=0.01)


def _timed(run: Any, batches: list[Any], steps: int) -> torch.Tensor:
    """Return ms of each step, shape (steps,)."""
    model, optimizer = run
    loss = nn.BCEWithLogitsLoss()
    times = torch.zeros(steps, dtype=torch.float64)
    for step in range(-WARMUPS, steps):
        features, ids, labels = batches[step % BATCHES]
        dist.barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        loss(model(features, ids), labels).backward()
        optimizer.step()
        if step >= 0:
            times[step] = 1000 * (time.perf_counter() - start)
    return times


def real_ms(task: ShardingTask, plans: list[ShardingPlan], rounds: int, steps: int, seed: int) -> Floats:
    """Train all plans in new processes; ms, shape (plans + 1,), dense last."""
    # Forked processes have imported TorchRec already, which takes seconds.
    return np.array(in_ranks("fork", train, task, plans, rounds, steps, seed))
