"""Wrappers: rewards of similar size for cheap and expensive tasks, and observations as one array beside the mask.

Where one array without names will do, `gymnasium.wrappers.FlattenObservation` makes it, with the mask in front.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shardgym.arguments import describe
from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.env import PlacementEnv, Step
from shardgym.envs.observation import Observation
from shardgym.envs.vector_env import NativeWrapper
from shardgym.envs.vector_env import Step as VectorStep
from shardgym.errors import InputError

#: A flat observation and its mask, each under a name.
Flat = dict[str, npt.NDArray[Any]]


class RelativeReward(gymnasium.Wrapper[Observation, np.int64, Observation, np.int64], RecordConstructorArgs):
    """Divides rewards by the reference cost of the task, so that a return says how far from it an episode ended.

    Rewards of the environments are milliseconds, and some tasks cost ten times as much as others. Here a complete plan
    earns -1 when it costs as much as what a simple rule makes of the task, longest processing time first with halves
    (see `shardgym.envs.reference`), and more when it is better. `info` has `reference_ms` after `reset`, and at the end
    of an episode again, with `ratio`: `cost_ms` over it, infinite unless the plan is complete. A task is priced once.
    `penalty` of the environment is given in ms and divided too, `relative_penalty` is in reference costs.

    Args:
        env: one of ShardGym's environments, wrapped or not.

    Raises:
        InputError: another environment.
    """

    def __init__(self, env: gymnasium.Env[Observation, np.int64]) -> None:
        self._placing = _placement_env("RelativeReward", env)
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._reference_ms = 1.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; the task's reference cost is priced if it is new.

        Raises:
            InputError: the cost model has no time for the reference; or as the environment.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._reference_ms = self._placing.reference_ms()
        return observation, info | {"reference_ms": self._reference_ms}

    def step(self, action: Any) -> Step:
        """Step, and divide the reward."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated:
            info = info | {"reference_ms": self._reference_ms, "ratio": info["cost_ms"] / self._reference_ms}
        return observation, float(reward) / self._reference_ms, terminated, truncated, info


class VectorRelativeReward(NativeWrapper):
    """`RelativeReward` for the native vector environments.

    New tasks of a step are priced together. Infos have the same entries; with autoreset_mode="SameStep" those of the
    end are in `infos["final_info"]`.

    Args:
        env: a native vector environment, wrapped or not.

    Raises:
        InputError: another environment.

    Example:
        >>> envs = VectorRelativeReward(gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8))
        >>> observations, infos = envs.reset(seed=0)
        >>> infos["reference_ms"].shape
        (8,)
    """

    def __init__(self, env: VectorEnv[Observation, Ints, Any]) -> None:
        super().__init__(env)
        self._reference_ms: Floats = np.ones(self.num_envs)
        self._ended: Bools = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episodes; reference costs of new tasks are priced.

        Raises:
            InputError: the cost model has no time for a reference; or as the environment.
        """
        observations, infos = self.env.reset(seed=seed, options=options)  # type: ignore[arg-type]
        mask = (options or {}).get("reset_mask")
        begun = np.ones_like(self._ended) if mask is None else mask
        self._start(begun)
        self._ended = self._ended & ~begun
        return observations, infos | _entries("reference_ms", self._reference_ms, begun)

    def step(self, actions: Any) -> VectorStep:
        """Step, and divide the rewards."""
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        # A step that resets an environment (NEXT_STEP) earns 0, whatever this divides by.
        relative = rewards / self._reference_ms
        same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
        if terminated.any():
            ends = infos["final_info"] if same_step else infos
            ratio = np.divide(ends["cost_ms"], self._reference_ms, out=np.zeros(self.num_envs), where=terminated)
            of_ends = _entries("reference_ms", self._reference_ms, terminated) | _entries("ratio", ratio, terminated)
            infos = infos | ({"final_info": ends | of_ends} if same_step else of_ends)
        begun = terminated if same_step else self._ended & (self.autoreset_mode is AutoresetMode.NEXT_STEP)
        if begun.any():
            self._start(begun)
            known = begun if same_step else begun | terminated
            infos = infos | _entries("reference_ms", self._reference_ms, known)
        self._ended = terminated
        return observations, relative, terminated, truncated, infos

    def _start(self, mask: Bools) -> None:
        """Look up the reference costs of episodes that have just begun."""
        self._reference_ms[mask] = self._placing.references_ms(np.flatnonzero(mask))


def _entries(name: str, values: Floats, mask: Bools) -> dict[str, Any]:
    """Return an entry of infos in Gymnasium's form, 0 where it is not valid."""
    return {name: np.where(mask, values, 0.0), f"_{name}": mask.copy()}


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
        inner = _placement_env("FlatObservation", env)
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


def _placement_env(wrapper: str, env: Any) -> PlacementEnv:
    """Return the innermost environment of a wrapped one; raises `InputError` when it is none of ours."""
    inner = env.unwrapped if isinstance(env, gymnasium.Env) else env
    if not isinstance(inner, PlacementEnv):
        raise InputError(f"{wrapper} is for ShardGym's environments, got {describe(inner)}")
    return inner
