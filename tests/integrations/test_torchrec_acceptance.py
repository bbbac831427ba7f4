"""Plans on every kind of rank of large jobs, without processes: TorchRec builds what they say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import ShardingPlan, ShardingTask, make_cost, make_solver
from shardgym.torchrec import model_from_task, task_from_model, to_torchrec

pytestmark = MARKS


@pytest.fixture
def fake_group() -> Iterator[Callable[[int, int], None]]:
    def start(rank: int, size: int) -> None:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)

    yield start
    if dist.is_initialized():
        dist.destroy_process_group()


def build(model: nn.Module, plan: TorchRecPlan) -> DistributedModelParallel:
    sharders = [EmbeddingBagCollectionSharder()]
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=sharders, init_data_parallel=False
    )


def solved(task: ShardingTask, solver: str) -> ShardingPlan:
    return make_solver(solver).solve(task, make_cost("roofline"))


@pytest.mark.parametrize(
    ("size", "solver", "ranks"), [(8, "neuroshard_plus", (0, 7)), (64, "column_greedy", (0, 33, 63))]
)
def test_large_plans_are_accepted_on_every_kind_of_rank(
    fake_group: Any, size: int, solver: str, ranks: Sequence[int]
) -> None:
    configs = [config(f"t{i}", 100 + i, 16 * (1 + i % 4)) for i in range(40)]
    task = task_from_model(collection(*configs), topology(size), 64 * size)
    plan = solved(task, solver)
    exported = to_torchrec(plan, task, collection(*configs), device_type="cpu")
    for rank in ranks:
        fake_group(rank, size)
        model = build(model_from_task(task), exported)
        expected = [
            (shard.table, [0, shard.columns[0]], [shard.num_rows, shard.num_columns]) for shard in plan.on(rank)
        ]
        assert held_shards(model.module) == expected
        dist.destroy_process_group()


def held_shards(sharded: Any) -> list[tuple[str, list[int], list[int]]]:
    """Tables, offsets and sizes that a sharded collection has kernels for; with a fake group it has no other state."""
    tables = [
        table
        for lookup in sharded._lookups
        for kernel in lookup._emb_modules
        for table in kernel._config.embedding_tables
    ]
    return sorted((t.name, t.local_metadata.shard_offsets, t.local_metadata.shard_sizes) for t in tables)


def test_two_collections_of_one_model_are_both_sharded(fake_group: Any) -> None:
    task = task_from_model(Toy(), topology(8), 64)
    fake_group(0, 8)
    plan = solved(task, "size_greedy")
    model = build(Toy(), to_torchrec(plan, task, Toy(), device_type="cpu"))
    held = [table for part in (model.module.users, model.module.towers.items) for table in held_shards(part)]
    assert held == [(s.table.rpartition(".")[2], [0, 0], [s.num_rows, s.num_columns]) for s in plan.on(0)]
