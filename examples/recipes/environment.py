"""An environment: copy this file, change what is observed or rewarded, register it under a name of your own.

    import environment
    env = gymnasium.make("mine/LogReward-v0", suite="quick-v2", cost="roofline")

The import registers the name.
"""

import math
from typing import Any, SupportsFloat

import gymnasium

import shardgym  # noqa: F401, registers ShardGym/TableWise-v0


class LogReward(gymnasium.Wrapper):
    """Pays minus the logarithm of the plan's cost in ms at the end, so that halving any cost earns the same.

    An episode without a plan earns `penalty`.

    Args:
        env: one of ShardGym's environments with reward="terminal".
        penalty: negative.
    """

    def __init__(self, env: gymnasium.Env, penalty: float = -10.0) -> None:
        super().__init__(env)
        self.penalty = penalty

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action; `info` has the plan and its cost when the episode is complete."""
        observation, _, terminated, truncated, info = self.env.step(action)
        reward = 0.0
        if terminated:
            reward = -math.log(info["cost"].total_ms) if info["outcome"] == "complete" else self.penalty
        return observation, reward, terminated, truncated, info


def make(penalty: float = -10.0, **arguments: Any) -> gymnasium.Env:
    """Make the environment; `arguments` are those of ShardGym/TableWise-v0."""
    return LogReward(gymnasium.make("ShardGym/TableWise-v0", reward="terminal", **arguments).unwrapped, penalty)


gymnasium.register("mine/LogReward-v0", entry_point="environment:make")
