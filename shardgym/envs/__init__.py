"""Gymnasium environments over sharding tasks, registered by string entry points to avoid heavy imports."""

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

if TYPE_CHECKING:
    from shardgym.envs.any_wise import AnyWiseEnv, AnyWiseVectorEnv
    from shardgym.envs.env import ColumnWiseEnv, TableWiseEnv
    from shardgym.envs.vector_env import ColumnWiseVectorEnv, TableWiseVectorEnv

__all__ = [
    "AnyWiseEnv", "AnyWiseVectorEnv", "ColumnWiseEnv", "ColumnWiseVectorEnv", "TableWiseEnv", "TableWiseVectorEnv",
    "register_envs",
]  # fmt: skip

ENV_IDS = {
    "ShardGym/TableWise-v0": "shardgym.envs.env:TableWiseEnv",
    "ShardGym/ColumnWise-v0": "shardgym.envs.env:ColumnWiseEnv",
    "ShardGym/AnyWise-v0": "shardgym.envs.any_wise:AnyWiseEnv",
}
#: What `make_vec` makes of many of them.
VECTOR_ENVS = {
    "ShardGym/TableWise-v0": "shardgym.envs.vector_env:TableWiseVectorEnv",
    "ShardGym/ColumnWise-v0": "shardgym.envs.vector_env:ColumnWiseVectorEnv",
    "ShardGym/AnyWise-v0": "shardgym.envs.any_wise:AnyWiseVectorEnv",
}


def __getattr__(name: str) -> Any:
    """Import a class of environments by its name."""
    for entry_point in (*ENV_IDS.values(), *VECTOR_ENVS.values()):
        module, _, attribute = entry_point.partition(":")
        if attribute == name:
            return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def register_envs() -> None:
    """Register every environment once."""
    for env_id, entry_point in ENV_IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point, vector_entry_point=VECTOR_ENVS[env_id])
