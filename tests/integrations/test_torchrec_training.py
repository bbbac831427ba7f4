"""Plans under DistributedModelParallel: what sharded and unsharded collections compute and learn is the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from ranks import run_ranks
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan as TorchRecPlan
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import Shard, ShardingPlan, ShardingTask, make_cost, make_solver
from shardgym.torchrec import model_from_task, task_from_model, to_torchrec

pytestmark = MARKS

SAMPLES = 6
LEARNING_RATE = 0.1

#: name -> rows, width and features.
TABLES = {"a": (40, 64), "b": (30, 16), "c": (21, 32), "d": (10, 8)}


def columns(name: str, *pieces: tuple[int, int, int]) -> list[Shard]:
    return [Shard(name, (0, TABLES[name][0]), (first, end), device) for first, end, device in pieces]


def rows(name: str, *ends: int) -> list[Shard]:
    """Pieces of rows on devices 0, 1, ..."""
    starts = [0, *ends[:-1]]
    return [Shard(name, (s, e), (0, TABLES[name][1]), d) for d, (s, e) in enumerate(zip(starts, ends, strict=True))]


def whole(**devices: int) -> list[Shard]:
    return [s for name, device in devices.items() for s in columns(name, (0, TABLES[name][1], device))]


#: Plans by the number of ranks and what is special about them.
PLANS: dict[tuple[int, str], list[Shard]] = {
    (2, "table-wise"): whole(a=0, b=1, c=1, d=0),
    (2, "a rank without tables"): whole(a=1, b=1, c=1, d=1),
    (2, "even columns"): [
        *columns("a", (0, 32, 0), (32, 64, 1)), *columns("b", (0, 8, 1), (8, 16, 0)), *whole(c=0, d=1),
    ],
    (2, "uneven columns, several on a rank"): [
        *columns("a", (0, 12, 1), (12, 60, 0), (60, 64, 1)), *columns("c", (0, 4, 0), (4, 32, 0)), *whole(b=1, d=0),
    ],
    (2, "rows"): [*rows("a", 20, 40), *rows("c", 11, 21), *whole(b=1, d=0)],
    (2, "everything"): [*rows("a", 20, 40), *columns("c", (0, 20, 1), (20, 32, 0)), *whole(b=0, d=1)],
    (4, "table-wise"): whole(a=3, b=2, c=1, d=0),
    (4, "uneven columns"): [
        *columns("a", (0, 4, 3), (4, 24, 1), (24, 28, 3), (28, 64, 0)), *columns("c", (0, 28, 2), (28, 32, 1)),
        *whole(b=0, d=0),
    ],
    (4, "rows"): [*rows("a", 10, 20, 30, 40), *rows("c", 6, 12, 18, 21), *whole(b=3, d=2)],
    (4, "rows of one host"): [
        *(Shard("a", (s, s + 20), (0, 64), 2 + s // 20) for s in (0, 20)), *whole(b=1, c=0, d=3),
    ],
}  # fmt: skip


class Differences(NamedTuple):
    """Largest differences from the unsharded collection."""

    output: float
    weights: float


def make_model(device: str) -> nn.Module:
    model = nn.Module()
    configs = [config(name, *shape, pooling=PoolingType.SUM) for name, shape in TABLES.items()]
    model.bags = collection(*configs, device=device)
    return model


def sample(rank: int) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(rank)
    lengths = torch.randint(0, 5, (len(TABLES) * SAMPLES,), generator=generator)
    values = [
        torch.randint(0, TABLES[name][0], (int(lengths[i * SAMPLES : (i + 1) * SAMPLES].sum()),), generator=generator)
        for i, name in enumerate(TABLES)
    ]
    return KeyedJaggedTensor.from_lengths_sync([f"{name}_ids" for name in TABLES], torch.cat(values), lengths)


def outputs(bags: Any, ids: KeyedJaggedTensor) -> torch.Tensor:
    """Pooled values in the order of `TABLES`; sharded collections order their keys by placement."""
    found = bags(ids).to_dict()
    return torch.cat([found[f"{name}_ids"] for name in TABLES], dim=1)


def loss(values: torch.Tensor) -> torch.Tensor:
    return (values * torch.arange(values.shape[1]) / values.shape[1] + values**2).sum()


def train_step(rank: int, size: int, plan: TorchRecPlan) -> Differences:
    torch.manual_seed(0)
    reference = make_model("cpu").bags
    weights = {name: bag.weight.detach().clone() for name, bag in reference.embedding_bags.items()}
    sharder = EmbeddingBagCollectionSharder(
        fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LEARNING_RATE}
    )
    model = DistributedModelParallel(make_model("meta"), device=torch.device("cpu"), plan=plan, sharders=[sharder])
    shards = [
        (key.split(".")[-2], shard.metadata.shard_offsets, shard.tensor)
        for key, tensor in model.state_dict().items()
        for shard in tensor.local_shards()
    ]
    for name, (row, column), tensor in shards:
        tensor.copy_(weights[name][row : row + tensor.shape[0], column : column + tensor.shape[1]])
    values = outputs(model.module.bags, sample(rank))
    expected = outputs(reference, sample(rank))
    output_error = float((values - expected).detach().abs().max())

    loss(values).backward()  # the fused optimizer updates the weights, too
    sum(loss(outputs(reference, sample(r))) for r in range(size)).backward()
    weight_error = 0.0
    for name, (row, column), tensor in shards:
        bag = reference.embedding_bags[name].weight
        updated = (bag - LEARNING_RATE / size * bag.grad).detach()
        assert float((updated - weights[name]).abs().max()) > 0.01
        change = updated[row : row + tensor.shape[0], column : column + tensor.shape[1]] - tensor
        weight_error = max(weight_error, float(change.abs().max()))
    return Differences(output_error, weight_error)


@pytest.fixture(scope="module")
def trained() -> Callable[[int, str], Differences]:
    """All plans of one number of ranks are trained in one start of the processes."""
    found: dict[tuple[int, str], list[Any]] = {}

    def train(size: int, name: str) -> Differences:
        if (size, name) not in found:
            task = task_from_model(make_model("meta"), topology(size), SAMPLES * size)
            plans = {
                key: to_torchrec(
                    ShardingPlan.of(task, [with_path(s) for s in shards]), task, make_model("meta"),
                    device_type="cpu", ranks_per_host=2,
                )
                for key, shards in PLANS.items() if key[0] == size
            }  # fmt: skip
            os.environ["LOCAL_WORLD_SIZE"] = "2"
            answers = run_ranks(size, lambda rank: {key: train_step(rank, size, plan) for key, plan in plans.items()})
            del os.environ["LOCAL_WORLD_SIZE"]
            errors = [answer for answer in answers if isinstance(answer, Exception)]
            if errors:
                raise ExceptionGroup("ranks failed", errors)
            for key in plans:
                found[key] = [answer[key] for answer in answers]
        return Differences(*map(max, zip(*found[size, name], strict=True)))

    return train


def with_path(shard: Shard) -> Shard:
    return Shard(f"bags.{shard.table}", shard.rows, shard.columns, shard.devices[0])


@pytest.mark.parametrize(
    ("size", "name"), [pytest.param(*key, marks=pytest.mark.slow) if key[0] > 2 else key for key in PLANS]
)
def test_outputs_and_updated_weights_equal_the_unsharded_ones(trained: Any, size: int, name: str) -> None:
    difference = trained(size, name)
    assert difference.output < 1e-5
    assert difference.weights < 1e-5


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
