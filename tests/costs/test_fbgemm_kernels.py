"""The operator computes what the full table would: values, gradients, recycled memory, the clock."""

import os
import time
from pathlib import Path

import numpy as np
import pytest

from shardgym.costs.fbgemm.jobs import ShardSet, TimingJob
from shardgym.costs.fbgemm.operator import RequestMaker
from shardgym.costs.fbgemm.worker import Measurer
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tables.ids import draw_bags
from shardgym.tables.table import EmbeddingTable, ZipfIds
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import Topology

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.measured

A = EmbeddingTable("a", 60, 16, 4.0, ZipfIds(s=1.05, lengths="poisson"))
B = EmbeddingTable("b", 30, 8, 2.0)
BATCH = 12


@pytest.fixture(scope="module")
def backend():
    from shardgym.costs.fbgemm.cpu import CpuBackend

    return CpuBackend()


def task(**changes):
    topology = Topology(num_devices=3, memory_bytes=2**20)
    return ShardingTask(**{"tables": (A, B), "topology": topology, "batch_size": BATCH, **changes})


def plan_of(problem):
    """Table a in four unequal quarters over three devices, table b whole beside one of them."""
    cuts = [((0, 40), (0, 4), 0), ((0, 40), (4, 16), 1), ((40, 60), (0, 4), 2), ((40, 60), (4, 16), 2)]
    return ShardingPlan.of(problem, [*(Shard("a", *cut) for cut in cuts), Shard.whole(B, 1)])


def pooled_on_full_table(table, weights, seed=0):
    bags = draw_bags(table, BATCH, seed=seed)
    offsets = torch.from_numpy(np.cumsum([0, *bags.lengths[:-1]]))
    return torch.nn.functional.embedding_bag(torch.from_numpy(bags.indices), weights, offsets, mode="sum")


def run_shards(backend, problem, plan, device, weights):
    """Put the shards' part of the full weights into the operator and return pooled values per shard."""
    shard_set = ShardSet.of(problem, plan.on(device))
    operator = backend.build(shard_set)
    shards = sorted(plan.on(device), key=lambda s: (s.table, s.rows, s.num_columns))
    for shard, held in zip(shards, operator.split_embedding_weights(), strict=True):
        held.copy_(weights[shard.table][slice(*shard.rows), slice(*shard.columns)])
    pooled = operator(*RequestMaker(0, backend.device, 10**6).request(shard_set, 0))
    return zip(shards, pooled.split([s.num_columns for s in shards], dim=1), strict=True)


@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-5), ("fp16", 2e-2)])
def test_shards_reassembled_give_the_pooled_values_of_the_full_tables(backend, precision, tolerance):
    problem = task(precision=precision)
    plan = plan_of(problem)
    plan.validate(problem)
    weights = {t.name: torch.randn(t.num_embeddings, t.embedding_dim) for t in problem.tables}
    got = {t.name: torch.zeros(BATCH, t.embedding_dim) for t in problem.tables}
    for device in range(3):
        for shard, pooled in run_shards(backend, problem, plan, device, weights):
            got[shard.table][:, slice(*shard.columns)] += pooled.detach().float()
    for table in problem.tables:
        torch.testing.assert_close(
            got[table.name], pooled_on_full_table(table, weights[table.name]), rtol=tolerance, atol=tolerance
        )


def test_backward_updates_the_weights_by_the_gradient(backend):
    problem = task()
    shard_set = ShardSet.of(problem, [Shard.whole(A, 0)])
    operator = backend.build(shard_set)
    weights = torch.randn(60, 16, requires_grad=True)
    operator.split_embedding_weights()[0].copy_(weights.detach())
    gradient = backend.gradient(shard_set)
    backend.step(operator, RequestMaker(0, backend.device, 10**6).request(shard_set, 0), gradient)
    pooled_on_full_table(A, weights).backward(gradient)
    torch.testing.assert_close(operator.split_embedding_weights()[0], weights.detach() - 0.01 * weights.grad)


