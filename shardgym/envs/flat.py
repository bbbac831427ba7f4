"""Wrappers that flatten observations into one array of floats, for libraries that want it under names of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from shardgym.arguments import describe
from shardgym.arrays import Ints
from shardgym.envs.env import PlacementEnv
from shardgym.envs.features import Float32s
from shardgym.envs.observation import Observation
from shardgym.envs.vector_env import NativeWrapper
from shardgym.errors import InputError
from shardgym.records import short_repr

#: A flat observation, or one under two names.
Flat = Float32s | dict[str, npt.NDArray[Any]]


class FlatObservation(gymnasium.ObservationWrapper[Flat, np.int64, Observation], gymnasium.utils.RecordConstructorArgs):
    """Flattens observations into one array of floats, with the action mask at its end or under a name of its own.

    Without names, observations are one float32 array whose last numbers are the mask, one for each action. With names
    they are dictionaries of two arrays: Tianshou wants `observation_name="obs", mask_name="mask"`, RLlib
    `observation_name="observations", mask_name="action_mask"`. The entries come in the order of `names`.

    Args:
        env: one of ShardGym's environments, wrapped or not.
        observation_name: of the array of floats.
        mask_name: of the mask, int8.

    Attributes:
        names: of the entries that are flattened, without the mask.

    Raises:
        InputError: another environment, or one name without the other.

    Example:
        >>> env = FlatObservation(gymnasium.make("ShardGym/TableWise-v0"), "obs", "mask")
        >>> observation, info = env.reset(seed=0)
        >>> observation["obs"].shape, observation["mask"].shape
        ((59,), (4,))
    """

    def __init__(
        self,
        env: gymnasium.Env[Observation, np.int64],
        observation_name: str | None = None,
        mask_name: str | None = None,
    ) -> None:
        inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
        if not isinstance(inner, PlacementEnv):
            raise InputError(f"FlatObservation is for ShardGym's environments, got {describe(inner)}")
        gymnasium.utils.RecordConstructorArgs.__init__(self, observation_name=observation_name, mask_name=mask_name)
        gymnasium.ObservationWrapper.__init__(self, env)
        self._outer_names = _outer_names(observation_name, mask_name)
        self.names = [name for name in inner.observation_space if name != "action_mask"]
        self.observation_space = flat_space(inner.observation_space, self._outer_names)

    def observation(self, observation: Observation) -> Flat:
        """Flatten an observation."""
        return flatten(observation, self.names, self._outer_names)


class VectorFlatObservation(NativeWrapper):
    """`FlatObservation` for the native vector environments; `final_obs` in infos are flattened, too.

    Args:
        env: a native vector environment, wrapped or not.
        observation_name: of the array of floats.
        mask_name: of the mask, int8.

    Attributes:
        names: of the entries that are flattened, without the mask.

    Raises:
        InputError: another environment, or one name without the other.

    Example:
        >>> envs = VectorFlatObservation(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8))
        >>> envs.reset(seed=0)[0].shape
        (8, 63)
    """

    def __init__(
        self,
        env: VectorEnv[Observation, Ints, Any],
        observation_name: str | None = None,
        mask_name: str | None = None,
    ) -> None:
        super().__init__(env)
        self._outer_names = _outer_names(observation_name, mask_name)
        single_space = self._placing.single_observation_space
        assert isinstance(single_space, spaces.Dict)
        self.names = [name for name in single_space if name != "action_mask"]
        self.single_observation_space = flat_space(single_space, self._outer_names)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Flat, dict[str, Any]]:
        """Start episodes; see `PlacementVectorEnv`."""
        observations, infos = self.env.reset(seed=seed, options=options)
        return flatten(observations, self.names, self._outer_names), infos

    def step(self, actions: Any) -> tuple[Flat, Any, Any, Any, dict[str, Any]]:
        """Step all environments; see `PlacementVectorEnv`."""
        observations, *rest, infos = self.env.step(actions)
        if "final_obs" in infos:
            for row in np.flatnonzero(infos["_final_obs"]).tolist():
                infos["final_obs"][row] = flatten(infos["final_obs"][row], self.names, self._outer_names)
        rewards, terminated, truncated = rest
        return flatten(observations, self.names, self._outer_names), rewards, terminated, truncated, infos


def flatten(observations: Mapping[str, Any], names: list[str], outer_names: tuple[str, str] | None) -> Flat:
    """Return an observation, or a batch of them, as one array; or as two with these names.

    Args:
        observations: arrays of shape (n,) or (N, n).
        names: of those that are flattened.
        outer_names: of the flat array and of the mask; None to append the mask.
    """
    mask = observations["action_mask"]
    parts = [observations[name] for name in names]
    if outer_names is None:
        return np.concatenate([*parts, mask], axis=-1, dtype=np.float32)
    return {outer_names[0]: np.concatenate(parts, axis=-1, dtype=np.float32), outer_names[1]: mask}


def flat_space(space: spaces.Dict, outer_names: tuple[str, str] | None) -> spaces.Space[Any]:
    """Return the space of what `flatten` returns for observations of `space`."""
    boxes = {name: box for name, box in space.items() if isinstance(box, spaces.Box)}
    mask = boxes.pop("action_mask")
    parts = [*boxes.values(), *([mask] if outer_names is None else [])]
    low = np.concatenate([box.low for box in parts], dtype=np.float32)
    flat = spaces.Box(low, np.concatenate([box.high for box in parts], dtype=np.float32), dtype=np.float32)
    return flat if outer_names is None else spaces.Dict({outer_names[0]: flat, outer_names[1]: mask})


def _outer_names(observation_name: str | None, mask_name: str | None) -> tuple[str, str] | None:
    if observation_name is None and mask_name is None:
        return None
    if not isinstance(observation_name, str) or not isinstance(mask_name, str) or observation_name == mask_name:
        raise InputError(
            f"observation_name {short_repr(observation_name)} and mask_name {short_repr(mask_name)}: "
            "expected two different names, or neither"
        )
    return observation_name, mask_name
