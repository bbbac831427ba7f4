"""PlacementVectorEnv: what the native vector environments share."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shardgym.arguments import check_int
from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.base import PlacementEnv
from shardgym.envs.episode import Episode
from shardgym.envs.observation_space import Observation
from shardgym.envs.rules import RENDER_MODES
from shardgym.envs.vector.actions import whole_numbers
from shardgym.envs.vector.autoreset import autoreset_mode as mode_named
from shardgym.envs.vector.draws import Draws
from shardgym.envs.vector.game import VectorGame
from shardgym.envs.vector.infos import Infos, objects
from shardgym.envs.vector.masks import reset_rows
from shardgym.envs.vector.turn import Turn
from shardgym.errors import InputError

Step = tuple[Observation, Floats, Bools, Bools, dict[str, Any]]


class PlacementVectorEnv(VectorEnv[Observation, Ints, Any]):
    """N environments stepped together, which say what Gymnasium's wrappers of single ones say; see the subclasses."""

    metadata: dict[str, Any]

    #: What it is N of.
    single_env: ClassVar[type[PlacementEnv]]

    def __init__(
        self, num_envs: int = 1, *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **settings: Any
    ) -> None:
        num_envs = check_int("num_envs", num_envs, 1)
        self.num_envs, self._mode = num_envs, mode_named(autoreset_mode)
        self.metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4, "autoreset_mode": self._mode}
        self._single = self.single_env(**settings)
        self.render_mode = self._single.render_mode
        self.single_observation_space = self._single.observation_space
        self.single_action_space = self._single.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._game = VectorGame(num_envs, self._single._game, self._single._layout, self._single._prepare)
        self._draws, self._task_index = Draws(num_envs), np.zeros(num_envs, dtype=np.int64)
        self._started = False

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments."""
        return self._draws.generators

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """What they were seeded with."""
        return self._draws.seeds

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episodes in all environments, or in those of `options["reset_mask"]`.

        Args:
            seed: of environment 0, the others get the numbers that follow; or one for every environment.
            options: of the single environment's `reset`, for every environment alike; and `reset_mask`, shape (N,).

        Raises:
            InputError: unknown options, a seed or mask of another form, or a task that is out of range or too large.
        """
        rows, options = reset_rows(options, self.num_envs)
        if not self._started and len(rows) < self.num_envs:
            raise InputError("reset_mask leaves out environments that have no episode yet: reset all of them first")
        self._draws.seed(rows.tolist(), seed)
        infos = Infos(self.num_envs)
        self._begin(rows, options, infos)
        self._started = True
        self._describe(rows, infos)
        return self._observe(), infos.values

    def step(self, actions: Any) -> Step:
        """Do one action in every environment; those whose episode ended before are reset instead (NEXT_STEP).

        Args:
            actions: shape (N,).

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or an episode has ended and the mode is DISABLED.
            InputError: not one action for each environment.
        """
        again = self._to_reset()
        numbers, infos = whole_numbers(actions, self.num_envs), Infos(self.num_envs)
        turn = self._game.play(np.flatnonzero(~again), numbers, actions)
        terminated = self._game.outcomes.ended & ~again
        if self._mode is AutoresetMode.SAME_STEP:
            again = terminated
            self._say_final(np.flatnonzero(again), turn, infos)
        else:
            turn.tell(infos)
        self._begin(np.flatnonzero(again), None, infos)
        self._describe(np.arange(self.num_envs), infos)
        return self._observe(), turn.rewards, terminated, np.zeros(self.num_envs, dtype=np.bool_), infos.values

    def action_masks(self) -> Bools:
        """Return which actions are valid now, shape (N, actions); none where the episode has ended."""
        if not self._started:
            return np.zeros((self.num_envs, self._single._layout.actions), dtype=np.bool_)
        return self._game.masks()

    def render(self) -> tuple[Any, ...] | None:
        """Return every environment's placement, as the single environment renders it; None without render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            return None
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        return tuple(self._render(row) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the cost model if this environment made it."""
        self._single.close()

    def _to_reset(self) -> Bools:
        """Return which environments begin an episode in place of a step, shape (N,)."""
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        ended = self._game.outcomes.ended.copy()
        if self._mode is AutoresetMode.DISABLED and ended.any():
            raise gymnasium.error.ResetNeeded(
                f"the episode of environment {int(ended.argmax())} has ended: call reset() with a reset_mask first"
            )
        return ended

    def _begin(self, rows: Ints, options: dict[str, Any] | None, infos: Infos) -> None:
        if not len(rows):
            return
        sampler, draws = self._single._sampler, self._draws
        picked = [sampler.pick(draws.generator(row), options) for row in rows.tolist()]
        self._task_index[rows] = [index for index, _ in picked]
        stuck = self._game.begin(rows, [task for _, task in picked])
        infos.put("reason", stuck, objects(map(self._game.reason, stuck.tolist()), len(stuck)))

    def _say_final(self, rows: Ints, turn: Turn, infos: Infos) -> None:
        """Say how episodes ended that are followed by others in the same step."""
        final, observation = Infos(self.num_envs), self._observe()
        self._describe(rows, final)
        turn.tell(final)
        each = [{name: values[row] for name, values in observation.items()} for row in rows.tolist()]
        infos.put("final_obs", rows, objects(each, len(rows)))
        infos.nest("final_info", rows, final)

    def _describe(self, rows: Ints, infos: Infos) -> None:
        """Say what is always said."""
        infos.put("task_index", rows, self._task_index[rows])
        self._game.describe(rows, infos)

    def _observe(self) -> Observation:
        return self._game.observations.observe(self._game.masks())

    def _render(self, row: int) -> Any:
        game = self._game
        placement = game.placements.placement(row)
        self._single._episode = Episode(int(self._task_index[row]), placement, None, cost=game.outcomes.cost[row])
        return self._single.render()
