"""Unpooled tables, which put out a row for each id: what records say of them, and what costs make of them."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym import (
    EmbeddingTable,
    InputError,
    ShardingPlan,
    ShardingTask,
    Topology,
    make_cost,
)

POOLED = EmbeddingTable("pooled", 50_000, 32, 4.0)
SEQUENCE = EmbeddingTable("sequence", 100_000, 64, 20.0, num_features=2, pooling="none")


def task_of(*tables: EmbeddingTable, devices: int = 2, device: str = "h100") -> ShardingTask:
    """Some tables on one node."""
    topology = Topology(devices, memory_bytes=2**34, device=device)
    return ShardingTask(tables, topology, 8192)


def test_a_table_says_that_it_is_unpooled() -> None:
    assert not SEQUENCE.is_pooled
    assert POOLED.is_pooled
    assert dataclasses.replace(POOLED, pooling="mean").is_pooled
    assert EmbeddingTable.from_json(SEQUENCE.to_json()) == SEQUENCE
    with pytest.raises(InputError, match="table 'sequence' is weighted and not pooled"):
        dataclasses.replace(SEQUENCE, weighted=True)


@pytest.mark.parametrize("name", ["simulator", "torchrec_rating", "fbgemm"])
def test_costs_that_know_pooled_tables_alone_refuse_others(name: str) -> None:
    task = task_of(POOLED, SEQUENCE)
    with make_cost(name) as cost, pytest.raises(InputError, match=r"pooled tables alone: table 'sequence' has pooling"):
        cost.evaluate(task, [ShardingPlan.table_wise(task, [0, 1])])


def test_searches_are_refused_as_plans_are() -> None:
    additive = make_cost("simulator").additive()
    assert additive is not None
    with pytest.raises(InputError, match="the simulator knows pooled tables alone"):
        additive.add_task(task_of(SEQUENCE))
