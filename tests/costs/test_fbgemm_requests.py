"""Ids for device contents: row ranges, merging, caching."""

import dataclasses

import numpy as np
import pytest
import torch

from shardgym import EmbeddingTable, InputError, RangeIds, RecordedIds, Shard, ShardingPlan, ShardingTask, ZipfIds
from shardgym.costs.fbgemm.jobs import ShardSet, ShardSpec, shard_sets
from shardgym.costs.fbgemm.operator import RequestMaker, TableIds, cut_rows, tensor_bytes
from shardgym.tables.bags import Bags
from shardgym.tables.ids import draw_bags
from shardgym.tasks.topology import Topology

CPU = torch.device("cpu")
A = EmbeddingTable("a", 100, 8, 3.0, ZipfIds(s=1.1, lengths="poisson"))
B = EmbeddingTable("b", 50, 16, 2.0)
TASK = ShardingTask(tables=(A, B), topology=Topology(num_devices=2, memory_bytes=2**20), batch_size=20)


def shard_set(*shards, **changes):
    return ShardSet(**{"shards": shards, "batch_size": 20, "precision": "fp32", "optimizer": "exact_sgd", **changes})


def test_a_row_shard_sees_only_its_rows_counted_from_its_first():
    ids = TableIds(torch.tensor([0, 5, 9, 5, 2]), torch.tensor([2, 0, 3]))
    cut = cut_rows(ids, ShardSpec(EmbeddingTable("t", 10, 4), (5, 10), 4))
    assert cut.indices.tolist() == [0, 4, 0]
    assert cut.lengths.tolist() == [1, 0, 2]


def test_a_request_holds_piece_after_piece_in_the_kernels_layout():
    request = RequestMaker(3, CPU, 10**6).request(shard_set(ShardSpec(A, (0, 100), 4), ShardSpec(B, (0, 50), 16)), 1)
    first, second = draw_bags(A, 20, seed=3, batch=1), draw_bags(B, 20, seed=3, batch=1)
    assert request.indices.tolist() == [*first.indices, *second.indices]
    assert request.offsets.tolist() == [0, *np.cumsum([*first.lengths, *second.lengths])]


def test_ids_outside_the_table_are_refused_because_kernels_do_not_check(monkeypatch):
    monkeypatch.setattr("shardgym.tables.ids.recorded_bags", lambda *_: Bags(np.array([50]), np.array([1])))
    recorded = dataclasses.replace(B, ids=RecordedIds("x.pt", "t000", 1, 1, "0" * 64))
    with pytest.raises(InputError, match=r"table 'b': id 50 is out of range, expected 0 to 49"):
        RequestMaker(0, CPU, 10).request(shard_set(ShardSpec(recorded, (0, 50), 16), batch_size=1), 0)


def test_ids_that_were_used_longest_ago_are_forgotten_first(monkeypatch):
    names = []

    def draw(table, *given, **named):
        names.append(table.name)
        return draw_bags(table, *given, **named)

    monkeypatch.setattr("shardgym.costs.fbgemm.operator.draw_bags", draw)
    tables = (A, B, EmbeddingTable("c", 50, 16, 2.0))
    maker = RequestMaker(0, CPU, tensor_bytes(TableIds(*map(torch.from_numpy, draw_bags(A, 20, seed=0)))) + 500)
    for n in (0, 1, 0, 2, 0, 1):  # there is room for the ids of two tables
        maker.request(shard_set(ShardSpec(tables[n], (0, 50), 4)), 0)
    assert names == ["a", "b", "c", "b"]


def test_equal_shard_sets_of_different_plans_are_one():
    half = lambda device, cut: Shard("b", (0, 50), cut, device)  # noqa: E731
    one = ShardingPlan.of(TASK, [Shard.whole(A, 0), half(0, (0, 8)), half(1, (8, 16))])
    other = ShardingPlan.of(TASK, [Shard.whole(A, 1), half(1, (8, 16)), half(0, (0, 8))])
    assert shard_sets(TASK, one) == shard_sets(TASK, other)[::-1]


def test_weights_and_optimiser_state_are_counted():
    both = shard_set(ShardSpec(A, (0, 60), 8), ShardSpec(B, (0, 50), 16), optimizer="rowwise_adagrad")
    assert both.num_weights == 60 * 8 + 50 * 16
    assert both.num_states == 110
    assert both.width == 24


@pytest.mark.parametrize(("ids", "hot"), [(RangeIds(shares=(0.75, 0.25)), 3.0), (ZipfIds(s=1.1), 2.0)])
def test_ids_of_a_shard_are_those_of_its_rows(ids, hot):
    table = EmbeddingTable("t", 100, 8, 4.0, ids)
    assert ShardSpec(table, (0, 50), 8).ids_per_sample == pytest.approx(hot)
    assert ShardSpec(table, (50, 100), 8).ids_per_sample == pytest.approx(4 - hot)
