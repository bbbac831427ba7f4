"""Tasks from models, and models from tasks."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torchrec.modules", reason="needs TorchRec: tox -e torchrec")

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType, EmbeddingConfig, PoolingType, QuantConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.feature_processor_ import PositionWeightedModule
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.quant.embedding_modules import EmbeddingBagCollection as QuantEmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec_toys import MARKS, Toy, collection, config, remapped, topology

from shardgym import EmbeddingTable, InputError, ShardingTask, StepMemory, UniformIds, ZipfIds, load_suite
from shardgym.tables.ids import draw_bags
from shardgym.tables.row_access import access_share
from shardgym.torchrec import Reserve, import_model, model_from_task, task_from_model

pytestmark = MARKS


def test_what_is_assumed_is_said_in_the_name_of_the_task():
    imported = import_model(Toy(), topology(), 64)
    assert imported.assumed == (
        "1 id per sample and feature for 3 of 3 tables",
        "ids spread evenly over rows",
        "optimizer exact_sgd, which keeps no state",
    )
    assert imported.task.name.startswith("Toy; assumed: 1 id per sample and feature")
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
                "towers.items.id": ParameterConstraints(pooling_factors=[2.5]),
            }
        },
    ],
)
def test_pooling_factors_come_from_numbers_or_constraints(given):
    task = task_from_model(Toy(), topology(), 64, **given)
    assert [t.pooling_factor for t in task.tables] == [3.0, 1.0, 2.5]


def _sample(task, features, samples):
    bags = [draw_bags(task.table(name), samples, seed=3) for name in features.values()]
    return KeyedJaggedTensor.from_lengths_sync(
        keys=list(features),
        values=torch.from_numpy(np.concatenate([bag.indices for bag in bags])),
        lengths=torch.from_numpy(np.concatenate([bag.lengths for bag in bags])),
    )


def test_a_sample_gives_pooling_factor_reuse_where_hot_rows_lie_and_how_long_users_stay():
    model = collection(config("even", 5000, 8), config("skewed", 5000, 8))
    hot_rows_first = ZipfIds(1.1, row_order="by_frequency", lengths="poisson")
    truth = ShardingTask(
        tables=(
            EmbeddingTable("even", 5000, 8, 2.0),
            EmbeddingTable("skewed", 5000, 8, 7.0, ids=hot_rows_first, run_length=2),
        ),
        topology=topology(),
        batch_size=4096,
    )
    sample = _sample(truth, {"skewed_ids": "skewed", "even_ids": "even"}, 4096)
    task = task_from_model(model, topology(), 4096, sample=sample)
    even, skewed = task.tables
    assert even.pooling_factor == 2.0
    assert skewed.pooling_factor == pytest.approx(7.0, rel=0.05)
    assert skewed.ids.lengths == "poisson"
    for start, stop in ((0, 1250), (1250, 2500), (2500, 5000)):
        expected = access_share(truth.table("skewed"), start, stop)
        assert access_share(skewed, start, stop) == pytest.approx(expected, abs=0.01)
    assert skewed.run_length == pytest.approx(2, rel=0.1)
    assert isinstance(even.ids, UniformIds) or even.ids.s < 0.3
    assert even.ids.lengths == "fixed"
    assert sum(skewed.reuse_histogram or ()) == pytest.approx(1)
    assert import_model(model, topology(), 4096, sample=sample, optimizer="adam").assumed == ()


def test_a_sample_smaller_than_the_batch_gives_no_reuse():
    model = collection(config("a", 50, 8))
    sample = _sample(task_from_model(model, topology(), 64, pooling_factors=[2]), {"a_ids": "a"}, 63)
    table = task_from_model(model, topology(), 64, sample=sample).tables[0]
    assert table.reuse_histogram is None
    assert table.pooling_factor == 2.0
    with pytest.raises(InputError, match=r"is not a row of table 'a' \(5 rows\), one of \d+ such ids of 126 "):
        task_from_model(collection(config("a", 5, 8)), topology(), 64, sample=sample)


def test_features_that_share_a_table_are_counted_as_they_are():
    model = collection(config("a", 50, 8, "x", "y"), config("b", 50, 8))
    constraints = {"a": ParameterConstraints(pooling_factors=[3.0, 4.0])}
    shared, alone = task_from_model(model, topology(), 64, constraints=constraints).tables
    assert (shared.num_features, shared.pooling_factor) == (2, 7.0)
    assert (alone.num_features, alone.pooling_factor) == (1, 1.0)
    imported = import_model(model, topology(), 64, constraints={"a": ParameterConstraints()})
    assert imported.task.tables[0].pooling_factor == 2.0
    assert imported.assumed[0] == "1 id per sample and feature for 2 of 2 tables"
    for factors in ([2.0], 2.0, [-1.0, 2.0]):
        with pytest.raises(InputError, match="expected a number for each of its 2 features, at least 0, got "):
            task_from_model(model, topology(), 64, constraints={"a": ParameterConstraints(pooling_factors=factors)})
    with pytest.raises(InputError, match="constraints of 'a': expected a ParameterConstraints, got dict"):
        task_from_model(model, topology(), 64, constraints={"a": {"pooling_factors": [2.0]}})


def test_what_is_said_of_a_name_counts_for_all_tables_that_are_called_so():
    """TorchRec's constraints know no paths; whoever gives one means that table."""
    twice = {"id": ParameterConstraints(pooling_factors=[3.0])}
    both = task_from_model(Toy(), topology(), 64, constraints=twice)
    assert [table.pooling_factor for table in both.tables] == [3.0, 1.0, 3.0]
    for order in (1, -1):
        given = dict(list({"id": 3.0, "users.id": 2.0}.items())[::order])
        one = task_from_model(Toy(), topology(), 64, pooling_factors=given)
        assert [table.pooling_factor for table in one.tables] == [2.0, 1.0, 3.0]


