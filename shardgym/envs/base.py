"""PlacementEnv: what the environments share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.costs.base import CostModel
from shardgym.envs.episode import Episode, Snapshot
from shardgym.envs.game import Game
from shardgym.envs.observation_space import Layout, Observation, observation_space
from shardgym.envs.picture import render_picture
from shardgym.envs.prepared import PreparedTasks
from shardgym.envs.refusals import dead_end
from shardgym.envs.render import render_ansi
from shardgym.envs.rules import OBSERVATIONS, RENDER_MODES, Rules, check_choice, check_render_mode
from shardgym.envs.scoring import cost_model, placed_ms
from shardgym.envs.shards import SplitLimits
from shardgym.envs.task_sampler import TaskSampler
from shardgym.errors import InputError
from shardgym.task import ShardingTask

Step = tuple[Observation, float, bool, bool, dict[str, Any]]


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """Puts one shard after another on a device, or halves it where that is an action; see the subclasses."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # type: ignore[misc]

    #: How often shards may be halved; None where tables are placed whole and halving is no action.
    _limits: SplitLimits | None = None

    def __init__(
        self,
        suite: str | None = None,
        cost: str | CostModel = "roofline",
        *,
        tasks: Sequence[ShardingTask] | None = None,
        pool: str | None = None,
        cost_settings: dict[str, Any] | None = None,
        order: str = "size",
        observation: str = "compact",
        reward: str = "terminal",
        penalty: float = -1000.0,
        max_devices: int | None = None,
        max_tables: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = check_render_mode(render_mode)
        rules = Rules(order, reward, penalty, self._limits)
        full = check_choice("observation", observation, OBSERVATIONS) == "full"
        self._sampler = TaskSampler(suite, tasks, pool, max_devices, max_tables, counts_tables=full)
        model, self._owns_cost = cost_model(cost, cost_settings)
        self._game = Game(rules, model, self._sampler.max_devices)
        splits = None if self._limits is None else self._limits.per_episode
        self._layout = Layout(self._sampler.max_devices, splits, self._sampler.max_tables)
        self._prepare = PreparedTasks(order, self._layout)
        self._episode: Episode | None = None
        self.observation_space: spaces.Dict = observation_space(self._layout)  # type: ignore[assignment]
        self.action_space = spaces.Discrete(self._layout.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for `options`.

        Raises:
            InputError: unknown options, or a task that is out of range or too large.
        """
        super().reset(seed=seed)
        index, task = self._sampler.pick(self.np_random, options)
        episode = self._episode = self._game.start(index, self._prepare(task).figures)
        reason = dead_end(episode.placement)
        return self._observe(episode), self._info(episode) | ({} if reason is None else {"reason": reason})

    def step(self, action: Any) -> Step:
        """Put the shard on device `action`, or halve it; see the class for what ends the episode.

        Raises:
            gymnasium.error.ResetNeeded: there is no running episode.
        """
        episode = self._started()
        if episode.ended:
            raise gymnasium.error.ResetNeeded("the episode has ended: call reset() first")
        reward, end = self._game.play(episode, action)
        return self._observe(episode), reward, episode.ended, False, self._info(episode) | end

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are valid now, shape (actions,); none after the end (as in sb3-contrib)."""
        if self._episode is None:
            return np.zeros(self._layout.actions, dtype=np.bool_)
        return self._game.masks(self._episode)

    def snapshot(self) -> Snapshot:
        """Return the point that the episode has reached, for `restore`. The random generator is no part of it.

        Raises:
            gymnasium.error.ResetNeeded: there is no episode.
        """
        return Snapshot(self._made_with, self._started().copy())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back, or on, to a point of an episode of this environment or of one made with the same arguments.

        What `reset` or `step` returned there is not returned again.

        Raises:
            InputError: not a snapshot, or of an environment made with other arguments.
        """
        if not isinstance(snapshot, Snapshot):
            raise InputError(f"expected what snapshot() returned, got {type(snapshot).__name__}")
        if snapshot.made_with != self._made_with:
            raise InputError("the snapshot is of an environment made with other arguments: use it there")
        self._episode = snapshot.episode.copy()

    def render(self) -> Any:
        """Return the placement as text (str) or picture (uint8, shape (H, W, 3)), or None without render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            return None
        episode = self._started()
        times = placed_ms(self._game.cost, episode)
        if self.render_mode == "ansi":
            return render_ansi(episode.placement, times)
        return render_picture(episode.placement, times, self._layout.max_devices)

    def close(self) -> None:
        """Close the cost model if this environment made it."""
        if self._owns_cost:
            self._game.cost.close()

    @property
    def task(self) -> ShardingTask:
        """The task being placed; raises `gymnasium.error.ResetNeeded` before the first reset."""
        return self._started().placement.figures.task

    @property
    def cost(self) -> CostModel:
        """The cost model that rewards come from."""
        return self._game.cost

    @property
    def _made_with(self) -> tuple[Any, ...]:
        cost = self._game.cost
        return type(self).__name__, self._game.rules, self._layout, cost.name, cost.version, cost.hardware

    def _started(self) -> Episode:
        if self._episode is None:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")
        return self._episode

    def _observe(self, episode: Episode) -> Observation:
        builder = self._prepare(episode.placement.figures.task).builder
        return builder.observe(episode.placement, self._game.masks(episode))

    def _info(self, episode: Episode) -> dict[str, Any]:
        return episode.info(halving=self._limits is not None)
