"""Tasks from models, and models from tasks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Toy, collection, config, topology

from shardgym import EmbeddingTable, InputError, ShardingTask, UniformIds, ZipfIds, load_suite
from shardgym.ids import draw_bags
from shardgym.torchrec import Reserve, import_model, model_from_task, task_from_model

pytestmark = MARKS


def test_every_collection_becomes_tables_named_after_their_places() -> None:
    task = task_from_model(Toy(), topology(), 64)
    assert [(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables] == [
        ("users.id", 100, 16),
        ("users.country", 20, 8),
        ("towers.items.id", 50, 24),
    ]
    assert (task.batch_size, task.precision, task.optimizer) == (64, "fp32", "exact_sgd")
    assert task.topology == topology()


def test_a_bare_collection_has_no_path() -> None:
    assert [t.name for t in task_from_model(collection(config("a", 5, 4)), topology(), 8).tables] == ["a"]


def test_what_is_assumed_is_said_in_the_name_of_the_task() -> None:
    imported = import_model(Toy(), topology(), 64)
    assert imported.assumed == (
        "1 id per sample for 3 of 3 tables",
        "ids spread evenly over rows",
        "optimizer exact_sgd, which keeps no state",
    )
    assert imported.task.name.startswith("Toy; assumed: 1 id per sample")
    known = import_model(Toy(), topology(), 64, pooling_factors=[3, 1, 2], optimizer="adam")
    assert known.assumed == ("ids spread evenly over rows",)


@pytest.mark.parametrize(
    "given",
    [
        {"pooling_factors": [3.0, 1.0, 2.5]},
        {"pooling_factors": {"users.id": 3.0, "towers.items.id": 2.5}},
        {
            "constraints": {
                "users.id": ParameterConstraints(pooling_factors=[3.0]),
                "country": ParameterConstraints(),
                "towers.items.id": ParameterConstraints(pooling_factors=[2.5]),
            }
        },
    ],
)
def test_pooling_factors_come_from_numbers_or_constraints(given: dict[str, object]) -> None:
    task = task_from_model(Toy(), topology(), 64, **given)
    assert [t.pooling_factor for t in task.tables] == [3.0, 1.0, 2.5]


def _sample(task: ShardingTask, features: dict[str, str], samples: int) -> KeyedJaggedTensor:
    bags = [draw_bags(task.table(name), samples, seed=3) for name in features.values()]
    return KeyedJaggedTensor.from_lengths_sync(
        keys=list(features),
        values=torch.from_numpy(np.concatenate([bag.indices for bag in bags])),
        lengths=torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
    )


def test_a_sample_gives_pooling_factor_skew_and_reuse() -> None:
    model = collection(config("even", 5000, 8), config("skewed", 5000, 8))
    truth = ShardingTask(
        tables=(
            EmbeddingTable("even", 5000, 8, 2.0),
            EmbeddingTable("skewed", 5000, 8, 7.0, ids=ZipfIds(1.2, lengths="poisson")),
        ),
        topology=topology(),
        batch_size=512,
    )
    sample = _sample(truth, {"skewed_ids": "skewed", "even_ids": "even"}, 1024)
    task = task_from_model(model, topology(), 512, sample=sample)
    even, skewed = task.tables
    assert even.pooling_factor == 2.0
    assert skewed.pooling_factor == pytest.approx(7.0, rel=0.05)
    assert isinstance(skewed.ids, ZipfIds)
    assert skewed.ids.s == pytest.approx(1.2, abs=0.05)
    assert skewed.ids.lengths == "poisson"
    assert isinstance(even.ids, UniformIds) or even.ids.s < 0.3
    assert even.ids.lengths == "fixed"
    assert sum(skewed.reuse_histogram or ()) == pytest.approx(1)
    assert import_model(model, topology(), 512, sample=sample, optimizer="adam").assumed == ()


def test_a_sample_smaller_than_the_batch_gives_no_reuse() -> None:
    model = collection(config("a", 50, 8))
    sample = _sample(task_from_model(model, topology(), 64, pooling_factors=[2]), {"a_ids": "a"}, 63)
    table = task_from_model(model, topology(), 64, sample=sample).tables[0]
    assert table.reuse_histogram is None
    assert table.pooling_factor == 2.0


def test_shared_tables_are_refused_or_counted_as_one_bag() -> None:
    model = collection(config("a", 50, 8, "x", "y"))
    with pytest.raises(InputError, match=r"table 'a' is shared by features x, y.*shared_tables='add'"):
        task_from_model(model, topology(), 64)
    constraints = {"a": ParameterConstraints(pooling_factors=[3.0, 4.0])}
    imported = import_model(model, topology(), 64, constraints=constraints, shared_tables="add")
    assert imported.task.tables[0].pooling_factor == 7.0
    assert any("shared" in line for line in imported.assumed)
    with pytest.raises(InputError, match="a pooling factor for each of its 2 features, got 1"):
        task_from_model(model, topology(), 64, constraints={"a": ParameterConstraints()}, shared_tables="add")


def test_the_optimizer_is_the_one_that_was_attached() -> None:
    model = Toy(device="cpu")
    apply_optimizer_in_backward(torch.optim.Adagrad, model.users.parameters(), {"lr": 0.1})
    with pytest.raises(InputError, match="attached to tables: Adagrad, NoneType"):
        task_from_model(model, topology(), 64)
    apply_optimizer_in_backward(torch.optim.Adagrad, model.towers.items.parameters(), {"lr": 0.1})
    assert task_from_model(model, topology(), 64).optimizer == "adagrad"
    assert task_from_model(model, topology(), 64, optimizer="adam").optimizer == "adam"


def test_a_reserve_leaves_less_memory_to_tables() -> None:
    reserve = Reserve(share=0.25, dense_copies=6, input_copies=20, extra_bytes=1000)
    imported = import_model(Toy(), topology(), 64, pooling_factors=[3, 1, 2], reserve=reserve)
    expected = 2**18 + 6 * 15 * 4 + 20 * (64 // 2) * 6 * 8 + 1000
    assert imported.reserved_bytes == (expected, expected)
    assert imported.task.topology.memory_bytes == (2**20 - expected,) * 2
    with pytest.raises(InputError, match="nothing is left for tables"):
        task_from_model(Toy(), topology(), 64, reserve=Reserve(extra_bytes=2**20))
    with pytest.raises(InputError, match="Reserve: share: expected at most 1, got 15"):
        Reserve(share=15)


def test_fp16_is_read_and_other_types_are_refused() -> None:
    half = collection(config("a", 50, 8, data_type=DataType.FP16))
    assert task_from_model(half, topology(), 64).precision == "fp16"
    with pytest.raises(InputError, match="table 'a' has weights of BF16"):
        task_from_model(collection(config("a", 50, 8, data_type=DataType.BF16)), topology(), 64)
    mixed = collection(config("a", 50, 8, data_type=DataType.FP16), config("b", 50, 8))
    with pytest.raises(InputError, match="different types"):
        task_from_model(mixed, topology(), 64)


def _shared_collection() -> nn.Module:
    model = nn.Module()
    model.one = model.two = collection(config("a", 50, 8))
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "Linear has no EmbeddingBagCollection"),
        ("model", {}, "model: expected a Module"),
        (_shared_collection(), {}, "at 'one' and at 'two'"),
        (collection(config("a", 50, 6)), {}, "6 columns.*divisible by 4; pad the table to 8"),
        (Toy(), {"pooling_factors": {"id": 2}}, "users.id and towers.items.id are called 'id'"),
        (Toy(), {"pooling_factors": {"contry": 2}}, "did you mean country"),
        (Toy(), {"pooling_factors": [1, 2]}, "one for each of 3 tables, got 2"),
        (Toy(), {"pooling_factors": 3}, "pooling_factors: expected numbers by table"),
        (Toy(), {"pooling_factors": [1, 1, -1]}, "pooling_factor: expected at least 0"),
        (Toy(), {"pooling_factors": [1, 1, 1], "constraints": {}}, "give one of them"),
        (Toy(), {"sample": {}}, "unknown feature in the sample 'id_ids'"),
        (Toy(), {"optimizer": "adamw"}, "optimizer: expected"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model: nn.Module, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        task_from_model(model, topology(), 64, **options)


def test_ids_of_a_sample_must_be_rows() -> None:
    sample = KeyedJaggedTensor.from_lengths_sync(["a_ids"], torch.tensor([1, 50]), torch.tensor([1, 1]))
    with pytest.raises(InputError, match=r"id 50 is no row of table 'a' \(50 rows\)"):
        task_from_model(collection(config("a", 50, 8)), topology(), 64, sample=sample)


def test_a_model_from_a_task_has_the_tasks_tables() -> None:
    for task in (task_from_model(Toy(), topology(), 64), load_suite("tiny-v1")[0]):
        again = task_from_model(model_from_task(task), task.topology, task.batch_size)
        assert [(t.name, t.num_embeddings, t.embedding_dim) for t in sorted(again.tables, key=lambda t: t.name)] == [
            (t.name, t.num_embeddings, t.embedding_dim) for t in sorted(task.tables, key=lambda t: t.name)
        ]
        assert all(p.is_meta for p in model_from_task(task).parameters())


def test_names_that_no_module_can_have_are_refused() -> None:
    task = task_from_model(collection(config("a", 50, 8)), topology(), 64)
    for name in ("x..a", ".a", "a."):
        with pytest.raises(InputError, match="cannot be in a model"):
            model_from_task(dataclasses.replace(task, tables=(dataclasses.replace(task.tables[0], name=name),)))
    both = (task.tables[0], dataclasses.replace(task.tables[0], name="x.a"))
    with pytest.raises(InputError, match="table 'a' is in no module"):
        model_from_task(dataclasses.replace(task, tables=both))
