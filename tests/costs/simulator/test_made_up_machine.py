"""A simulator from collecting to searching, on a made-up machine: what it knows, how it scales, and what it notes.

TEST FIXTURE ONLY: times are a formula, so errors say nothing about real hardware.
"""

import json

import collection_toys
import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, UniformIds, make_cost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.shard_keys import ShardKey
from shardgym.costs.simulator.features import Groups, shards_of
from shardgym.costs.simulator.weights import load_weights, network_of

pytest.importorskip("pyarrow", reason="needs the extra 'data'")

SPACE = {"batch": [256, 4096], "pooling": [0.1, 40], "rows": [10, 10**6], "shards": [1, 12], "width": [4, 128]}
STATE = {"exact_sgd": 1.0, "rowwise_adagrad": 1.3, "adagrad": 2.0}


def formula_ms(shard_set):
    """Reading by ids and bytes; writing by bytes and optimiser; FP16 moves half of it."""
    size = 2 if shard_set.precision == "fp16" else 4
    ids = np.array([s.table.pooling_factor * s.num_rows / s.table.num_embeddings for s in shard_set.shards])
    ids *= shard_set.batch_size
    moved = float((ids * (20 + size * np.array([s.width for s in shard_set.shards]))).sum())
    forward = 0.02 + 0.005 * len(ids) + moved * 1e-6
    return forward, 1.5 * STATE[shard_set.optimizer] * forward


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Collect with toys on two days, and train oracle and judge with the command."""
    from shardgym.cli import main
    from shardgym.costs.fbgemm.jobs import StepTimes

    with pytest.MonkeyPatch.context() as patch:
        timer, *_ = collection_toys.install(patch)
        rng = np.random.default_rng(0)

        def answer(self, job):
            noise = np.exp(rng.normal(0, 0.03))
            return [StepTimes(np.array([formula_ms(job.shard_set)] * job.iterations) * noise)]

        patch.setattr(timer, "ask", answer)
        root = tmp_path_factory.mktemp("wide")
        (root / "space.json").write_text(json.dumps(SPACE))
        for day in ("0", "1"):
            sizes = ["--samples", "200", "--steps", "0", "--space", str(root / "space.json"), "--seed", day]
            assert main(["collect", "--out", str(root / day), "--json", *sizes]) == 0
        options = ["--epochs", "40", "--json"]
        assert main(["pretrain", str(root / "0"), str(root / "1"), "-o", str(root / "model"), *options]) == 0
    return root


@pytest.fixture(scope="module")
def model(folders):
    return folders / "model"


@pytest.fixture(scope="module", params=["oracle", "judge"])
def networks(request, model):
    return network_of(load_weights(model / f"{request.param}.safetensors", request.param))


def task_of(*, batch=1024, precision="fp32", optimizer="exact_sgd", devices=2, known_reuse=True, **changes):
    fields = {"num_embeddings": 5_000, "embedding_dim": 32, "pooling_factor": 4.0, "ids": UniformIds()}
    bins = None if not known_reuse else (0.3, 0.3, 0.2, 0.1, 0.1, *[0.0] * 12)
    tables = [
        EmbeddingTable(f"t{n}", **{**fields, **(changes if n == 0 else {})}, reuse_histogram=bins) for n in range(4)
    ]
    topology = Topology(num_devices=devices, memory_bytes=2**40)
    return ShardingTask(tuple(tables), topology, batch, precision=precision, optimizer=optimizer)


def device_ms(networks, task):
    """Forward and backward of one device with all tables."""
    shards = shards_of(task, [ShardKey(t.name, t.num_embeddings, t.embedding_dim) for t in task.tables])
    return networks.compute(networks.encode(shards), Groups(np.array([len(shards)])))[0]


@pytest.mark.parametrize(
    ("axis", "values"),
    [
        ("batch", [2**k for k in range(6, 21)]),
        ("embedding_dim", [4, 8, 12, 16, 32, 64, 100, 128, 512, 4096]),
        ("pooling_factor", np.geomspace(0.01, 5_000, 15).tolist()),
        ("num_embeddings", [1, 10, 100, 1_000, 5_000, 10**5, 10**6, 10**8, 10**10]),
    ],
)
def test_compute_never_falls_with_batch_width_pooling_or_rows_inside_and_outside(networks, axis, values):
    found = np.array([device_ms(networks, task_of(**{axis: value})) for value in values])
    assert (np.diff(found, axis=0) >= -1e-12).all()
    assert found[-1].sum() >= found[0].sum()


def test_far_outside_twice_the_batch_is_twice_the_time(networks):
    large, larger = (device_ms(networks, task_of(batch=batch)).sum() for batch in (2**22, 2**23))
    assert larger / large == pytest.approx(2, rel=0.1)


def test_what_is_unlike_the_data_as_a_whole_is_noted(model):
    for role in ("oracle", "judge"):
        cost = make_cost("simulator", weights=str(model), role=role)
        usual, strange = task_of(known_reuse=False), task_of(batch=2**20, embedding_dim=4096)
        for task, unlikely in ((usual, False), (strange, True)):
            plan = ShardingPlan.table_wise(task, [0, 1, 0, 1])
            (found,) = cost.evaluate(task, [plan])
            assert (f"{UNFAMILIAR}: what a device holds" in found.notes) == unlikely


def test_data_type_and_optimiser_are_known(networks):
    by_optimizer = [device_ms(networks, task_of(optimizer=name, pooling_factor=30.0))[1] for name in STATE]
    assert by_optimizer[0] < by_optimizer[-1]
    half, whole = (device_ms(networks, task_of(precision=p, pooling_factor=30.0)).sum() for p in ("fp16", "fp32"))
    assert half < whole
