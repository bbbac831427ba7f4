"""RelativeReward and VectorRelativeReward: rewards of similar size for cheap and expensive tasks."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from shardgym.arguments import describe
from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.env import PlacementEnv, Step
from shardgym.envs.observation import Observation
from shardgym.envs.vector_env import NativeWrapper
from shardgym.envs.vector_env import Step as VectorStep
from shardgym.errors import InputError


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
        self._even_share_ms = self._placing.even_share_ms()
        return observation, info | {"even_share_ms": self._even_share_ms}

    def step(self, action: Any) -> Step:
        """Step, and divide the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) / self._even_share_ms, terminated, truncated, info


class VectorRelativeReward(NativeWrapper):
    """`RelativeReward` for the native vector environments.

    Infos have `even_share_ms` of the environments that have just been reset.

    Args:
        env: a native vector environment, wrapped or not.

    Raises:
        InputError: another environment.

    Example:
        >>> envs = VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8))
        >>> observations, infos = envs.reset(seed=0)
        >>> infos["even_share_ms"].shape
        (8,)
    """

    def __init__(self, env: VectorEnv[Observation, Ints, Any]) -> None:
        super().__init__(env)
        self._even_share_ms: Floats = np.ones(self.num_envs)
        self._ended: Bools = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episodes and compute their even shares.

        Raises:
            InputError: the cost model cannot score all tables on one device; or as the environment.
        """
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask = (options or {}).get("reset_mask")
        return observations, self._start(infos, np.ones_like(self._ended) if mask is None else mask)

    def step(self, actions: Any) -> VectorStep:
        """Step, and divide the rewards."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        # A step that resets an environment (NEXT_STEP) earns 0, whatever this divides by.
        relative = rewards / self._even_share_ms
        again = {AutoresetMode.SAME_STEP: terminated, AutoresetMode.NEXT_STEP: self._ended}.get(self.autoreset_mode)
        if again is not None and again.any():
            infos = self._start(infos, again)
        self._ended = terminated
        return observations, relative, terminated, truncated, infos

    def _start(self, infos: dict[str, Any], mask: Bools) -> dict[str, Any]:
        """Compute the even shares of episodes that have just begun and add them to the infos."""
        self._even_share_ms[mask] = self._placing.even_share_ms(np.flatnonzero(mask))
        self._ended = np.zeros_like(mask)
        return infos | {"even_share_ms": np.where(mask, self._even_share_ms, 0.0), "_even_share_ms": mask.copy()}
