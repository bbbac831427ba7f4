"""Wrong records are explained in one line, which suggests the field that may have been meant."""

from __future__ import annotations

import dataclasses

import pytest

from shardgym import EmbeddingTable, InputError, ShardingPlan, ShardingTask, Topology


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        (lambda task: task.update(batchsize=4), r"batchsize: .*did you mean batch_size\?"),
        (lambda task: task["topology"].update(num_device=4), r"topology\.num_device: .*did you mean num_devices\?"),
        (lambda task: task.update(colour="red"), r"colour: .*known: batch_size, dedup_ids, group_sync_interval, name"),
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
        (lambda: ShardingTask((TABLE,)), "ShardingTask: topology: the field is missing; 1 more"),
        (lambda: Topology(4, 2**20, num_devices=3), "Topology: num_devices: the field is given twice"),
        (lambda: dataclasses.replace(Topology(4, 2**20), num_devices=5), "Topology: memory_bytes has 4 entries for 5"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_line_with_the_name_of_the_field(make, message):
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_placement_by_name_says_which_table_is_wrong():
    task = ShardingTask((TABLE,), Topology(num_devices=1, memory_bytes=2**20), batch_size=4)
    with pytest.raises(InputError, match="1 tables, got 1: 'b' is no table of the task"):
        ShardingPlan.table_wise(task, {"b": 0})
