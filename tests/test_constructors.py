"""Constructors of records say in one line what is wrong."""

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, load_suite, make_solver

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


def test_a_size_that_is_no_whole_number_is_said_so():
    with pytest.raises(InputError, match="Topology: memory_bytes: expected a whole number of bytes, or one for each"):
        Topology(num_devices=2, memory_bytes=1e9)


def test_a_placement_by_name_says_which_table_is_wrong():
    task = ShardingTask((TABLE,), Topology(num_devices=1, memory_bytes=2**20), batch_size=4)
    with pytest.raises(InputError, match="1 tables, got 1: 'b' is no table of the task"):
        ShardingPlan.table_wise(task, {"b": 0})


@pytest.mark.parametrize("name", [3, None])
def test_names_are_text(name):
    with pytest.raises(InputError, match="solver: expected a name or module:Class, got"):
        make_solver(name)


def test_a_suite_says_which_tasks_it_has():
    suite = load_suite("tiny-v1")
    assert suite[-1] == suite[len(suite) - 1]
    for ask in (suite.__getitem__, suite.group):
        with pytest.raises(IndexError, match=r"suite 'tiny-v1' has tasks 0 to 11, there is no task 99"):
            ask(99)


def test_a_value_is_told_once():
    with pytest.raises(InputError, match=r"num_devices: expected a whole number, got None$"):
        Topology(num_devices=None, memory_bytes=(3,))
