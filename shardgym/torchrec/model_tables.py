"""The tables of a model's embedding collections, and a model on the meta device with the tables of a task.

A table of a task is named after its place in the model: the path of its collection, a dot, its name there. Neither
modules nor tables of TorchRec may have a dot in their names, so the last dot separates the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import nn
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from shardgym.arguments import check_instance
from shardgym.errors import InputError, UnknownNameError
from shardgym.task import ShardingTask

#: Types of weights that tasks have, by TorchRec's name.
PRECISIONS = {"FP32": "fp32", "FP16": "fp16"}


class ModelTable(NamedTuple):
    """One table of a model.

    Attributes:
        path: of its collection in the model, "" when the model is the collection.
        config: rows, width, features and pooling.
    """

    path: str
    config: EmbeddingBagConfig

    @property
    def name(self) -> str:
        """What a task calls the table."""
        return join_name(self.path, self.config.name)


def join_name(path: str, table: str) -> str:
    """Return what a task calls a table of the collection at `path`."""
    return f"{path}.{table}" if path else table


def split_name(name: str) -> tuple[str, str]:
    """Return path of the collection and name of the table there."""
    path, _, table = name.rpartition(".")
    return path, table


def model_tables(model: nn.Module) -> list[ModelTable]:
    """Return the tables of every `EmbeddingBagCollection` of a model, in the model's order.

    Raises:
        InputError: no module, a model without such a collection, or one collection at two places.
    """
    check_instance("model", model, nn.Module)
    places: dict[int, str] = {}
    tables = []
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, EmbeddingBagCollection):
            continue
        if id(module) in places:
            raise InputError(
                f"one EmbeddingBagCollection is at '{places[id(module)]}' and at '{path}' of the model: TorchRec "
                "cannot shard a collection that is shared; keep one place and call it from there"
            )
        places[id(module)] = path
        tables += [ModelTable(path, config) for config in module.embedding_bag_configs()]
    if not tables:
        raise InputError(
            f"{type(model).__name__} has no EmbeddingBagCollection: expected a model with at least one, before "
            "DistributedModelParallel has sharded it"
        )
    return tables


def by_table(what: str, values: Mapping[str, Any], tables: list[ModelTable]) -> dict[str, Any]:
    """Return values by the names that a task gives to tables.

    Args:
        what: the argument, for messages.
        values: by the names of tables in their collections, as TorchRec's constraints are, or by those in a task.
        tables: of the model.

    Raises:
        InputError: no table has such a name, or several have.
    """
    check_instance(what, values, Mapping)
    places: dict[str, list[str]] = {}
    for table in tables:
        for name in {table.name, table.config.name}:
            places.setdefault(name, []).append(table.name)
    found = {}
    for name, value in values.items():
        if name not in places:
            raise UnknownNameError(f"table in {what}", name, places)
        if len(places[name]) > 1:
            raise InputError(f"{what}: tables {' and '.join(places[name])} are called '{name}': give one of these")
        found[places[name][0]] = value
    return found


def model_from_task(task: ShardingTask) -> nn.Module:
    """Return a model on the meta device that has exactly the tables of a task, with sum pooling.

    A task whose tables have no dot in their names gives one `EmbeddingBagCollection`. Others give a module with
    collections at the places that the names tell. Every table has one feature, called like the table in the task.

    Raises:
        InputError: a name cannot be that of a module.
    """
    check_instance("task", task, ShardingTask)
    configs: dict[str, list[EmbeddingBagConfig]] = {}
    for table in task.tables:
        path, name = split_name(table.name)
        if not all([*path.split("."), name]) and "." in table.name:
            raise InputError(f"table '{table.name}' cannot be in a model: expected names between the dots")
        config = EmbeddingBagConfig(
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            name=name,
            feature_names=[table.name],
            data_type=DataType.FP16 if task.precision == "fp16" else DataType.FP32,
        )
        configs.setdefault(path, []).append(config)
    if list(configs) == [""]:
        return _collection(configs[""])
    if "" in configs:
        raise InputError(
            f"table '{configs[''][0].name}' is in no module and others are: give each the path of its collection"
        )
    model = nn.Module()
    for path in sorted(configs):
        parent = model
        *above, last = path.split(".")
        for name in above:
            if not hasattr(parent, name):
                parent.add_module(name, nn.Module())
            parent = parent.get_submodule(name)
        parent.add_module(last, _collection(configs[path]))
    return model


def _collection(configs: list[EmbeddingBagConfig]) -> nn.Module:
    collection: nn.Module = EmbeddingBagCollection(tables=configs, device="meta")
    return collection
