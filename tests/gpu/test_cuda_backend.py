"""The worker's side on a GPU, in this process: the host's lead, memory between jobs, memory that runs out."""

from __future__ import annotations

import gc
import importlib.util

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, ZipfIds
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
