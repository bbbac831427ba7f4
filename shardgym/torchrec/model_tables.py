"""The tables of a model's embedding collections, and a model on the meta device with the tables of a task.

The name of a task's table is the path of its collection in the model, a dot, and its name in the collection. The last
dot separates the two, because names in TorchRec have no dots.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollection,
    EmbeddingBagCollectionInterface,
    EmbeddingCollection,
    EmbeddingCollectionInterface,
)
from torchrec.modules.embedding_tower import EmbeddingTower, EmbeddingTowerCollection
from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection
from torchrec.modules.mc_embedding_modules import BaseManagedCollisionEmbeddingCollection

from shardgym.errors import InputError, UnknownNameError, check_instance
from shardgym.tables.table import EmbeddingTable, Pooling, Precision
from shardgym.tasks.task import ShardingTask, exact_bytes

#: Types of weights that tasks have, by TorchRec's name.
PRECISIONS: dict[str, Precision] = {"FP32": "fp32", "FP16": "fp16"}

#: Collections whose tables tasks have: pooled ones, and unpooled ones, which have one width.
COLLECTIONS: tuple[type[nn.Module], ...] = (EmbeddingBagCollection, EmbeddingCollection)

#: Modules with embeddings that are neither, or wrap one, so that TorchRec shards them otherwise.
_OTHERS = (
    nn.Embedding,
    nn.EmbeddingBag,
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
    BaseManagedCollisionEmbeddingCollection,
    FeatureProcessedEmbeddingBagCollection,
    EmbeddingTower,
    EmbeddingTowerCollection,
)
#: Methods that tell the tables of TorchRec's modules.
_CONFIGS = ("embedding_bag_configs", "embedding_configs")


class ModelTable(NamedTuple):
    """One table of a model."""

    path: str  #: path of its collection in the model, "" if the model is the collection
    config: EmbeddingBagConfig | EmbeddingConfig
    weighted: bool = False  #: whether its collection takes ids with weights

    @property
    def name(self) -> str:
        """Name of the table in a task."""
        return join_name(self.path, self.config.name)

    @property
    def pooling(self) -> Pooling:
        """Pooling in a task: "none" in an `EmbeddingCollection`."""
        if not isinstance(self.config, EmbeddingBagConfig):
            return "none"
        return "mean" if self.config.pooling == PoolingType.MEAN else "sum"

    @property
    def parameter(self) -> str:
        """Name of its weights in the collection."""
        return parameter_name(self.config.name, self.pooling)


def join_name(path: str, table: str) -> str:
    """Return the name in a task of a table of the collection at `path`."""
    return f"{path}.{table}" if path else table


def split_name(name: str) -> tuple[str, str]:
    """Return the path of the collection, and the name of the table there."""
    path, _, table = name.rpartition(".")
    return path, table


def parameter_name(table: str, pooling: Pooling) -> str:
    """Return the name of a table's weights in its collection."""
    return f"{'embeddings' if pooling == 'none' else 'embedding_bags'}.{table}.weight"


def model_tables(model: nn.Module, collections: Sequence[type[nn.Module]] = COLLECTIONS) -> list[ModelTable]:
    """Return the tables of a model's collections in order; raises `InputError` for none, or for one at two places."""
    places: dict[int, str] = {}
    tables = []
    for path, module in _embedding_modules(model):
        if type(module) not in collections:
            continue
        collection: Any = module
        if id(module) in places:
            raise InputError(
                f"one {type(module).__name__} is both '{places[id(module)]}' and '{path}' in the model: TorchRec "
                "cannot shard a shared collection; keep one of them and call it from there"
            )
        places[id(module)] = path
        if isinstance(module, EmbeddingBagCollection):
            weighted = collection.is_weighted()
            tables += [ModelTable(path, config, weighted) for config in collection.embedding_bag_configs()]
        else:
            tables += [ModelTable(path, config) for config in collection.embedding_configs()]
    if not tables:
        others = f"; it has {others[0]}" if (others := left_out(model, collections)) else ""
        expected = " or ".join(cls.__name__ for cls in collections)
        raise InputError(
            f"{type(model).__name__} has no {expected}: expected a model with at least one, before "
            f"DistributedModelParallel has sharded it{others}"
        )
    return tables


def left_out(model: nn.Module, collections: Sequence[type[nn.Module]] = COLLECTIONS) -> list[str]:
    """Return the model's embeddings outside of collections, in order: place, class, tables and bytes.

    These are managed collisions, feature processors, towers, quantised and fused collections, subclasses, which
    TorchRec's sharders do not shard, and torch's own embeddings.
    """
    return [_in_words(path, module) for path, module in _embedding_modules(model) if type(module) not in collections]


