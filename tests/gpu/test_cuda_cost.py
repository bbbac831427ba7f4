"""Measuring on a GPU: times, memory, failures. Needs one CUDA device and the extra `gpu`."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.cli.doctor import diagnose

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measured,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'gpu'"),
]


def task_of(tables, memory_bytes=2**33, devices=2, batch_size=65_536, **more):
    topology = Topology(num_devices=devices, memory_bytes=memory_bytes, device="h200")
    return ShardingTask(tables=tables, topology=topology, batch_size=batch_size, **more)


def tables_of(count, rows=1_000_000, dim=64, pooling=10.0):
    return tuple(EmbeddingTable(f"t{n}", rows, dim, pooling_factor=pooling) for n in range(count))


@pytest.fixture(scope="module")
def cost():
    with make_cost("fbgemm", device="cuda") as model:
        yield model


def test_times_are_measured_on_the_gpu(cost):
    task = task_of(tables_of(4))
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 0, 0, 1])])
    assert found.hardware.startswith("cuda-")
    assert found.compute == "measured"
    assert (found.per_device[:, [1, 4]] > 0).all()
    assert found.per_device[0, [1, 4]].sum() > found.per_device[1, [1, 4]].sum()


def test_one_gpu_models_the_exchange_between_several(cost):
    if torch.cuda.device_count() > 1:
        pytest.skip("this machine has GPUs enough to measure the exchange")
    task = task_of(tables_of(4))
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 0, 1, 1])])
    assert found.communication == "modelled"
    assert (found.per_device[:, 2:4] > 0).all()


def test_wider_tables_with_more_lookups_take_longer(cost):
    narrow, wide = (task_of(tables_of(1, dim=dim, pooling=p), devices=1) for dim, p in ((8, 2.0), (128, 40.0)))
    times = [cost.evaluate(t, [ShardingPlan.table_wise(t, [0])])[0].total_ms for t in (narrow, wide)]
    assert times[1] > 3 * times[0]


def test_fusing_tables_is_cheaper_than_measuring_them_apart(cost):
    """The reason for learned cost models: small kernels of many tables share one launch."""
    times = []
    for count in (32, 1):
        task = task_of(tables_of(count, rows=1000, dim=8, pooling=1.0), devices=1, batch_size=1024)
        times.append(cost.evaluate(task, [ShardingPlan.table_wise(task, [0] * count)])[0].total_ms)
    assert times[0] < 16 * times[1]


def test_repeats_agree(cost):
    task = task_of(tables_of(8), devices=1)
    plan = ShardingPlan.table_wise(task, [0] * 8)
    times = [cost.evaluate(task, [plan])[0].total_ms for _ in range(3)]
    assert np.ptp(times) / np.mean(times) < 0.3


def test_more_than_the_gpu_holds_is_no_plan_and_says_bytes(cost):
    total = torch.cuda.get_device_properties(0).total_memory
    rows = int(total // (4 * 128)) // 4
    task = task_of(tables_of(5, rows=rows, dim=128, pooling=1.0), memory_bytes=4 * total, devices=1, batch_size=64)
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0] * 5)])
    assert not found.feasible
    assert "out of memory" in str(found.reason).lower()
    small = task_of(tables_of(1), devices=1)
    assert cost.evaluate(small, [ShardingPlan.table_wise(small, [0])])[0].feasible


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adam"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_optimizer_and_precision_runs(cost, optimizer, precision):
    kind = {"optimizer": optimizer, "precision": precision}
    task = task_of(tables_of(2, rows=10_000, dim=16), devices=1, batch_size=1024, **kind)
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 0])])
    assert found.feasible, found.reason


def test_the_doctor_says_that_the_gpu_can_measure():
    lines = "\n".join(diagnose().lines())
    assert "measure compute: yes, on cpu and cuda" in lines
    assert torch.cuda.get_device_properties(0).name in lines
