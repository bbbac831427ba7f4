"""Registration of the environments with Gymnasium: string entry points, so nothing heavy is loaded."""

from __future__ import annotations

import gymnasium

ENV_IDS = {"ShardGym/TableWise-v0": "shardgym.envs.table_wise:TableWiseEnv"}


def register_envs() -> None:
    """Register every environment once."""
    for env_id, entry_point in ENV_IDS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point)