def _embedding_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the outermost modules with embeddings and their places, once per place."""
    inside: str | None = None
    for path, module in model.named_modules(remove_duplicate=False):
        if inside is not None and path.startswith(inside):
            continue
        of_torchrec = type(module).__module__.startswith("torchrec.")
        if isinstance(module, _OTHERS) or (of_torchrec and any(hasattr(module, name) for name in _CONFIGS)):
            inside = f"{path}." if path else ""
            yield path, module


def _in_words(path: str, module: nn.Module) -> str:
    """Return e.g. "'words' (EmbeddingCollection: tables w, v; 51200 bytes)"."""
    methods: Iterator[Any] = (getattr(part, n) for part in module.modules() for n in _CONFIGS if hasattr(part, n))
    names = [config.name for config in next(methods, list)()]
    tables = f": tables {', '.join(names)}" if names else ""
    size = sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))
    place = f"'{path}'" if path else "the model itself"
    return f"{place} ({type(module).__name__}{tables}; {exact_bytes(size)})"


def by_table(what: str, values: Mapping[str, Any], tables: list[ModelTable]) -> dict[str, Any]:
    """Return values by the tables' names in a task; raises `InputError` for unknown names and wrong types.

    The keys of `values` are these names, or, as in TorchRec's constraints, names in collections, which stand for all
    tables with this name. The former take precedence.
    """
    names = {table.name: (table.name, table.config.name) for table in tables}
    known = set(itertools.chain(*names.values()))
    for name in values:
        if name not in known:
            raise UnknownNameError(f"table in {what}", name, known)
        if what == "constraints":
            check_instance(f"constraints of '{name}'", values[name], ParameterConstraints)
    return {table: values[name] for table, both in names.items() for name in reversed(both) if name in values}


def without_unplanned(
    values: Mapping[str, Any], model: nn.Module, collections: Sequence[type[nn.Module]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Remove values of tables that are not planned because their collections have no sharder.

    Returns:
        The other values, and the class of the collection of each removed table, by the given name.
    """
    planned: set[str] = set()
    others: dict[str, str] = {}
    for table in model_tables(model):
        cls = type(model.get_submodule(table.path))
        names = (table.name, table.config.name)
        if cls in collections:
            planned.update(names)
        else:
            others.update(dict.fromkeys(names, cls.__name__))
    unplanned = {name: others[name] for name in values if name in others and name not in planned}
    return {name: value for name, value in values.items() if name not in unplanned}, unplanned


def model_from_task(task: ShardingTask) -> nn.Module:
    """Return a model on the meta device that has exactly the tables of a task.

    If names of tables have no dots, the model is one `EmbeddingBagCollection`, or one `EmbeddingCollection` if tables
    are unpooled. Otherwise it is a module with collections at the paths in the names. The feature of a table has the
    table's name in the task; several features are numbered: "table.0", "table.1". The model has no optimisers.

    Raises:
        InputError: a name cannot be that of a module, or a collection has weighted and unweighted tables, or pooled and
            unpooled ones, or unpooled ones of several widths.
    """
    collections: dict[str, list[EmbeddingTable]] = {}
    for table in task.tables:
        path, name = split_name(table.name)
        if not all([*path.split("."), name]) and "." in table.name:
            raise InputError(f"table '{table.name}' cannot be in a model: a name between dots is empty")
        collections.setdefault(path, []).append(table)
    if list(collections) == [""]:
        return _collection(task, collections[""])
    if "" in collections:
        raise InputError(
            f"table '{collections[''][0].name}' lacks the path of its collection, which others have: name it PATH.TABLE"
        )
    model = nn.Module()
    for path in sorted(collections):
        parent = model
        *above, last = path.split(".")
        for name in above:
            if not hasattr(parent, name):
                parent.add_module(name, nn.Module())
            parent = parent.get_submodule(name)
        parent.add_module(last, _collection(task, collections[path]))
    return model


def feature_names(table: EmbeddingTable) -> list[str]:
    """Return the names of a table's features in `model_from_task`."""
    if table.num_features == 1:
        return [table.name]
    return [f"{table.name}.{n}" for n in range(table.num_features)]


def _collection(task: ShardingTask, tables: list[EmbeddingTable]) -> nn.Module:
    first = tables[0]
    for table in tables:
        why = ""
        if table.is_pooled != first.is_pooled:
            why = "only one of them is pooled: TorchRec has a collection for each kind"
        elif table.weighted != first.weighted:
            why = "only one of them has weighted ids: TorchRec's collections are weighted as a whole"
        elif not table.is_pooled and table.embedding_dim != first.embedding_dim:
            why = f"they have {first.embedding_dim} and {table.embedding_dim} columns: TorchRec needs one width"
        if why:
            raise InputError(
                f"tables '{first.name}' and '{table.name}' are in one collection, and {why}; give them different paths"
            )
    meta = torch.device("meta")
    collection: nn.Module
    if first.is_pooled:
        pooling = {"mean": PoolingType.MEAN, "sum": PoolingType.SUM}
        bags = [EmbeddingBagConfig(**_config(task, table), pooling=pooling[table.pooling]) for table in tables]
        collection = EmbeddingBagCollection(tables=bags, is_weighted=first.weighted, device=meta)
    else:
        collection = EmbeddingCollection(tables=[EmbeddingConfig(**_config(task, t)) for t in tables], device=meta)
    return collection


def _config(task: ShardingTask, table: EmbeddingTable) -> dict[str, Any]:
    return {
        "num_embeddings": table.num_embeddings,
        "embedding_dim": table.embedding_dim,
        "name": split_name(table.name)[1],
        "feature_names": feature_names(table),
        "data_type": DataType.FP16 if task.precision_of(table) == "fp16" else DataType.FP32,
    }