def test_poolings_and_batches_of_features_are_bags_of_a_sample():
    model = collection(config("a", 50, 8, "x", "y"))
    twice = ParameterConstraints(pooling_factors=[3.0, 4.0], num_poolings=[2.0, 1.0])
    (table,) = task_from_model(model, topology(2), 64, constraints={"a": twice}).tables
    assert (table.num_features, table.pooling_factor) == (3, 10.0)
    larger = ParameterConstraints(pooling_factors=[3.0, 4.0], batch_sizes=[32, 96])
    (table,) = task_from_model(model, topology(2), 64, constraints={"a": larger}).tables
    assert (table.num_features, table.pooling_factor) == (4, 15.0)
    odd = ParameterConstraints(pooling_factors=[3.0, 4.0], batch_sizes=[32, 40])
    with pytest.raises(InputError, match=r"strict: batch_sizes of 'a' is not followed"):
        import_model(model, topology(2), 64, constraints={"a": odd}, strict=True)


def test_the_optimizer_of_each_table_is_the_one_that_was_attached():
    model = Toy(device="cpu")
    apply_optimizer_in_backward(torch.optim.Adagrad, model.users.parameters(), {"lr": 0.1})
    imported = import_model(model, topology(), 64)
    assert imported.task.optimizer == "adagrad"
    assert [t.optimizer for t in imported.task.tables] == [None, None, "exact_sgd"]
    assert imported.assumed[-1] == "optimizer exact_sgd for 1 of 3 tables, which keeps no state"
    default = import_model(model, topology(), 64, default_optimizer="adam")
    assert [default.task.optimizer_of(t) for t in default.task.tables] == ["adagrad", "adagrad", "adam"]
    assert default.assumed == imported.assumed[:-1]
    task = task_from_model(model, topology(), 64, optimizer="adam")
    assert (task.optimizer, {t.optimizer for t in task.tables}) == ("adam", {None})
    apply_optimizer_in_backward(torch.optim.RMSprop, model.towers.items.parameters(), {"lr": 0.1})
    with pytest.raises(InputError, match=r"attached to table 'towers.items.id': RMSprop; expected one of SGD"):
        task_from_model(model, topology(), 64)


def test_what_devices_carry_is_taken_off_their_memory():
    imported = import_model(Toy(), topology(), 64, carried_bytes=[1000, 0])
    assert imported.reserved_bytes == (1000, 0)
    assert imported.task.topology.memory_bytes == (2**20 - 1000, 2**20)
    both = import_model(Toy(), topology(), 64, carried_bytes=1000, reserve=Reserve(0.0, 0.0, 0.0, 24))
    assert both.reserved_bytes == (1024, 1024)


