"""The names of TorchRec that the adapter uses. Without TorchRec, importing them is an error that says how to get it."""

from __future__ import annotations

from shardgym.errors import MissingDependencyError

try:
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.planner.types import ParameterConstraints
    from torchrec.distributed.planner.types import Topology as TorchRecTopology
    from torchrec.distributed.sharding_plan import get_default_sharders
    from torchrec.distributed.types import (
        EmbeddingModuleShardingPlan,
        EnumerableShardingSpec,
        ModuleSharder,
        ParameterSharding,
        ShardingPlanner,
        ShardMetadata,
    )
    from torchrec.distributed.types import ShardingPlan as TorchRecPlan
    from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
except ModuleNotFoundError as error:
    _module = (error.name or "torchrec").partition(".")[0]
    _purpose = "the TorchRec adapter (beside the extra 'cpu', or 'gpu' with CUDA)"
    raise MissingDependencyError(_module, "torchrec", _purpose) from None

__all__ = [
    "DataType",
    "EmbOptimType",
    "EmbeddingBagCollection",
    "EmbeddingBagCollectionSharder",
    "EmbeddingBagConfig",
    "EmbeddingModuleShardingPlan",
    "EnumerableShardingSpec",
    "KeyedJaggedTensor",
    "ModuleSharder",
    "ParameterConstraints",
    "ParameterSharding",
    "PoolingType",
    "ShardMetadata",
    "ShardingPlanner",
    "TorchRecPlan",
    "TorchRecTopology",
    "get_default_sharders",
]
