"""Constructors of records say in one line what is wrong."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, ShardingTask, Topology

TABLE = EmbeddingTable("a", 100, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmbeddingTable("a", -1, 4), r"EmbeddingTable: num_embeddings: .*to 1 \(given: -1\)"),
        (lambda: EmbeddingTable("a", 1, "x"), r"EmbeddingTable: embedding_dim: expected a whole number, got 'x'"),
        (lambda: EmbeddingTable("a", 1, 4, poolin_factor=2), "did you mean pooling_factor"),
        (lambda: ShardingTask((TABLE,)), "ShardingTask: topology: Field required; 1 more"),
        (lambda: Topology(4, 2**20, num_devices=3), "Topology: num_devices: Got multiple values"),
        (lambda: dataclasses.replace(Topology(4, 2**20), num_devices=5), "Topology: memory_bytes has 4 entries for 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_name_of_the_field(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_topology_takes_one_memory_size_by_position_too():
    assert Topology(3, 2**20) == Topology(num_devices=3, memory_bytes=2**20)
