"""Wrong records are explained in one line, which suggests the field that may have been meant."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology, load_suite, make_solver


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda task: task.update(batchsize=4), r"batchsize: .*did you mean batch_size\?"),
        (lambda task: task["topology"].update(num_device=4), r"topology\.num_device: .*did you mean num_devices\?"),
        (lambda task: task["tables"][1].update(pooling=4), r"tables\.1\.pooling: .*did you mean pooling_factor\?"),
        (lambda task: task["tables"][0]["ids"].update(kinds=4), r"ids\.uniform\.kinds: .*did you mean kind\?"),
        (lambda task: task.update(colour="red"), r"colour: .*known: batch_size, name, optimizer, precision, schema"),
    ],
)
def test_an_unknown_field_suggests_a_close_one(toy_task, change, hint):
    data = toy_task.to_dict()
    data = {**data, "topology": dict(data["topology"]), "tables": [dict(t) for t in data["tables"]]}
    change(data)
    with pytest.raises(InputError, match=hint):
        ShardingTask.from_dict(data)


def test_a_field_of_another_record_is_not_suggested():
    with pytest.raises(InputError, match="known: embedding_dim"):
        EmbeddingTable.from_dict({"name": "a", "num_embeddings": 1, "embedding_dim": 4, "device": 3})


TABLE = EmbeddingTable("a", 100, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EmbeddingTable("a", -1, 4), r"EmbeddingTable: num_embeddings: expected at least 1, got -1$"),
        (lambda: EmbeddingTable("a", 1, "x"), r"EmbeddingTable: embedding_dim: expected a whole number, got 'x'"),
        (lambda: EmbeddingTable("a", 1, 4, poolin_factor=2), "did you mean pooling_factor"),
        (lambda: ShardingTask((TABLE,)), "ShardingTask: topology: the field is missing; 1 more"),
        (lambda: Topology(4, 2**20, num_devices=3), "Topology: num_devices: the field is given twice"),
        (lambda: dataclasses.replace(Topology(4, 2**20), num_devices=5), "Topology: memory_bytes has 4 entries for 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_name_of_the_field(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_topology_takes_one_memory_size_by_position_too():
    assert Topology(3, 2**20) == Topology(num_devices=3, memory_bytes=2**20)


def test_a_memory_size_that_is_no_whole_number_is_refused():
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


def test_a_message_shows_a_value_once():
    with pytest.raises(InputError, match=r"num_devices: expected a whole number, got None$"):
        Topology(num_devices=None, memory_bytes=(3,))
