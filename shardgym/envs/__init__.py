"""Gymnasium environments over sharding tasks, registered by string entry points: nothing heavy is loaded for that."""

from __future__ import annotations

import gymnasium

ENV_IDS = {
    "ShardGym/TableWise-v0": "shardgym.envs.env:TableWiseEnv",
    "ShardGym/ColumnWise-v0": "shardgym.envs.env:ColumnWiseEnv",
}
#: What `make_vec` makes of many of them.
VECTOR_ENVS = {
    "ShardGym/TableWise-v0": "shardgym.envs.vector_env:TableWiseVectorEnv",
    "ShardGym/ColumnWise-v0": "shardgym.envs.vector_env:ColumnWiseVectorEnv",
}


def register_envs() -> None:
    """Register every environment once."""
    for env_id, entry_point in ENV_IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point, vector_entry_point=VECTOR_ENVS[env_id])