def test_operators_share_one_memory_that_only_grows(backend):
    if not backend.keeps_operators:
        pytest.skip("this version of FBGEMM takes no memory from its caller")
    problem = task()
    small, large = (ShardSet.of(problem, [Shard.whole(t, 0)]) for t in (B, A))
    first, second = backend.build(small), backend.build(large)
    places = [op.split_embedding_weights()[0].data_ptr() for op in (first, second, backend.build(small))]
    assert len(set(places)) == 1


def test_a_job_that_needs_the_memory_gets_that_of_earlier_ones():
    from shardgym.costs.fbgemm.cpu import CpuBackend

    def resident_bytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    backend = CpuBackend()
    large = EmbeddingTable("large", 300_000, 64, 1.0)
    problem = ShardingTask((large,), Topology(num_devices=1, memory_bytes=2**30), batch_size=BATCH)
    held = ShardSet.of(problem, [Shard.whole(large, 0)])
    backend.build(held)
    before = resident_bytes()
    backend.release()
    assert before - resident_bytes() > 0.9 * 4 * held.num_weights
    assert backend.build(held).split_embedding_weights()[0].abs().sum() > 0


def test_no_weight_lies_on_an_untouched_page(backend):
    weights = backend.build(ShardSet.of(task(), [Shard.whole(A, 0)])).split_embedding_weights()[0]
    assert torch.count_nonzero(weights) > 0.9 * weights.numel()


def test_versions_that_take_no_memory_get_random_weights_of_their_own(backend, monkeypatch):
    monkeypatch.setattr(backend, "keeps_operators", False)
    first, second = (backend.build(ShardSet.of(task(), [Shard.whole(A, 0)])).split_embedding_weights()[0] for _ in "ab")
    assert first.data_ptr() != second.data_ptr()
    assert torch.count_nonzero(first) > 0.9 * first.numel()


def test_kernels_run_in_the_calling_thread_so_that_its_clock_sees_them(backend):
    heavy = EmbeddingTable("heavy", 50_000, 64, 40.0)
    shard_set = ShardSet.of(task(tables=(heavy,), batch_size=1000), [Shard.whole(heavy, 0)])
    operator, gradient = backend.build(shard_set), backend.gradient(shard_set)
    ids = RequestMaker(0, backend.device, 10**8).request(shard_set, 0)
    process, thread = time.process_time_ns(), time.thread_time_ns()
    for _ in range(5):
        backend.step(operator, ids, gradient)
    spent = time.process_time_ns() - process
    assert (time.thread_time_ns() - thread) > 0.95 * spent


@pytest.mark.parametrize("optimizer", ["exact_sgd", "rowwise_adagrad", "adagrad"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_every_precision_and_cpu_optimiser_runs(backend, precision, optimizer):
    problem = task(precision=precision, optimizer=optimizer)
    times = Measurer(backend, seed=0)(TimingJob(ShardSet.of(problem, plan_of(problem).on(1)), 1, 3)).times
    assert times.shape == (3, 2)
    assert (times > 0).all()


def test_a_table_that_is_never_looked_up_can_be_measured(backend):
    unused = EmbeddingTable("unused", 10, 4, 0.0)
    shard_set = ShardSet.of(task(tables=(unused,)), [Shard.whole(unused, 0)])
    assert np.isfinite(Measurer(backend, seed=0)(TimingJob(shard_set, warmups=0, iterations=1)).times).all()


def test_steps_have_different_ids_and_every_job_the_same(backend):
    seen = []

    class Spy(type(backend)):
        def step(self, operator, ids, gradient):
            seen.append(ids[0].clone())
            return super().step(operator, ids, gradient)

    measure = Measurer(Spy(), seed=0)
    job = TimingJob(ShardSet.of(task(), [Shard.whole(A, 0)]), warmups=1, iterations=2)
    measure(job)
    measure(job)
    assert all(torch.equal(first, again) for first, again in zip(seen[:3], seen[3:], strict=True))
    assert not any(a.shape == b.shape and torch.equal(a, b) for a, b in [seen[:2], seen[1:3]])
