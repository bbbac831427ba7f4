"""Unknown fields of records suggest the field that may have been meant, at any depth."""

import pytest

from shardgym import EmbeddingTable, ShardingTask
from shardgym.errors import InputError


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