def test_a_reserve_leaves_less_memory_to_tables():
    reserve = Reserve(share=0.25, dense_copies=6, input_copies=20, extra_bytes=1000)
    imported = import_model(Toy(), topology(), 64, reserve=reserve)
    expected = 2**18 + 6 * 15 * 4 + 1000
    assert imported.reserved_bytes == (expected, expected)
    assert imported.task.topology.memory_bytes == (2**20,) * 2
    assert imported.task.step_memory == StepMemory(expected, input_copies=20)
    with pytest.raises(InputError, match="nothing is left for tables"):
        task_from_model(Toy(), topology(), 64, reserve=Reserve(extra_bytes=2**20))
    with pytest.raises(InputError, match="Reserve: share: Input should be less than or equal to 1, got 15"):
        Reserve(share=15)


def test_weights_have_the_precision_of_their_table_and_outputs_are_fp32():
    mixed = collection(config("a", 50, 8, data_type=DataType.FP16), config("b", 50, 8))
    task = task_from_model(mixed, topology(), 64)
    assert (task.precision, [t.precision for t in task.tables]) == ("fp32", ["fp16", None])
    half = ParameterConstraints(output_dtype=DataType.FP16)
    task = task_from_model(mixed, topology(), 64, constraints={"a": half, "b": half})
    assert (task.precision, [t.precision for t in task.tables]) == ("fp16", [None, "fp32"])
    with pytest.raises(InputError, match="table 'a' has weights of BF16: expected FP32 or FP16"):
        task_from_model(collection(config("a", 50, 8, data_type=DataType.BF16)), topology(), 64)


def test_weights_of_ids_and_mean_pooling_are_read():
    model = nn.Module()
    model.plain = collection(config("a", 50, 8, pooling=PoolingType.MEAN), config("b", 50, 8))
    model.weighted = EmbeddingBagCollection(tables=[config("c", 50, 8)], is_weighted=True, device=torch.device("meta"))
    tables = task_from_model(model, topology(), 64).tables
    assert [(t.weighted, t.pooling) for t in tables] == [(False, "mean"), (False, "sum"), (True, "sum")]
    asked = {"b": ParameterConstraints(is_weighted=True)}
    assert [t.weighted for t in task_from_model(model, topology(), 64, constraints=asked).tables] == [False, True, True]
    ids, lengths = torch.tensor([1, 2]), torch.tensor([1, 1])
    sample = KeyedJaggedTensor.from_lengths_sync(["a_ids"], ids, lengths, torch.tensor([0.5, 1.0]))
    (table,) = task_from_model(collection(config("a", 50, 8)), topology(), 64, sample=sample).tables
    assert table.weighted


class Mine(EmbeddingBagCollection):
    """A subclass, which TorchRec's sharders do not take for the class."""


def _model_with_everything():
    """What a production model holds: bags in FP16 and FP32, a shared table, weights, sequences, and more."""
    device = torch.device("meta")
    model = nn.Module()
    model.bags = collection(
        config("user", 1000, 64, "user", "friend", data_type=DataType.FP16), config("shop", 100, 16)
    )
    model.weighted = EmbeddingBagCollection(tables=[config("clicks", 500, 32)], is_weighted=True, device=device)
    words = EmbeddingConfig(num_embeddings=300, embedding_dim=16, name="w", feature_names=["w"])
    model.words = EmbeddingCollection(tables=[words], device=device)
    model.position = nn.Embedding(64, 8, device=device)
    inner = EmbeddingBagCollection(tables=[config("fp", 100, 16)], is_weighted=True, device=device)
    processor = {"fp_ids": PositionWeightedModule(max_feature_length=10)}
    model.processed = FeatureProcessedEmbeddingBagCollection(inner, processor)
    model.remapped = remapped()
    model.mine = Mine(tables=[config("b", 50, 8)], device=device)
    floats = collection(config("q", 50, 8), device="cpu")
    observers = [torch.quantization.PlaceholderObserver.with_args(dtype=of) for of in (torch.float32, torch.qint8)]
    floats.qconfig = QuantConfig(*observers)
    model.quantised = QuantEmbeddingBagCollection.from_float(floats)
    return model


