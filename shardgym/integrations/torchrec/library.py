"""The names of TorchRec that the adapter uses. Without TorchRec, importing them is an error that says how to get it."""

from __future__ import annotations

from shardgym.errors import MissingDependencyError, ShardGymError

#: TorchRec asks for FBGEMM's CUDA wheel, whatever is installed. So it comes without its dependencies, after those that
#: it really needs.
INSTALL = (
    "pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0 tensordict pyre-extensions tqdm",
    "pip install --no-deps torchrec==1.8.0",
)


class TorchRecMissingError(MissingDependencyError):
    """TorchRec, or a module that it needs, is not installed.

    Args:
        module: the module that could not be imported.
    """

    def __init__(self, module: str) -> None:
        self.command = " && ".join(INSTALL)
        ShardGymError.__init__(
            self,
            f"the TorchRec adapter needs '{module}', which is not installed: {self.command} "
            "(with CUDA: fbgemm-gpu==1.8.0 instead of fbgemm-gpu-cpu)",
        )


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
    raise TorchRecMissingError(error.name or "torchrec") from None

__all__ = [
    "INSTALL",
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
    "TorchRecMissingError",
    "TorchRecPlan",
    "TorchRecTopology",
    "get_default_sharders",
]
