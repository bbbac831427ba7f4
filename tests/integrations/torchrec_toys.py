"""A model with two collections, a planner, and what tests with TorchRec have in common."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)

from shardgym import ShardingPlan, ShardingTask, Topology
from shardgym.torchrec import PlannerSettings, ShardGymPlanner

#: Marks of every test module that needs TorchRec; its own code uses what torch has deprecated.
MARKS = [
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Before 1.7 it asks process groups for their default device.
    pytest.mark.filterwarnings("ignore:.?_get_pg_default_device:UserWarning", "ignore:Multiple backends:UserWarning"),
]


def config(name: str, rows: int, width: int, *features: str, **options: object) -> EmbeddingBagConfig:
    return EmbeddingBagConfig(
        num_embeddings=rows, embedding_dim=width, name=name, feature_names=list(features) or [f"{name}_ids"], **options
    )


def collection(*configs: EmbeddingBagConfig, device: str | None = "meta") -> EmbeddingBagCollection:
    return EmbeddingBagCollection(tables=list(configs), device=None if device is None else torch.device(device))


def remapped() -> nn.Module:
    """A collection with managed collisions, which TorchRec's default sharders shard."""
    bags = collection(config("mc", 100, 16))
    collisions = MCHManagedCollisionModule(
        100, torch.device("meta"), eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=2
    )
    managed = ManagedCollisionCollection({"mc": collisions}, bags.embedding_bag_configs())
    return ManagedCollisionEmbeddingBagCollection(bags, managed)


class Toy(nn.Module):
    """Users in one collection, items in another below, and a dense layer of 15 parameters."""

    def __init__(self, device: str | None = "meta", pooling: PoolingType = PoolingType.SUM) -> None:
        super().__init__()
        self.users = collection(config("id", 100, 16), config("country", 20, 8, pooling=pooling), device=device)
        self.towers = nn.Module()
        self.towers.items = collection(config("id", 50, 24), device=device)
        self.dense = nn.Linear(4, 3, device=device)


def topology(devices: int = 2) -> Topology:
    return Topology(num_devices=devices, memory_bytes=2**20)


class Reversed:
    """A solver of one's own."""

    def solve(self, task: ShardingTask, cost: Any, seed: int = 0) -> ShardingPlan:
        return ShardingPlan.table_wise(
            task, [(task.num_devices - 1 - i) % task.num_devices for i in range(task.num_tables)]
        )


def planner(
    solver: Any = "size_greedy", devices: int = 2, constraints: dict[str, Any] | None = None, seed: int = 0
) -> ShardGymPlanner:
    return ShardGymPlanner(topology(devices), 16, constraints, PlannerSettings(solver, seed=seed))
