"""Ids that a GPU draws, by the same code on the CPU: held against the host's draws, and against the law itself."""

import dataclasses
import importlib.util

import numpy as np
import pytest
import torch
from scipy import stats

from shardgym.costs.fbgemm.operator import draw_on, is_drawn_on_gpu
from shardgym.tables.ids import draw_bags
from shardgym.tables.table import EmbeddingTable, RangeIds, RecordedIds, UniformIds, ZipfIds

CPU = torch.device("cpu")
SAMPLES = 40_000

LAWS = [
    UniformIds(),
    ZipfIds(s=1.1, q=2.0),
    ZipfIds(s=1.0),
    ZipfIds(s=0.4, q=30.0),
    ZipfIds(s=1.7, row_order="by_frequency"),
    ZipfIds(s=1.05, row_order="blocks", block_rows=7),
]


def table(ids, rows=5_003, pooling=5.0, **more):
    return EmbeddingTable("t", rows, 8, pooling, ids, **more)


def drawn(of, samples=SAMPLES, seed=0, batch=0):
    return tuple(values.numpy() for values in draw_on(CPU, of, samples, seed=seed, batch=batch))


def p_value(first, second, cells):
    """Return how likely two draws of rows are of one law, by a chi-squared test over cells of equal numbers of ids."""
    edges = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, cells + 1)[1:-1], method="lower"))
    counts = [np.bincount(np.searchsorted(edges, rows), minlength=len(edges) + 1) for rows in (first, second)]
    return stats.chi2_contingency(np.stack(counts)[:, np.sum(counts, axis=0) > 0]).pvalue


@pytest.mark.parametrize("rows", [3, 200, 5_003, 10_000_000])
@pytest.mark.parametrize("ids", LAWS, ids=repr)
def test_rows_have_the_law_of_the_hosts(ids, rows):
    """Rows, so that where popular ones lie counts as well; cells of one popular row each, and of many others."""
    of = table(dataclasses.replace(ids, block_rows=2) if rows == 3 and getattr(ids, "block_rows", None) else ids, rows)
    indices, lengths = drawn(of)
    host = draw_bags(of, SAMPLES, seed=1)
    assert (indices.dtype, lengths.dtype) == (np.int64, np.int64)
    assert 0 <= indices.min() <= indices.max() < rows
    assert p_value(indices, host.indices, 100) > 1e-4
    assert np.array_equal(lengths, host.lengths)


@pytest.mark.parametrize("ids", [ZipfIds(s=1.1), ZipfIds(s=1.2, q=400.0)])
def test_repeated_rows_are_as_many_as_the_hosts(ids):
    """The cache and the backward pass depend on distinct rows."""
    of = table(ids, rows=1_000_000)
    host = np.unique(draw_bags(of, SAMPLES, seed=1).indices).size
    assert np.unique(drawn(of)[0]).size == pytest.approx(host, rel=0.01)


def test_bags_of_random_sizes_are_poisson():
    _, lengths = drawn(table(UniformIds(lengths="poisson"), pooling=2.5))
    host = draw_bags(table(UniformIds(lengths="poisson"), pooling=2.5), SAMPLES, seed=1).lengths
    assert p_value(lengths, host, 8) > 1e-4
    assert lengths.var() == pytest.approx(2.5, rel=0.05)


@pytest.mark.parametrize("pooling", [0.0, 0.3, 450.0])
def test_runs_repeat_rows_as_on_the_host(pooling):
    of = table(UniformIds(), rows=10**9, pooling=pooling, run_length=4.5)
    indices, _ = drawn(of)
    host = draw_bags(of, SAMPLES, seed=1).indices
    assert len(indices) == len(host)
    starts = [np.flatnonzero(np.diff(rows)) for rows in (indices, host)]
    assert np.setxor1d(*starts).size < 5  # neighbours are the same row by chance


def test_a_draw_depends_on_name_seed_and_batch_and_on_nothing_else():
    of = table(ZipfIds(s=1.1, lengths="poisson"))
    first = drawn(of)
    wider = dataclasses.replace(of, embedding_dim=64)
    for again in (drawn(of), drawn(wider)):
        assert all(map(np.array_equal, first, again))
    for other in (drawn(of, batch=1), drawn(of, seed=1), drawn(dataclasses.replace(of, name="u"))):
        assert not np.array_equal(first[0][:100], other[0][:100])


def test_recorded_ids_and_ranges_are_the_hosts():
    recorded = RecordedIds("x.pt", "t000", 1, 1, "0" * 64)
    assert [is_drawn_on_gpu(table(ids)) for ids in (UniformIds(), ZipfIds(s=1), RangeIds((0.5, 0.5)), recorded)] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.measured
@pytest.mark.skipif(importlib.util.find_spec("fbgemm_gpu") is None, reason="needs the extra 'cpu'")
def test_costs_on_a_gpu_draw_there_and_costs_on_a_cpu_as_before(monkeypatch):
    from shardgym.costs.fbgemm import operator

    monkeypatch.setattr(operator, "draw_on", lambda device, *_, **__: (device, device))
    gpu = torch.device("cuda", 0)
    assert operator.draw_ids(gpu, table(UniformIds()), 8, seed=0, batch=0) == (gpu, gpu)
    host = draw_bags(table(UniformIds()), 8, seed=0, batch=0)
    found = operator.draw_ids(CPU, table(UniformIds()), 8, seed=0, batch=0)
    assert [values.tolist() for values in found] == [host.indices.tolist(), host.lengths.tolist()]
