"""What shipped networks predict of one device: never less for more, in proportion far outside, and then with a note."""

import numpy as np
import pytest

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, UniformIds, make_cost
from shardgym.costs.plan_cost import UNFAMILIAR
from shardgym.costs.shard_keys import ShardKey
from shardgym.costs.simulator.features import Groups, shards_of
from shardgym.costs.simulator.weights import network_of


@pytest.fixture(scope="module", params=["oracle", "judge"])
def cost(request):
    return make_cost("simulator", role=request.param)


def task_of(*, batch=1024, precision="fp32", optimizer="exact_sgd", known_reuse=True, **changes):
    fields = {"num_embeddings": 5_000, "embedding_dim": 32, "pooling_factor": 4.0, "ids": UniformIds()}
    bins = None if not known_reuse else (0.3, 0.3, 0.2, 0.1, 0.1, *[0.0] * 12)
    tables = [
        EmbeddingTable(f"t{n}", **{**fields, **(changes if n == 0 else {})}, reuse_histogram=bins) for n in range(4)
    ]
    topology = Topology(num_devices=2, memory_bytes=2**40)
    return ShardingTask(tuple(tables), topology, batch, precision=precision, optimizer=optimizer)


def device_ms(cost, task):
    """Forward and backward of one device with all tables."""
    networks = network_of(cost._weights)
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
def test_compute_never_falls_with_batch_width_pooling_or_rows_inside_and_outside(cost, axis, values):
    found = np.array([device_ms(cost, task_of(**{axis: value})) for value in values])
    assert (np.diff(found, axis=0) >= -1e-12).all()
    assert found[-1].sum() > found[0].sum()


def test_far_outside_twice_the_batch_is_twice_the_time(cost):
    large, larger = (device_ms(cost, task_of(batch=batch)).sum() for batch in (2**22, 2**23))
    assert larger / large == pytest.approx(2, rel=0.1)


def test_what_is_unlike_the_data_as_a_whole_is_noted(cost):
    usual = task_of(known_reuse=False, precision="fp16", optimizer="rowwise_adagrad")
    for task, unlikely in ((usual, False), (task_of(batch=2**20, embedding_dim=4096), True)):
        (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1, 0, 1])])
        assert (f"{UNFAMILIAR}: what a device holds" in found.notes) == unlikely


def test_data_type_and_optimiser_are_known(cost):
    """A core converts FP16 in software."""
    usual, half, adagrad = (
        device_ms(cost, task_of(pooling_factor=30.0, **kind))
        for kind in ({}, {"precision": "fp16"}, {"optimizer": "adagrad"})
    )
    assert usual[0] < half[0]
    assert usual[1] < adagrad[1]
