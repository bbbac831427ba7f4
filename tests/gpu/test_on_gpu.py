"""Measuring on a GPU: kernels and the lead of the host in this process, then costs. Needs the extra `gpu`."""

import gc
import importlib.util

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, ShardingPlan, ShardingTask, Topology, ZipfIds, make_cost
from shardgym.cli.doctor import describe, diagnose
from shardgym.costs.fbgemm.cuda import MOST_FLUSHES
from shardgym.costs.fbgemm.jobs import JobError, ShardSet, ShardSpec, TimingJob
from shardgym.costs.fbgemm.kernels import Measurer
from shardgym.costs.fbgemm.operator import draw_ids
from shardgym.tables.ids import draw_bags

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.measured,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'gpu'"),
]


def shard_set(tables, rows=100_000, dim=32, batch_size=8192, optimizer="exact_sgd"):
    shards = (ShardSpec(EmbeddingTable(f"t{n}", rows, dim, pooling_factor=4.0), (0, rows), dim) for n in range(tables))
    return ShardSet(tuple(shards), batch_size, "fp32", optimizer)


@pytest.fixture
def backend():
    from shardgym.costs.fbgemm.cuda import CudaBackend

    yield CudaBackend()
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad", "adam"])
@pytest.mark.parametrize("tables", [1, 40])
def test_the_host_gets_ahead_so_that_only_kernels_are_timed(backend, tables, optimizer):
    """It never would if FBGEMM waited for the GPU inside a step."""
    found = Measurer(backend, seed=0)(TimingJob(shard_set(tables, optimizer=optimizer), warmups=3, iterations=10))
    assert (found.times > 0).all()
    assert found.notes == ()
    assert backend._lead.flushes < MOST_FLUSHES


def test_unpooled_tables_are_timed_and_launching_is_no_part_of_it(backend):
    table = EmbeddingTable("t", 1_000_000, 128, 1.5, ZipfIds(s=1.05, lengths="poisson"), pooling="none")
    unpooled = ShardSet((ShardSpec(table, (0, 1_000_000), 128),), 65_536, "fp32", "exact_sgd")
    found = Measurer(backend, seed=0)(TimingJob(unpooled, warmups=1, iterations=3))
    assert (found.times > 0).all()
    assert found.launch_ms > 0


@pytest.mark.parametrize("law", [ZipfIds(s=1.1), ZipfIds(s=0.9, q=10.0, lengths="poisson")])
def test_ids_are_drawn_there_by_the_law_of_the_host(law):
    table = EmbeddingTable("t", 100_000, 8, 20.0, law)
    found = draw_ids(torch.device("cuda", 0), table, 20_000, seed=0, batch=0)
    assert {values.device.type for values in found} == {"cuda"}
    host = draw_bags(table, 20_000, seed=1)
    counts = [np.bincount(rows, minlength=100_000) for rows in (found.indices.cpu().numpy(), host.indices)]
    hot = np.argsort(counts[1])[-100:]
    for number in (np.sum, np.count_nonzero, lambda of: of[hot].sum()):
        assert number(counts[0]) == pytest.approx(number(counts[1]), rel=0.05)
    assert len(found.lengths) == 20_000


def test_jobs_leave_nothing_behind_but_ids(backend):
    measure, held = Measurer(backend, seed=0), []
    for _ in range(4):
        for tables in (5, 20):
            measure(TimingJob(shard_set(tables), warmups=1, iterations=2))
        held.append(torch.cuda.memory_allocated())
    assert held[1:] == held[1:2] * 3


def test_a_full_gpu_is_a_refusal_and_there_is_room_again_afterwards(backend):
    measure, large = Measurer(backend, seed=0), shard_set(4, rows=4_000_000)  # 2 GB of weights
    others = torch.empty(torch.cuda.mem_get_info()[0] - 2**30, dtype=torch.uint8, device="cuda")
    with pytest.raises(JobError, match="the GPU ran out of memory"):
        measure(TimingJob(large, warmups=0, iterations=1))
    del others
    assert measure(TimingJob(large, warmups=0, iterations=1)).times.shape == (1, 2)


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
