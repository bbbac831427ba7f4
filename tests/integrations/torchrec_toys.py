"""A model with two collections, a planner, a function on all ranks, and what tests with TorchRec have in common."""

import dataclasses
import multiprocessing
import pickle
import tempfile
import time
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from shardgym import Shard, ShardingPlan, Topology
from shardgym.torchrec import PlannerSettings, ShardGymPlanner

#: Marks of every test module that needs TorchRec; its own code uses what torch has deprecated.
MARKS = [
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # The dense kernel, on CPUs; whether gradients are right is what tests of training find out.
    pytest.mark.filterwarnings("ignore:fbgemm..dense_embedding_codegen_lookup_function:UserWarning"),
    # Before 1.7 it asks process groups for their default device.
    pytest.mark.filterwarnings("ignore:.?_get_pg_default_device:UserWarning", "ignore:Multiple backends:UserWarning"),
]


def config(name, rows, width, *features, **options):
    return EmbeddingBagConfig(
        num_embeddings=rows, embedding_dim=width, name=name, feature_names=list(features) or [f"{name}_ids"], **options
    )


def collection(*configs, device="meta"):
    return EmbeddingBagCollection(tables=list(configs), device=None if device is None else torch.device(device))


def remapped():
    """A collection with managed collisions, which TorchRec's default sharders shard."""
    bags = collection(config("mc", 100, 16))
    collisions = MCHManagedCollisionModule(
        100, torch.device("meta"), eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=2
    )
    managed = ManagedCollisionCollection({"mc": collisions}, bags.embedding_bag_configs())
    return ManagedCollisionEmbeddingBagCollection(bags, managed)


@dataclasses.dataclass(frozen=True)
class Pieces:
    """Shards of the tables of the collection at `path`: name -> rows, columns."""

    path: str
    tables: dict[str, tuple[int, int]]

    def columns(self, name, *pieces):
        rows = (0, self.tables[name][0])
        return [Shard(f"{self.path}.{name}", rows, (first, end), device) for first, end, device in pieces]

    def rows(self, name, ends, first=0, between=None):
        """Pieces of rows on devices `first` and those after it, of all columns or of some."""
        columns, pairs = between or (0, self.tables[name][1]), zip([0, *ends[:-1]], ends, strict=True)
        return [Shard(f"{self.path}.{name}", pair, columns, first + n) for n, pair in enumerate(pairs)]

    def whole(self, **devices):
        return [s for name, device in devices.items() for s in self.columns(name, (0, self.tables[name][1], device))]

    def everywhere(self, size, *names):
        return [dataclasses.replace(s, devices=range(size)) for s in self.whole(**dict.fromkeys(names, 0))]


def sample(rows, samples, rank, step):
    """Ids of a rank in a step: up to four of each sample and feature, of a table with so many rows."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    lengths = torch.randint(0, 5, (len(rows), samples), generator=generator)
    ids = [
        torch.randint(0, num, (int(of.sum()),), generator=generator)
        for num, of in zip(rows.values(), lengths, strict=True)
    ]
    return KeyedJaggedTensor.from_lengths_sync(list(rows), torch.cat(ids), lengths.flatten())


class Toy(nn.Module):
    """Users in one collection, items in another below, and a dense layer of 15 parameters."""

    def __init__(self, device="meta", pooling=PoolingType.SUM):
        super().__init__()
        self.users = collection(config("id", 100, 16), config("country", 20, 8, pooling=pooling), device=device)
        self.towers = nn.Module()
        self.towers.items = collection(config("id", 50, 24), device=device)
        self.dense = nn.Linear(4, 3, device=device)


def topology(devices=2):
    return Topology(num_devices=devices, memory_bytes=2**20)


class Reversed:
    def solve(self, task, cost, seed=0):
        return ShardingPlan.table_wise(
            task, [(task.num_devices - 1 - i) % task.num_devices for i in range(task.num_tables)]
        )


def planner(solver="size_greedy", devices=2, constraints=None, seed=0):
    return ShardGymPlanner(topology(devices), 16, constraints, PlannerSettings(solver, seed=seed))


#: Seconds until ranks that wait for each other give up, and until the test does.
GROUP_TIMEOUT_S = 120
TIMEOUT_S = 300


def run_ranks(size, function, group_timeout_s=GROUP_TIMEOUT_S):
    """Return what `function(rank)` returns on each rank; exceptions are returned, too, not raised."""
    # Importing TorchRec takes seconds; forked processes have it already.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        processes = []
        pipes = []
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(rank, size, Path(folder) / "store", function, sender, group_timeout_s)
            )
            process.start()
            sender.close()
            processes.append(process)
            pipes.append(receiver)
        results = [AssertionError("the rank did not answer")] * size
        end = time.monotonic() + TIMEOUT_S
        waiting = dict(zip(pipes, range(size), strict=True))
        while waiting and time.monotonic() < end:
            for pipe in wait(list(waiting), timeout=1.0):
                rank = waiting.pop(pipe)
                try:
                    results[rank] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    results[rank] = AssertionError("the rank died")
        for process in processes:
            if waiting:
                process.kill()
            process.join()
    return results


def _run(rank, size, store, function, sender, group_timeout_s):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=group_timeout_s)
    )
    try:
        answer = function(rank)
    except Exception as error:
        answer = error
    try:
        sender.send_bytes(pickle.dumps(answer))
    except Exception as error:  # an exception that cannot be pickled
        sender.send_bytes(pickle.dumps(AssertionError(f"{type(answer).__name__}: {answer} ({error})")))
    dist.destroy_process_group()
