"""`EmbeddingCollection`s as unpooled tables: in, out, planned, and trained as unsharded ones are."""

import dataclasses
import functools

import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from test_torchrec_training import Kind, train, train_all
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec_toys import MARKS, Pieces, collection, config, sample, topology

from shardgym import InputError, ShardingPlan, Topology
from shardgym.torchrec import (
    PlannerSettings,
    ShardGymPlanner,
    export_plan,
    from_torchrec,
    model_from_task,
    task_from_model,
    to_torchrec,
)

pytestmark = MARKS

SAMPLES = 6
WIDTH = 16
#: name -> rows, features: one is shared.
TABLES = {"a": (40, 2), "b": (30, 1), "c": (21, 1), "d": (10, 1)}
FEATURES = {f"{name}{n}": rows for name, (rows, count) in TABLES.items() for n in range(count)}


def make_model(device):
    configs = [
        EmbeddingConfig(
            num_embeddings=rows, embedding_dim=WIDTH, name=name, feature_names=[f"{name}{n}" for n in range(count)]
        )
        for name, (rows, count) in TABLES.items()
    ]
    model = nn.Module()
    model.words = EmbeddingCollection(tables=configs, device=torch.device(device))
    return model


def task_of(size):
    hosts = dataclasses.replace(topology(size), fast_domain_size=2)
    return task_from_model(make_model("meta"), hosts, SAMPLES * size, optimizer="exact_sgd")


PIECES = Pieces("words", {name: (rows, WIDTH) for name, (rows, _) in TABLES.items()})
by_columns, by_rows, whole = PIECES.columns, PIECES.rows, PIECES.whole


TW, CW, RW = "table_wise", "column_wise", "row_wise"
#: By the number of ranks and what is special: a plan, and the types of tables a to d when it leaves.
PLANS = {
    (2, "a rank without tables"): (whole(a=1, b=1, c=1, d=1), (TW, TW, TW, TW)),
    (2, "columns"): (
        [*by_columns("a", (0, 8, 1), (8, 16, 0)), *by_columns("b", (0, 4, 0), (4, 8, 1), (8, 16, 0)), *whole(c=1, d=0)],
        (CW, CW, TW, TW),
    ),
    (2, "everything"): (
        [*by_rows("a", (20, 40)), *by_columns("b", (0, 12, 1), (12, 16, 0)), *whole(c=0, d=1)], (RW, CW, TW, TW),
    ),
    (4, "columns of one host"): (
        [*by_columns("a", (0, 8, 3), (8, 16, 2)), *whole(b=1, c=0, d=2)], (CW, TW, TW, TW),
    ),
}  # fmt: skip


def rows_of(collection, ids):
    found = collection(ids)
    return torch.cat([found[feature].values() for feature in FEATURES])


def loss_of(rows):
    return (rows * torch.arange(WIDTH) + rows**2).sum() / 10


#: With all ids: what makes them distinct, `fbgemm::jagged_unique_indices`, runs on GPUs alone.
UNPOOLED = Kind(make_model, rows_of, functools.partial(sample, FEATURES, SAMPLES), loss_of, EmbeddingCollectionSharder)


def test_losses_rows_and_weights_equal_the_unsharded_ones():
    task = task_of(2)
    plans = {
        name: to_torchrec(ShardingPlan.of(task, shards), task, make_model("meta"), device_type="cpu")
        for (size, name), (shards, _) in PLANS.items() if size == 2
    }  # fmt: skip
    jobs = {name: functools.partial(train, plan=plan, kind=UNPOOLED) for name, plan in plans.items()}
    found = train_all(2, jobs)
    close = {name: of.operators for name, of in found.items() if max(of.output, of.weights) < 1e-5 and of.loss < 1e-4}
    assert close == {name: len(set(types)) for (size, name), (_, types) in PLANS.items() if size == 2}


