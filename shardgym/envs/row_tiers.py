"""The environment of rows in tiers, and its native vector form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from shardgym.arguments import check_int
from shardgym.costs.base import CostModel
from shardgym.envs.env import PlacementEnv, refuse_arguments
from shardgym.envs.game import Rules
from shardgym.envs.render import check_render_mode
from shardgym.envs.scoring import cost_model
from shardgym.envs.tasks import TaskSampler
from shardgym.envs.tier_catalog import TABLE_FEATURES, TASK_FEATURES
from shardgym.envs.tier_game import TierGame, TierLayout
from shardgym.envs.vector_env import PlacementVectorEnv
from shardgym.errors import InputError
from shardgym.task import ShardingTask


class RowTiersEnv(PlacementEnv):
    """Cut the rows of tables into tiers, one table after another; registered as `ShardGym/RowTiers-v0`.

    Rows are in order of frequency: the first ones are held by all devices, the next by one device of every node, the
    others by one device of all, as FlexShard has them. The agent chooses where to cut. `shardgym.row_tiers.tier_plan`
    spreads what is cut over the devices.

    **Episode.** `reset` draws a task, as in `TableWiseEnv`. Tables come up in descending order of memory. Each takes
    two steps, or one where devices are in one node, or in nodes of one device or of several sizes: there is no tier of
    nodes then.

    **Action.** `action_space` is `Discrete(levels)`. Level k stands for the first rows that get a share of k /
    (levels - 1) of the table's lookups: level 0 for none, the last one for all rows. The first step of a table says
    which rows all devices hold; the second one, up to which row one device of each node does, which is that level or a
    higher one.

    **Which are valid.** Those after which every device has room for the tables that are cut, in their tiers, and for
    the others, without copies. Of several levels with the same rows the lowest one is valid.

    **Observation.** A dictionary of boxes of one dimension, float32 in [0, 1]. K is `levels`.

    - `table` (8,): the table to cut (zeros when none is left). log2(rows) / 40; log2(columns) / 16; ln(1 + pooling
      factor) / ln(1 + 1e6); shares of the task's bytes, and of columns times pooling factor; whether it is unpooled;
      whether the second step is due; and the share of its lookups that get the rows which all devices are to hold.
    - `levels` (3 K,): `reshape(K, 3)` gives three numbers for each level: its rows over those of the table; and what it
      takes of the memory that is free for copies if all devices hold these rows, or one of each node does, at most 1.
    - `task` (5,): share of tables cut; free share of the memory for copies; log2 of nodes and of their devices, each
      over 16; bandwidth between nodes over that inside of them, at most 1.
    - `action_mask`, int8 (K,): 1 for levels that are valid. All zero only after the end.

    **Reward.** With reward="terminal", the last step of a complete plan earns minus its cost,
    `-info["cost"].total_ms`, but never less than `penalty`; earlier steps earn 0. With reward="dense", the last step of
    each table earns minus the increase of what the tables that are cut take, as a task of their own; returns are the
    same. `RelativeReward` has rewards relative to a reference, as of other environments.

    **End.** `terminated` is set, and `info["outcome"]` is "complete", "invalid_action" or "no_cost", as in
    `TableWiseEnv`; or "no_device_fits" where the tables do not fit without copies. Then `reset` gives the reason in
    `info["reason"]`, all levels are valid, and the first step ends the episode. Episodes are never truncated.

    **Info.** Always: `task_index`, `task_hash`, `task`, `table`, as in `TableWiseEnv`; `placed`, tables that are cut;
    `rows_everywhere`, those of the table to cut that all devices are to hold (0 before that is chosen). At the end that
    of `TableWiseEnv`.

    **Snapshots, Rendering.** As in `TableWiseEnv`; what is shown are the tables that are cut, as a task of their own.

    Args:
        suite: name of a suite; "quick-v1" when neither `suite` nor `tasks` is given.
        cost: name of a cost model, or the model itself. It has to price rows in tiers, as "replay" does.
        levels: K, at least 2.
        tasks: your own tasks instead of a suite.
        pool: as in `TableWiseEnv`.
        pool_tasks: likewise.
        cost_settings: keyword arguments for a cost model given by name; numbers as expected, `{"ids": "expected"}`,
            where cost is "replay" and none are given.
        reward: "terminal" or "dense".
        penalty: return of an episode that ends without a cost, in ms; negative and finite.
        relative_penalty: as in `TableWiseEnv`.
        sampling: likewise.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        InputError: arguments that are out of range or contradict each other, or a cost that prices no tiers.
        UnknownNameError: no such suite, pool, cost, reward or sampling; the closest names are given.

    Example:
        >>> env = gymnasium.make("ShardGym/RowTiers-v0", suite="quick-v1")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, ended, _, info = env.step(0)
        >>> info["placed"], reward
        (1, 0.0)
    """

    def __init__(
        self,
        suite: str | None = None,
        cost: str | CostModel = "replay",
        *,
        levels: int = 11,
        tasks: Sequence[ShardingTask] | None = None,
        pool: str | None = None,
        pool_tasks: int | None = None,
        cost_settings: dict[str, Any] | None = None,
        reward: str = "terminal",
        penalty: float = -1000.0,
        relative_penalty: float | None = None,
        sampling: str = "random",
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        refuse_arguments(unknown, type(self))
        self.render_mode = check_render_mode(render_mode)
        self._sampler = TaskSampler(suite, tasks, pool, pool_tasks=pool_tasks, sampling=sampling)
        if cost == "replay" and cost_settings is None:
            cost_settings = {"ids": "expected"}
        model, self._owns_cost = cost_model(cost, cost_settings)
        if not model.row_tiers:
            raise InputError(f"cost '{model.name}' prices no rows in tiers: 'replay' does")
        layout = TierLayout(self._sampler.max_devices, levels=check_int("levels", levels, 2))
        self._game = TierGame(Rules("size", reward, penalty, relative_penalty), model, layout)
        self._started = False
        shares = {"table": len(TABLE_FEATURES), "levels": 3 * levels, "task": len(TASK_FEATURES)}
        boxes: dict[str, spaces.Space[Any]] = {
            name: spaces.Box(0.0, 1.0, (size,), np.float32) for name, size in shares.items()
        }
        self.observation_space = spaces.Dict(boxes | {"action_mask": spaces.Box(0, 1, (levels,), np.int8)})
        self.action_space = spaces.Discrete(levels)

    @property
    def task(self) -> ShardingTask:
        """The task that is cut; raises `gymnasium.error.ResetNeeded` before the first reset."""
        if not self._started:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        assert isinstance(self._game, TierGame)
        return self._game.task_of(0)


class RowTiersVectorEnv(PlacementVectorEnv):
    """`RowTiersEnv` many times, as arrays; what `make_vec("ShardGym/RowTiers-v0", num_envs=N)` makes.

    Everything in the description of `TableWiseVectorEnv` applies.

    Args:
        num_envs: number of environments.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of `RowTiersEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other, or a cost that prices no tiers.
        UnknownNameError: no such mode; or no such suite, pool, cost or sampling.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/RowTiers-v0", num_envs=8, suite="quick-v1")
        >>> observations, infos = envs.reset(seed=0)
        >>> observations["action_mask"].shape
        (8, 11)
    """

    single_env = RowTiersEnv