def test_nothing_of_a_model_is_dropped_without_a_word(caplog):
    model = _model_with_everything()
    imported = import_model(model, topology(), 64)
    assert [t.name for t in imported.task.tables] == ["bags.user", "bags.shop", "weighted.clicks", "words.w"]
    assert [what.partition(";")[0] for what in imported.left_out] == [
        "'position' (Embedding",
        "'processed' (FeatureProcessedEmbeddingBagCollection: tables fp",
        "'remapped' (ManagedCollisionEmbeddingBagCollection: tables mc",
        "'mine' (Mine: tables b",
        "'quantised' (EmbeddingBagCollection: tables q",
    ]
    assert imported.left_out[0].endswith(f"; {64 * 8 * 4} bytes)")
    assert imported.task.name.startswith("Module; left out: 5 modules with embeddings; assumed: ")
    caplog.clear()
    task_from_model(model, topology(), 64)
    assert caplog.messages == imported.remarks
    with pytest.raises(InputError, match=r"strict: 'position' .* is left out: .* \(4 more\)"):
        import_model(model, topology(), 64, strict=True)
    with pytest.raises(InputError, match=r"no EmbeddingBagCollection or EmbeddingC.*; it has the model itself \(Feat"):
        import_model(model.processed, topology(), 64)


def test_constraints_that_a_task_does_not_hold_are_named():
    placed = {
        name: ParameterConstraints(sharding_types=["table_wise"], stochastic_rounding=True)
        for name in ("users.id", "country")
    }
    assert import_model(Toy(), topology(), 64, constraints=placed).remarks == [
        "sharding_types of 'users.id' and 1 more are not followed: a task does not hold them, but ShardGymPlanner "
        "follows them",
        "stochastic_rounding of 'users.id' and 1 more are not followed: a task does not hold them, but "
        "ShardGymPlanner follows them",
    ]


def _shared_collection():
    model = nn.Module()
    model.one = model.two = collection(config("a", 50, 8))
    return model


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "Linear has no EmbeddingBagCollection"),
        (_shared_collection(), {}, "is both 'one' and 'two' in"),
        (collection(config("a", 50, 6)), {}, "6 columns.*divisible by 4; pad the table to 8"),
        (Toy(), {"pooling_factors": {"contry": 2}}, "did you mean country"),
        (Toy(), {"pooling_factors": [1, 2]}, "one for each of 3 tables, got 2"),
        (Toy(), {"pooling_factors": 3}, "pooling_factors: expected numbers by table"),
        (Toy(), {"pooling_factors": [1, 1, -1]}, r"table 'towers.items.id': .*pooling_factor: Input should be"),
        (Toy(), {"pooling_factors": [1, 1, 1], "sample": {}}, "give one of them"),
        (Toy(), {"optimizer": "adamw"}, "optimizer: Input should be"),
        (Toy(), {"carried_bytes": [1, 2, 3]}, "carried_bytes: expected a number, or a list of 2, got a list of 3"),
        (Toy(), {"carried_bytes": -1}, "carried_bytes: expected an integer >= 0, got -1"),
        (Toy(), {"reserve": 0.15}, r"reserve: expected a Reserve, got float 0\.15; give Reserve\(share"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(model, options, message):
    with pytest.raises(InputError, match=message):
        task_from_model(model, topology(), 64, **options)


def test_a_model_from_a_task_has_the_tasks_tables():
    tables = (
        EmbeddingTable("x.a", 50, 8, 2.0, num_features=2, precision="fp16"),
        EmbeddingTable("x.b", 50, 8, pooling="mean"),
        EmbeddingTable("y.c", 50, 8, weighted=True),
    )
    mixed = ShardingTask(tables, topology(), 64)
    for task in (task_from_model(Toy(), topology(), 64), load_suite("tiny-v1")[0], mixed):
        factors = {table.name: table.pooling_factor for table in task.tables}
        model = model_from_task(task)
        again = task_from_model(model, task.topology, task.batch_size, pooling_factors=factors)
        plain = {t.name: dataclasses.replace(t, ids=UniformIds(), reuse_histogram=None) for t in task.tables}
        assert {t.name: t for t in again.tables} == plain
        assert all(p.is_meta for p in model.parameters())
    both = dataclasses.replace(mixed, tables=(tables[0], dataclasses.replace(tables[2], name="x.c")))
    with pytest.raises(InputError, match=r"'x.a' and 'x.c' are in one collection, and only one .* weighted"):
        model_from_task(both)


def test_names_that_no_module_can_have_are_refused():
    task = task_from_model(collection(config("a", 50, 8)), topology(), 64)
    (table,) = task.tables
    for name in ("x..a", ".a", "a."):
        with pytest.raises(InputError, match="cannot be in a model"):
            model_from_task(dataclasses.replace(task, tables=(dataclasses.replace(table, name=name),)))
    both = (task.tables[0], dataclasses.replace(task.tables[0], name="x.a"))
    with pytest.raises(InputError, match="table 'a' lacks the path of its collection"):
        model_from_task(dataclasses.replace(task, tables=both))
