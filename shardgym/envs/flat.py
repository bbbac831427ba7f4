"""Wrappers that flatten observations into one array of floats beside the mask, under names that a library wants.

Where one array without names will do, `gymnasium.wrappers.FlattenObservation` makes it, with the mask in front.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from shardgym.arguments import describe
from shardgym.arrays import Ints
from shardgym.envs.env import PlacementEnv
from shardgym.envs.observation import Observation
from shardgym.envs.vector_env import NativeWrapper
from shardgym.errors import InputError

#: A flat observation and its mask, each under a name.
Flat = dict[str, npt.NDArray[Any]]


class FlatObservation(gymnasium.ObservationWrapper[Flat, np.int64, Observation], RecordConstructorArgs):
    """Flattens observations into dictionaries of two arrays: all numbers as float32, and the action mask.

    Tianshou and TorchRL take the names "obs" and "mask", RLlib takes "observations" and "action_mask".

    Args:
        env: one of ShardGym's environments, wrapped or not.
        observation_name: of the array of floats.
        mask_name: of the mask, int8.

    Raises:
        InputError: another environment, or one name for both.

    Example:
        >>> env = FlatObservation(gymnasium.make("ShardGym/TableWise-v0"))
        >>> observation, info = env.reset(seed=0)
        >>> observation["obs"].shape, observation["mask"].shape
        ((59,), (4,))
    """

    def __init__(
        self, env: gymnasium.Env[Observation, np.int64], observation_name: str = "obs", mask_name: str = "mask"
    ) -> None:
        inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
        if not isinstance(inner, PlacementEnv):
            raise InputError(f"FlatObservation is for ShardGym's environments, got {describe(inner)}")
        RecordConstructorArgs.__init__(self, observation_name=observation_name, mask_name=mask_name)
        gymnasium.ObservationWrapper.__init__(self, env)
        self._names = _two_names(observation_name, mask_name)
        self._numbers = _numbers(inner.observation_space)
        self.observation_space = flat_space(inner.observation_space, self._names)

    def observation(self, observation: Observation) -> Flat:
        """Flatten an observation."""
        return _flatten(observation, self._numbers, self._names)


class VectorFlatObservation(NativeWrapper):
    """`FlatObservation` for the native vector environments; `final_obs` in infos are flattened, too.

    Args:
        env: a native vector environment, wrapped or not.
        observation_name: of the array of floats.
        mask_name: of the mask, int8.

    Raises:
        InputError: another environment, or one name for both.

    Example:
        >>> envs = VectorFlatObservation(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8))
        >>> envs.reset(seed=0)[0]["obs"].shape
        (8, 59)
    """

    def __init__(
        self, env: VectorEnv[Observation, Ints, Any], observation_name: str = "obs", mask_name: str = "mask"
    ) -> None:
        super().__init__(env)
        self._names = _two_names(observation_name, mask_name)
        single_space = self._placing.single_observation_space
        assert isinstance(single_space, spaces.Dict)
        self._numbers = _numbers(single_space)
        self.single_observation_space = flat_space(single_space, self._names)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Flat, dict[str, Any]]:
        """Start episodes; see `PlacementVectorEnv`."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return _flatten(observations, self._numbers, self._names), infos

    def step(self, actions: Any) -> tuple[Flat, Any, Any, Any, dict[str, Any]]:
        """Step all environments; see `PlacementVectorEnv`."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        if "final_obs" in infos:
            for row in np.flatnonzero(infos["_final_obs"]).tolist():
                infos["final_obs"][row] = _flatten(infos["final_obs"][row], self._numbers, self._names)
        return _flatten(observations, self._numbers, self._names), rewards, terminated, truncated, infos


def flat_space(space: spaces.Dict, names: tuple[str, str]) -> spaces.Space[Any]:
    """Return the space of flattened observations of `space`: floats and mask under `names`."""
    return spaces.Dict({names[0]: spaces.utils.flatten_space(_numbers(space)), names[1]: space["action_mask"]})


def _numbers(space: spaces.Dict) -> spaces.Dict:
    """Return the space of an observation without its mask."""
    return spaces.Dict({name: part for name, part in space.items() if name != "action_mask"})


def _flatten(observation: Observation, numbers: spaces.Dict, names: tuple[str, str]) -> Flat:
    """Flatten an observation, or a batch of them: Gymnasium's `flatten` takes one only."""
    flat = np.concatenate([observation[name] for name in numbers], axis=-1, dtype=np.float32)
    return {names[0]: flat, names[1]: observation["action_mask"]}


def _two_names(observation_name: str, mask_name: str) -> tuple[str, str]:
    if observation_name == mask_name:
        raise InputError(f"observation_name and mask_name are both {observation_name!r:.60}: expected two names")
    return observation_name, mask_name
