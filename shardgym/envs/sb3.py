"""NativeVecEnv: a native vector environment as a `VecEnv` of stable-baselines3.

Needs the extra `rl`.
"""

import time
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv

from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.observation import Observation
from shardgym.envs.vector_env import PlacementVectorEnv
from shardgym.errors import InputError, MissingDependencyError, short_repr

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "stable_baselines3":
        raise
    raise MissingDependencyError("stable_baselines3", "rl", "shardgym.envs.sb3") from None

Step = tuple[Observation, npt.NDArray[np.float32], Bools, list[dict[str, Any]]]


class NativeVecEnv(VecEnv):
    """A native vector environment for the algorithms of stable-baselines3 and sb3-contrib.

    It replaces a `DummyVecEnv` of single environments wrapped with `Monitor`, and is faster: see docs/environments.md.

    - `env_method("action_masks")` returns the valid actions of every environment, for `MaskablePPO`.
    - An environment is reset in the step that ends its episode. The last observation is in
      `info["terminal_observation"]`, the info of the new episode in `reset_infos`.
    - An info has entries only in the step that ends an episode: those of the environment, and `info["episode"]` with
      return `r`, length `l` and seconds `t`, as from `Monitor`. Other infos are empty, for speed.
    - `seed(s)` seeds environment i with s + i at the next `reset`.

    Args:
        envs: a native vector environment of `gymnasium.make_vec` with `autoreset_mode="SameStep"`, wrapped or not.

    Raises:
        InputError: another environment, or another `autoreset_mode`.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8, autoreset_mode="SameStep")
        >>> venv = NativeVecEnv(envs)
        >>> model = sb3_contrib.MaskablePPO("MultiInputPolicy", venv, seed=0)            # doctest: +SKIP
        >>> model.learn(20_000)                                                         # doctest: +SKIP
    """

    def __init__(self, envs: VectorEnv[Observation, Ints, Any]) -> None:
        native = envs.unwrapped if isinstance(envs, VectorEnv) else envs
        if not isinstance(native, PlacementVectorEnv):
            remedy = "gymnasium.make_vec(id, num_envs=N, autoreset_mode='SameStep') makes one"
            raise InputError(f"envs: expected a native vector environment, got {short_repr(envs)}; {remedy}")
        if native.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise InputError(
                f"stable-baselines3 resets in the step that ends an episode: make the environment with "
                f"autoreset_mode='SameStep', not '{native.autoreset_mode.value}'"
            )
        self.envs = envs
        self._native: PlacementVectorEnv = native
        self._actions: Ints = np.zeros(envs.num_envs, dtype=np.int64)
        self._returns: Floats = np.zeros(envs.num_envs)
        self._lengths: Ints = np.zeros(envs.num_envs, dtype=np.int64)
        self._started_at = time.time()
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Observation:
        """Start episodes in all environments, with the seeds and options that were set."""
        if len({frozenset(own) for own in self._options}) > 1:
            raise InputError("options: expected the same names for all environments; their values may differ")
        options = {name: [own[name] for own in self._options] for name in self._options[0]}
        observations, infos = self.envs.reset(seed=self._seeds, options=options)  # type: ignore[arg-type]
        self.reset_infos = [info_of_row(infos, row) for row in range(self.num_envs)]
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Store the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> Step:
        """Step all environments."""
        observations, rewards, dones, _, infos = self.envs.step(self._actions)
        self._returns += rewards
        self._lengths += 1
        infos_of_rows: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for row in np.flatnonzero(dones).tolist():
            seconds = round(time.time() - self._started_at, 6)
            infos_of_rows[row] = info_of_row(infos["final_info"], row) | {
                "terminal_observation": infos["final_obs"][row], "TimeLimit.truncated": False,
                "episode": {"r": round(float(self._returns[row]), 6), "l": int(self._lengths[row]), "t": seconds},
            }  # fmt: skip
            self.reset_infos[row] = info_of_row(infos, row, but=("final_obs", "final_info"))
        self._returns[dones] = 0.0
        self._lengths[dones] = 0
        return observations, rewards.astype(np.float32), dones, infos_of_rows

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute of the vector environment, which all environments share."""
        value = getattr(self._native, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Raise `NotImplementedError`, because the environments share their settings."""
        raise NotImplementedError(f"{attr_name}: native environments share their settings; make new environments")

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call `action_masks` or `render`, which return a value for every environment."""
        values = getattr(self._native, method_name)(*method_args, **method_kwargs)
        return [values[row] for row in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return True for `Monitor`, whose entries the infos have, and False for other wrappers."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


def info_of_row(infos: dict[str, Any], row: int, but: Sequence[str] = ()) -> dict[str, Any]:
    """Extract the info of one environment from `infos` of `PlacementVectorEnv.step`, without the names in `but`."""
    info = {}
    for name, values in infos.items():
        if not name.startswith("_") and name not in but and infos[f"_{name}"][row]:
            if isinstance(values, dict):  # of a wrapper
                info[name] = {key: of_key[row] for key, of_key in values.items()}
            else:
                info[name] = values[row] if values.dtype == np.object_ else values.item(row)
    return info
