"""ColumnWiseVectorEnv: many column-wise environments, stepped together."""

from __future__ import annotations

from shardgym.envs.column_wise import ColumnWiseEnv
from shardgym.envs.vector.base import PlacementVectorEnv


class ColumnWiseVectorEnv(PlacementVectorEnv):
    """`ColumnWiseEnv` many times, as arrays; what `make_vec("ShardGym/ColumnWise-v0", num_envs=N)` makes.

    All that is said of `TableWiseVectorEnv` holds, but one thing: simulated costs of plans with halved tables agree
    with those of single environments to rounding (a relative difference of at most 1e-12). The simulator encodes
    shards when they first come up; here all that a table can be halved into are encoded at once, and how many are
    encoded together may change last bits.

    Args:
        num_envs: number of environments.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of `ColumnWiseEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such mode; or no such suite, pool, cost, order, observation or reward.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/ColumnWise-v0", num_envs=8, suite="quick-v1", max_splits=4)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations["action_mask"].shape
        (8, 5)
    """

    single_env = ColumnWiseEnv
