"""The native vector environments: N episodes are the rows of one `Game`."""

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.env import ColumnWiseEnv, PlacementEnv, TableWiseEnv, whole_numbers
from shardgym.envs.game import Game
from shardgym.envs.observation import Observation
from shardgym.envs.render import render
from shardgym.errors import InputError, UnknownNameError, check_int

Step = tuple[Observation, Floats, Bools, Bools, dict[str, Any]]

#: Action of an environment whose episode has ended and that waits for others.
IDLE = -1


class PlacementVectorEnv(VectorEnv[Observation, Ints, Any]):
    """N environments of one kind as arrays, made by `gymnasium.make_vec(id, num_envs=N)`.

    Observations, rewards, ends, infos and drawn tasks equal those of Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv`
    with N single environments of the same arguments and seeds. Simulated costs may differ by up to 1e-9, because
    rounding depends on how many plans are predicted together. A step takes a few dozen array operations for any N, and
    scores all plans that it completes together.

    **Episodes.** Each environment draws its tasks with its own generator: `reset(seed=s)` seeds environment i with
    s + i. Options of `reset` hold for all environments, but `task_index` and `task` may be lists with one entry each.
    `options={"reset_mask": mask}` resets the environments where the mask, booleans of shape (N,), is true.

    **Autoreset.** `metadata["autoreset_mode"]` says what follows the end of an episode:

    - "NextStep", the default, as for Gymnasium's wrappers: the next step ignores the action, resets the environment and
      earns 0. In the observation of the end `action_mask` is all zero.
    - "SameStep": the environment is reset in the step that ends the episode. Observation and info of the end are in
      `infos["final_obs"]` and `infos["final_info"]`.
    - "Disabled": the environment must be reset with `reset_mask` before the next step, or idles while its action is
      `IDLE`, earning 0 at no expense.

    **Infos.** Arrays with one entry per environment, or dictionaries of such; the mask `_NAME` marks the valid entries
    of NAME. `plan` and `cost` are the objects of the single environment.

    **Cost.** Additive costs ("simulator", "roofline") predict all placements of a step with equally many devices in one
    call. Other cost models evaluate the plans of each task together, so that measured costs interleave them. If this
    raises `MeasurementError`, all of these plans have no cost.

    `action_masks()` returns booleans of shape (N, actions). `render()` returns one picture or text per environment.

    Args:
        num_envs: number of environments, N.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of the single environment, with the same errors.

    Raises:
        UnknownNameError: no such mode.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8, suite="quick-v2", cost="roofline")
        >>> observations, infos = envs.reset(seed=0)
        >>> actions = observations["action_mask"].argmax(axis=1)
        >>> observations, rewards, terminations, truncations, infos = envs.step(actions)
        >>> observations["table"].shape, rewards.shape
        ((8, 25), (8,))
    """

    metadata: dict[str, Any]

    single_env: ClassVar[type[PlacementEnv]]  #: class of the environments that are batched

    def __init__(
        self, num_envs: int = 1, *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **settings: Any
    ) -> None:
        self.num_envs = check_int("num_envs", num_envs, 1)
        modes = {mode.value: mode for mode in AutoresetMode}
        if autoreset_mode not in (*modes, *modes.values()):
            raise UnknownNameError("autoreset_mode", autoreset_mode, modes)
        # Gymnasium looks into the metadata, TorchRL at the attribute.
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = self.single_env.metadata | {"autoreset_mode": self.autoreset_mode}
        # It is never stepped: it checks the settings and makes the spaces, the rules and the sampler of tasks.
        self._single = self.single_env(**settings)
        self.render_mode = self._single.render_mode
        self.single_observation_space = self._single.observation_space
        self.single_action_space = self._single.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        game = self._single._game
        self._game = Game(game.rules, game.cost, game.layout, self.num_envs)
        self._generators: list[np.random.Generator | None] = [None] * self.num_envs
        self._seeds: list[int | None] = [None] * self.num_envs
        self._started = False

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments, after seeding unseeded ones at random."""
        return tuple(self._generator(row) for row in range(self.num_envs))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of `np_random`."""
        return tuple(seed for _, seed in zip(self.np_random, self._seeds, strict=True) if seed is not None)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episodes in all environments, or in those of `options["reset_mask"]`.

        Args:
            seed: seed of environment 0, whose successors seed the others; or a seed for each environment.
            options: options of the single environment's `reset` for all environments, where `task_index` and `task` may
                be lists with one entry each; and `reset_mask`, shape (N,).

        Raises:
            InputError: unknown options, an invalid mask, or a task that is out of range or too large.
        """
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, dtype=np.bool_)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,) or not mask.any():
            raise InputError(f"reset_mask: expected {self.num_envs} booleans, at least one of them true")
        if not (self._started or mask.all()):
            raise gymnasium.error.ResetNeeded("reset_mask leaves out environments that have no episode yet")
        seeds: Sequence[int | None]
        if seed is None:
            seeds = [None] * self.num_envs
        elif isinstance(seed, int):
            seeds = range(seed, seed + self.num_envs)
        else:
            seeds = seed
        if len(seeds) != self.num_envs:
            raise InputError(f"seed: expected one integer, or {self.num_envs}, got {len(seeds)}")
        for row, own in zip(range(self.num_envs), seeds, strict=True):
            if own is not None and mask[row]:
                self._seed(row, own)
        reasons = self._start(np.flatnonzero(mask), options)
        self._started = True
        return self._game.observe(), self._infos(mask, reasons, {})

    def step(self, actions: Any) -> Step:
        """Take one action in every environment; with NEXT_STEP, reset those whose episode ended before instead.

        Args:
            actions: shape (N,); with DISABLED, `IDLE` for environments whose episode has ended.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or, with DISABLED, for an action other than `IDLE`
                after the end of an episode.
            InputError: the actions are not one integer per environment.
        """
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        again = self._game.ended  # rows that are reset in this step
        numbers = whole_numbers(actions, (self.num_envs,))
        not_idle = again & (numbers != IDLE)
        if self.autoreset_mode is AutoresetMode.DISABLED and not_idle.any():
            raise gymnasium.error.ResetNeeded(
                f"the episode of environment {int(not_idle.argmax())} has ended: call reset() with a reset_mask first, "
                f"or let it idle by the action {IDLE}"
            )
        result = self._game.step(np.flatnonzero(~again), numbers)
        terminated = self._game.ended & ~again
        final: dict[int, dict[str, Any]] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            again = terminated
            if result.ends:  # what they are before this step resets them
                observations = self._game.observe()
                infos = self._game.infos()
                final = {
                    row: {
                        "final_obs": {name: values[row] for name, values in observations.items()},
                        "final_info": {name: values.item(row) for name, values in infos.items()} | end,
                    }
                    for row, end in result.ends.items()
                }
        resets = self.autoreset_mode is not AutoresetMode.DISABLED
        reasons = self._start(np.flatnonzero(again), {}) if resets else {}
        ends = result.ends if self.autoreset_mode is not AutoresetMode.SAME_STEP else final
        infos = self._infos(np.ones(self.num_envs, dtype=np.bool_), reasons, ends)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        return self._game.observe(), result.rewards, terminated, truncated, infos

    def action_masks(self) -> Bools:
        """Return the valid actions, shape (N, actions); none after the end of an episode."""
        return self._game.masks()

    def render(self) -> tuple[Any, ...] | None:
        """Return every environment's placement as the single environment renders it; None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            return None
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        return tuple(render(self._game, row, self.render_mode) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the cost model if this environment created it."""
        self._single.close()

    def _start(self, rows: Ints, options: dict[str, Any]) -> dict[int, str]:
        """Start episodes; return by row why no first action is valid, if so."""
        if not len(rows):
            return {}
        of_each = {
            name: given if isinstance(given, list | tuple | np.ndarray) else [given] * self.num_envs
            for name, given in options.items()
        }
        for name, given in of_each.items():
            if len(given) != self.num_envs:
                raise InputError(f"{name}: expected one value, or {self.num_envs}, got {len(given)}")
        drawn = [
            self._single._sampler.pick(self._generator(row), {name: given[row] for name, given in of_each.items()})
            for row in rows.tolist()
        ]
        return self._game.start(rows, drawn)

    def _infos(self, mask: Bools, reasons: dict[int, str], ends: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Return infos in Gymnasium's form: the mask `_NAME` marks the environments that have an entry NAME."""
        infos: dict[str, Any] = {}
        everywhere = mask.all()
        for name, values in self._game.infos().items():
            if not everywhere:
                values[~mask] = None if values.dtype == np.object_ else 0
            infos[name] = values
            infos[f"_{name}"] = mask.copy()
        for row, reason in reasons.items():
            infos = self._add_info(infos, {"reason": reason}, row)
        for row, end in ends.items():
            infos = self._add_info(infos, end, row)
        return infos

    def _generator(self, row: int) -> np.random.Generator:
        generator = self._generators[row]
        return self._seed(row, None) if generator is None else generator

    def _seed(self, row: int, seed: int | None) -> np.random.Generator:
        generator, self._seeds[row] = seeding.np_random(seed)
        self._generators[row] = generator
        return generator


class TableWiseVectorEnv(PlacementVectorEnv):
    """N `TableWiseEnv` as arrays."""

    single_env = TableWiseEnv


class ColumnWiseVectorEnv(PlacementVectorEnv):
    """N `ColumnWiseEnv` as arrays."""

    single_env = ColumnWiseEnv