@pytest.mark.parametrize(("size", "name"), PLANS)
def test_plans_leave_in_the_types_of_an_embedding_collection_and_come_back(size, name):
    shards, types = PLANS[size, name]
    task = task_of(size)
    plan = ShardingPlan.of(task, shards)
    exported = export_plan(plan, task, make_model("meta"), device_type="cpu")
    module = exported.sharding_plan.plan["words"]
    assert tuple(sharding.sharding_type for sharding in module.values()) == types
    widths = {
        shard.shard_sizes[1] for s in module.values() if s.sharding_type == CW for shard in s.sharding_spec.shards
    }
    assert len(widths) <= 1
    narrowed = any("pieces of an EmbeddingCollection have one width" in note for note in exported.notes)
    assert narrowed == (widths == {4})
    if not narrowed:
        assert from_torchrec(exported.sharding_plan, task) == plan


def test_tables_of_a_model_are_unpooled_and_shared_by_their_features():
    model = make_model("meta")
    model.bags = collection(config("e", 50, 8))
    ids = dict.fromkeys(("words.a", "words.b", "words.c", "words.d", "bags.e"), 3.0)
    task = task_from_model(model, topology(), 16, pooling_factors=ids, dedup_ids=True)
    assert {t.name: (t.pooling, t.num_features) for t in task.tables} == {
        "words.a": ("none", 2), "words.b": ("none", 1), "words.c": ("none", 1), "words.d": ("none", 1),
        "bags.e": ("sum", 1),
    }  # fmt: skip
    assert task.dedup_ids
    again = task_from_model(model_from_task(task), topology(), 16, pooling_factors=ids, dedup_ids=True)
    assert sorted(again.tables, key=lambda t: t.name) == sorted(task.tables, key=lambda t: t.name)


def test_what_torchrec_cannot_do_with_an_embedding_collection_is_refused():
    task = task_of(4)
    domain = ShardingPlan.of(task, [*by_rows("a", (20, 40), first=2), *whole(b=0, c=0, d=0)])
    with pytest.raises(InputError, match=r"table 'words.a' is unpooled and table_row_wise: TorchRec cuts rows of an"):
        to_torchrec(domain, task, device_type="cpu")
    pooled = dataclasses.replace(task, tables=tuple(dataclasses.replace(t, pooling="sum") for t in task.tables))
    plan = ShardingPlan.table_wise(pooled, [0, 1, 2, 3])
    with pytest.raises(InputError, match=r"table 'words.a' is unpooled there, and pooled in the task"):
        to_torchrec(plan, pooled, make_model("meta"), device_type="cpu")
    copied = ShardingPlan.of(task, [*PIECES.everywhere(4, "a"), *whole(b=0, c=0, d=0)])
    with pytest.raises(InputError, match="unpooled and data_parallel: FBGEMM's dense kernel pools rows on CPUs"):
        to_torchrec(copied, task, device_type="cpu")
    assert from_torchrec(to_torchrec(copied, task), task) == copied
    mixed = dataclasses.replace(task, tables=(pooled.tables[0], *task.tables[1:]))
    with pytest.raises(InputError, match="in one collection, and only the first is pooled"):
        to_torchrec(ShardingPlan.table_wise(mixed, [0, 1, 2, 3]), mixed, device_type="cpu")
    with pytest.raises(InputError, match="in one collection, and only one of them is pooled"):
        model_from_task(mixed)
    first, *others = task.tables
    wide = dataclasses.replace(task, tables=(dataclasses.replace(first, embedding_dim=32), *others))
    with pytest.raises(InputError, match="32 and 16 columns"):
        model_from_task(wide)


def test_the_planner_plans_both_kinds_of_collections():
    model = make_model("meta")
    model.bags = collection(config("e", 50, 8))
    sharders = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder(use_index_dedup=True)]
    ours = ShardGymPlanner(Topology.preset("dgx-h100", 4), 16, settings=PlannerSettings("neuroshard_plus"))
    plan = ours.plan(model, sharders)
    assert sorted(plan.plan) == ["bags", "words"]
    assert ours.last.task.dedup_ids
    assert not ours.last.task.table("words.a").is_pooled
    theirs = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.ADAM}), sharders[1]]
    with pytest.raises(InputError, match="sharders of the model's collections set different optimizers"):
        ours.plan(model, theirs)
