"""The native vector environments: N episodes are the rows of one `Game`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from shardgym.arguments import check_dict, check_int, describe
from shardgym.arrays import Bools, Floats, Ints
from shardgym.envs.env import ColumnWiseEnv, PlacementEnv, TableWiseEnv, action_number
from shardgym.envs.game import StepResult
from shardgym.envs.observation import Observation
from shardgym.envs.render import render
from shardgym.errors import InputError, UnknownNameError
from shardgym.records import short_repr

Step = tuple[Observation, Floats, Bools, Bools, dict[str, Any]]

#: Action of an environment whose episode has ended and that waits for others.
IDLE = -1


class PlacementVectorEnv(VectorEnv[Observation, Ints, Any]):
    """What the native vector environments have in common; see the subclasses."""

    metadata: dict[str, Any]

    #: Class of the environments that are batched.
    single_env: ClassVar[type[PlacementEnv]]

    def __init__(
        self, num_envs: int = 1, *, autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP, **settings: Any
    ) -> None:
        self.num_envs = check_int("num_envs", num_envs, 1)
        # Gymnasium looks into the metadata, TorchRL at the attribute.
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = self.single_env.metadata | {"autoreset_mode": self.autoreset_mode}
        # It is never stepped: it checks the settings and makes the spaces, the rules and the sampler of tasks.
        self._single = self.single_env(**settings)
        self.render_mode = self._single.render_mode
        self.single_observation_space = self._single.observation_space
        self.single_action_space = self._single.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._single._sampler.share_among(self.num_envs)
        game = self._single._game
        self._game = type(game)(game.rules, game.cost, game.layout, self.num_envs)
        self._generators: list[np.random.Generator | None] = [None] * self.num_envs
        self._seeds: list[int | None] = [None] * self.num_envs
        self._started = False

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The random generators of the environments; an environment that was not seeded gets a random seed now."""
        return tuple(self._generator(row) for row in range(self.num_envs))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seeds of `np_random`."""
        return tuple(seed for _, seed in zip(self.np_random, self._seeds, strict=True) if seed is not None)

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start episodes in all environments, or in those of `options["reset_mask"]`.

        Args:
            seed: of environment 0, the others get the numbers that follow; or one for every environment.
            options: of the single environment's `reset`, for every environment alike, where `task_index` may also be
                one number for each environment, shape (N,); and `reset_mask`, shape (N,).

        Raises:
            InputError: unknown options, a seed or mask of another form, or a task that is out of range or too large.
        """
        options = check_dict("options", options)
        mask = _reset_mask(options.pop("reset_mask", None), self.num_envs)
        if mask.all():
            self._single._sampler.begin_anew()
        if not self._started and not mask.all():
            raise InputError("reset_mask leaves out environments that have no episode yet: reset all of them first")
        rows = np.flatnonzero(mask)
        seeds = _one_seed_each(seed, self.num_envs)
        for row in rows.tolist():
            if seeds[row] is not None:
                self._seed(row, seeds[row])
        reasons = self._start(rows, options)
        self._started = True
        return self._game.observe(), self._infos(mask, reasons, {})

    def step(self, actions: Any) -> Step:
        """Do one action in every environment; those whose episode ended before are reset instead (NEXT_STEP).

        Args:
            actions: shape (N,); with DISABLED, `IDLE` where an episode has ended and none follows.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset, or an episode has ended, the mode is DISABLED, and its
                action is not `IDLE`.
            InputError: not one action for each environment.
        """
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        again = self._game.ended  # rows that are reset in this step
        numbers = _action_numbers(actions, self.num_envs)
        not_idle = again & (numbers != IDLE)
        if self.autoreset_mode is AutoresetMode.DISABLED and not_idle.any():
            raise gymnasium.error.ResetNeeded(
                f"the episode of environment {int(not_idle.argmax())} has ended: call reset() with a reset_mask first, "
                f"or let it idle by the action {IDLE}"
            )
        result = self._game.step(np.flatnonzero(~again), numbers, actions)
        terminated = self._game.ended & ~again
        final: dict[int, dict[str, Any]] = {}
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            again = terminated
            final = self._final(result)
        resets = self.autoreset_mode is not AutoresetMode.DISABLED
        reasons = self._start(np.flatnonzero(again), None) if resets else {}
        ends = result.ends if self.autoreset_mode is not AutoresetMode.SAME_STEP else final
        infos = self._infos(np.ones(self.num_envs, dtype=np.bool_), reasons, ends)
        truncated = np.zeros(self.num_envs, dtype=np.bool_)
        return self._game.observe(), result.rewards, terminated, truncated, infos

    def action_masks(self) -> Bools:
        """Return which actions are valid now, shape (N, actions); none where the episode has ended."""
        return self._game.masks()

    def references_ms(self, rows: Ints) -> Floats:
        """Return the costs of tasks by a simple rule, see `shardgym.envs.reference`, shape (n,).

        Args:
            rows: numbers of environments, shape (n,).

        Raises:
            InputError: the cost model has no time for it.
        """
        return self._game.scorer.references_ms(rows)

    def render(self) -> tuple[Any, ...] | None:
        """Return every environment's placement, as the single environment renders it; None without render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
        """
        if self.render_mode is None:
            return None
        if not self._started:
            raise gymnasium.error.ResetNeeded("there are no episodes: call reset() first")
        return tuple(render(self._game, row, self.render_mode) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """Close the cost model if this environment made it."""
        self._single.close()

    def _start(self, rows: Ints, options: dict[str, Any] | None) -> dict[int, str]:
        """Start episodes; return the reason for each in which no action is valid from the beginning."""
        if not len(rows):
            return {}
        sampler = self._single._sampler
        options_of = _options_of_each(options, self.num_envs)
        drawn = [sampler.pick(self._generator(row), options_of[row], row) for row in rows.tolist()]
        return self._game.start(rows, drawn)

    def _infos(self, mask: Bools, reasons: dict[int, str], ends: dict[int, dict[str, Any]]) -> dict[str, Any]:
        """Return infos in Gymnasium's form: the mask `_NAME` marks the environments that have an entry NAME.

        Args:
            mask: environments that have infos, shape (N,).
            reasons: see `Game.start`.
            ends: entries added at the end of episodes, by row.
        """
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

    def _final(self, result: StepResult) -> dict[int, dict[str, Any]]:
        """Return `final_obs` and `final_info` of the episodes that ended, before the same step resets them."""
        if not result.ends:
            return {}
        observations = self._game.observe()
        infos = self._game.infos()
        return {
            row: {
                "final_obs": {name: values[row] for name, values in observations.items()},
                "final_info": {name: values.item(row) for name, values in infos.items()} | end,
            }
            for row, end in result.ends.items()
        }

    def _generator(self, row: int) -> np.random.Generator:
        generator = self._generators[row]
        return self._seed(row, None) if generator is None else generator

    def _seed(self, row: int, seed: int | None) -> np.random.Generator:
        generator, self._seeds[row] = seeding.np_random(seed)
        self._generators[row] = generator
        return generator


class TableWiseVectorEnv(PlacementVectorEnv):
    """`TableWiseEnv` many times, as arrays; what `make_vec("ShardGym/TableWise-v0", num_envs=N)` makes.

    Observations, rewards, ends, infos and drawn tasks are those of Gymnasium's `SyncVectorEnv` and `AsyncVectorEnv` of
    N single environments with the same arguments and seeds, row by row. Simulated costs may differ in their last bits
    (by 1e-9 at most), as rounding depends on how many plans are predicted together. A step takes a few dozen array
    operations whatever N is; plans that are finished in the same step are scored together.

    **Episodes.** Each environment draws its tasks with its own generator: `reset(seed=s)` seeds environment i with
    s + i. Options of `reset` hold for all environments, but `task_index` may be one number for each;
    `options={"reset_mask": mask}` resets those where the mask, booleans of shape (N,), is true. With sampling="cycle"
    each environment plays a part of the T tasks in order: the parts are (T + i) // N tasks long, as stable-baselines3
    counts episodes of evaluations. A `reset` of all environments starts anew.

    **Autoreset.** `metadata["autoreset_mode"]` says what follows the end of an episode:

    - "NextStep", the default, as for Gymnasium's wrappers: the next step ignores the action, resets the environment and
      earns 0. In the observation of the end `action_mask` is all zero.
    - "SameStep": the environment is reset in the step that ends the episode. Observation and info of the end are in
      `infos["final_obs"]` and `infos["final_info"]`.
    - "Disabled": the environment must be reset with `reset_mask` before the next step, or idles while its action is
      `IDLE`: it earns 0, and nothing is computed for it.

    **Infos.** Arrays with one entry per environment, or dictionaries of such; the mask `_NAME` marks the valid entries
    of NAME. `plan` and `cost` are the objects that the single environment gives.

    **Cost.** An oracle of the simulator predicts all plans of a step with equally many devices in one call. With any
    other cost model the plans of each task are evaluated together, so that measured costs interleave them; if that
    raises `MeasurementError`, all of them have no cost. With dense rewards, incomplete placements with equally many
    devices are priced in one call if the cost is additive ("simulator", "roofline"); other cost models score one
    environment after the other, which is no faster than `SyncVectorEnv`.

    `action_masks()` returns booleans of shape (N, D). `render()` returns one picture or text per environment.

    Args:
        num_envs: N.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of `TableWiseEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such mode; or no such suite, pool, cost, order, observation or reward.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/TableWise-v0", num_envs=8, suite="quick-v1", cost="roofline")
        >>> observations, infos = envs.reset(seed=0)
        >>> actions = observations["action_mask"].argmax(axis=1)
        >>> observations, rewards, terminations, truncations, infos = envs.step(actions)
        >>> observations["table"].shape, rewards.shape
        ((8, 25), (8,))
    """

    single_env = TableWiseEnv


class ColumnWiseVectorEnv(PlacementVectorEnv):
    """`ColumnWiseEnv` many times, as arrays; what `make_vec("ShardGym/ColumnWise-v0", num_envs=N)` makes.

    Everything in the description of `TableWiseVectorEnv` applies.

    Args:
        num_envs: number of environments.
        autoreset_mode: "NextStep", "SameStep", "Disabled", or a `gymnasium.vector.AutoresetMode`.
        settings: keyword arguments of `ColumnWiseEnv`.

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such mode; or no such suite, pool, cost, order, observation or reward.

    Example:
        >>> envs = gymnasium.make_vec("ShardGym/ColumnWise-v0", num_envs=8, suite="quick-v1", max_splits=4)
        >>> observations, infos = envs.reset(seed=0)
        >>> observations["action_mask"].shape
        (8, 5)
    """

    single_env = ColumnWiseEnv


class NativeWrapper(VectorWrapper):
    """What wrappers of the native vector environments have in common.

    Args:
        env: a native vector environment, wrapped or not.

    Raises:
        InputError: another environment.
    """

    def __init__(self, env: VectorEnv[Observation, Ints, Any]) -> None:
        inner = env.unwrapped if isinstance(env, VectorEnv) else env
        if not isinstance(inner, PlacementVectorEnv):
            raise InputError(f"{type(self).__name__} is for native vector environments, got {describe(inner)}")
        super().__init__(env)
        self._placing: PlacementVectorEnv = inner
        self.autoreset_mode = inner.autoreset_mode

    def action_masks(self) -> Bools:
        """Return which actions are valid now, shape (N, actions); none where the episode has ended."""
        return self._placing.action_masks()


def _autoreset_mode(given: str | AutoresetMode) -> AutoresetMode:
    """Return the mode named "NextStep", "SameStep" or "Disabled"; raises `UnknownNameError` for other names."""
    try:
        return AutoresetMode(given)
    except ValueError:
        raise UnknownNameError("autoreset_mode", given, [mode.value for mode in AutoresetMode]) from None


def _reset_mask(mask: Any, num_envs: int) -> Bools:
    """Return which environments a reset is for, all without a mask; raises `InputError` for a mask of another form."""
    if mask is None:
        return np.ones(num_envs, dtype=np.bool_)
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.shape != (num_envs,) or not mask.any():
        raise InputError(f"reset_mask is not an array of {num_envs} booleans of which at least one is true")
    return mask


def _options_of_each(options: dict[str, Any] | None, num_envs: int) -> Sequence[dict[str, Any] | None]:
    """Return the options of the single environments; raises `InputError` when not each of them has a task index."""
    indices = (options or {}).get("task_index")
    if isinstance(indices, str) or not isinstance(indices, Sequence | np.ndarray):
        return [options] * num_envs
    if len(indices) != num_envs:
        raise InputError(f"got {len(indices)} numbers of tasks for {num_envs} environments: expected one for each")
    return [{**(options or {}), "task_index": index} for index in indices]


def _one_seed_each(seed: Any, num_envs: int) -> Sequence[int | None]:
    """Return a seed for every environment, None where it goes on with its generator; raises `InputError`."""
    if seed is None:
        return [None] * num_envs
    if isinstance(seed, Sequence) and not isinstance(seed, str):
        if len(seed) != num_envs:
            raise InputError(f"got {len(seed)} seeds for {num_envs} environments: expected one for each")
        return seed
    try:
        first = operator.index(seed)
    except TypeError:
        raise InputError(f"seed {short_repr(seed)} is neither a whole number nor a list of them") from None
    return range(first, first + num_envs)


def _action_numbers(actions: Any, num_envs: int) -> Ints:
    """Return one action for each environment, shape (N,); raises `InputError` when there are not as many."""
    try:
        given = np.asarray(actions)
    except ValueError:  # lists of several lengths
        raise InputError(
            f"got actions {short_repr(actions)}: expected one for each of {num_envs} environments"
        ) from None
    if given.shape != (num_envs,):
        raise InputError(f"got actions of shape {given.shape} for {num_envs} environments: expected one for each")
    if given.dtype.kind in "iu":
        return given.astype(np.int64)
    return np.array([action_number(action) for action in actions], dtype=np.int64)
