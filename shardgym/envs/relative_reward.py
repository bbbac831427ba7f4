"""RelativeReward: rewards of similar size for cheap and expensive tasks."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np

from shardgym.arguments import describe
from shardgym.costs.base import CostModel
from shardgym.envs.env import PlacementEnv, Step
from shardgym.envs.observation import Observation
from shardgym.errors import InputError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

_MUCH_MEMORY = 2**60


class RelativeReward(
    gymnasium.Wrapper[Observation, np.int64, Observation, np.int64], gymnasium.utils.RecordConstructorArgs
):
    """Divides rewards by the time that the task would take if its work were spread evenly.

    Rewards of the environments are milliseconds, and some tasks cost ten times as much as others. Here a complete plan
    earns about -1 when it is perfectly balanced and -D when one of D devices does all the work. The even share is the
    cost of all tables on one device (whatever its memory), over the number of devices; it is computed at every `reset`
    and added to `info` as `even_share_ms`. `penalty` of the environment is given in ms and divided too.

    Args:
        env: one of ShardGym's environments, wrapped or not.

    Raises:
        InputError: another environment.
    """

    def __init__(self, env: gymnasium.Env[Observation, np.int64]) -> None:
        inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
        if not isinstance(inner, PlacementEnv):
            raise InputError(f"RelativeReward is for ShardGym's environments, got {describe(inner)}")
        gymnasium.utils.RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._placing: PlacementEnv = inner
        self._even_share_ms = 1.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and compute its even share.

        Raises:
            InputError: the cost model cannot score all tables on one device; or as the environment.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._even_share_ms = even_share_ms(self._placing.cost, self._placing.task)
        return observation, info | {"even_share_ms": self._even_share_ms}

    def step(self, action: Any) -> Step:
        """Step, and divide the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) / self._even_share_ms, terminated, truncated, info


def even_share_ms(cost: CostModel, task: ShardingTask) -> float:
    """Return the time of all tables on one device over the number of devices.

    Raises:
        InputError: the cost model has no time for it.
    """
    topology = dataclasses.replace(task.topology, memory_bytes=(_MUCH_MEMORY,) * task.num_devices)
    roomy = dataclasses.replace(task, topology=topology)
    [on_one] = cost.evaluate(roomy, [ShardingPlan.table_wise(roomy, [0] * task.num_tables)])
    if on_one.reason is not None:
        raise InputError(f"task '{task.name}': there is no time of all tables on one device: {on_one.reason}")
    return on_one.total_ms / task.num_devices
