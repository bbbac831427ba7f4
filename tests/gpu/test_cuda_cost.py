"""Measuring on a GPU: times, memory, failures. Needs one CUDA device and the extra `gpu`."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, make_cost
from shardgym.cli.doctor import describe, diagnose

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


def test_fewer_gpus_than_devices_time_kernels_and_model_exchanges(cost):
    devices = torch.cuda.device_count() + 1
    task = task_of(tables_of(4), devices=devices)
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 0, 0, 1])])
    assert found.hardware.startswith("cuda-")
    assert (found.compute, found.communication) == ("measured", "modelled")
    assert (found.per_device[:2, 1:] > 0).all()
    assert not found.per_device[:, 0].any()


def test_as_many_gpus_as_devices_take_complete_steps(cost):
    devices = torch.cuda.device_count()
    task = task_of(tables_of(4), devices=devices)
    (found,) = cost.evaluate(task, [ShardingPlan.table_wise(task, [n % devices for n in range(4)])])
    assert (found.compute, found.communication) == ("measured", "measured")
    assert (found.per_device[:, :2] > 0).all()


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
    texts = describe(diagnose())
    assert texts["steps on cuda"] == "measured"
    assert torch.cuda.get_device_properties(0).name in texts["GPU 0"]
