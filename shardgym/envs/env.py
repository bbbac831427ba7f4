"""The single environments, each a `Game` with one row; `Game` has the rules for any number of episodes."""

import copy
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.arrays import Bools, Ints
from shardgym.costs.base import CostModel
from shardgym.envs.game import Game, Rules
from shardgym.envs.observation import OBSERVATIONS, Layout, Observation, observation_space
from shardgym.envs.render import RENDER_MODES, render
from shardgym.envs.scoring import cost_model
from shardgym.envs.shard_catalog import SplitLimits
from shardgym.envs.tasks import TaskSampler
from shardgym.errors import InputError, UnknownNameError, check_int
from shardgym.tasks.task import ShardingTask

Step = tuple[Observation, float, bool, bool, dict[str, Any]]

#: The only row.
_ROW = np.zeros(1, dtype=np.int64)


class PlacementEnv(gymnasium.Env[Observation, np.int64]):
    """Base class of `TableWiseEnv`, `ColumnWiseEnv` and `AnyWiseEnv`; see `TableWiseEnv`."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # type: ignore[misc]

    #: How tables may be cut; None where they are placed whole and cutting is not an action.
    _limits: SplitLimits | None = None

    def __init__(
        self,
        suite: str | None = None,
        cost: str | CostModel = "roofline",
        *,
        tasks: Sequence[ShardingTask] | None = None,
        pool: str | None = None,
        pool_tasks: int | None = None,
        cost_settings: dict[str, Any] | None = None,
        order: str = "size",
        observation: str = "compact",
        flat: tuple[str, str] | None = None,
        reward: str = "terminal",
        penalty: float | None = None,
        max_devices: int | None = None,
        max_tables: int | None = None,
        plans: bool = True,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, *RENDER_MODES):
            raise UnknownNameError("render_mode", render_mode, RENDER_MODES)
        if observation not in OBSERVATIONS:
            raise UnknownNameError("observation", observation, OBSERVATIONS)
        self.render_mode = render_mode
        limits = self._limits
        if penalty is None:
            penalty = -5.0 if reward == "relative" else -1000.0
        rules = Rules(order, reward, float(penalty), limits, plans)
        self._sampler = TaskSampler(
            suite, tasks, pool, pool_tasks, max_devices, max_tables, counts_tables=observation.startswith("full")
        )
        model, self._owns_cost = cost_model(cost, cost_settings)
        layout = Layout(
            self._sampler.max_devices,
            None if limits is None else limits.max_splits,
            self._sampler.max_tables,
            timed=observation.endswith("timed"),
            every_kind=limits is not None and limits.every_kind,
            flat=tuple(flat) if isinstance(flat, list) else flat,
        )
        self._game = Game(rules, model, layout)
        self._started = False
        self.observation_space: spaces.Dict = observation_space(layout)  # type: ignore[assignment]
        self.action_space = spaces.Discrete(layout.actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for `options`.

        Raises:
            InputError: unknown options, or a task that is out of range or too large.
        """
        super().reset(seed=seed)
        reasons = self._game.start(_ROW, [self._sampler.pick(self.np_random, options or {})])
        self._started = True
        return self._observe(), self._info() | ({"reason": reasons[0]} if reasons else {})

    def step(self, action: Any) -> Step:
        """Place the shard on device `action`, or cut it; see the class for what ends the episode.

        Raises:
            gymnasium.error.ResetNeeded: there is no running episode.
            InputError: the action is not an integer.
        """
        self._require_episode()
        if self._game.ended[0]:
            raise gymnasium.error.ResetNeeded("the episode has ended: call reset() first")
        result = self._game.step(_ROW, whole_numbers(action, ()))
        info = self._info() | result.ends.get(0, {})
        return self._observe(), float(result.rewards[0]), 0 in result.ends, False, info

    def action_masks(self) -> Bools:
        """Return the valid actions for MaskablePPO, shape (actions,); none after the end."""
        masks: Bools = self._game.masks()[0]
        return masks

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy the episode and the random generator; the copy shares tasks, their figures and the cost model."""
        memo[id(self._sampler)] = self._sampler
        copied = memo[id(self)] = copy.copy(self)
        vars(copied).update(copy.deepcopy(vars(self), memo))
        copied._owns_cost = False
        return copied

    def render(self) -> Any:
        """Return the placement as text (str) or picture (uint8, shape (H, W, 3)), or None without a render mode.

        Raises:
            gymnasium.error.ResetNeeded: before the first reset.
            MissingDependencyError: pictures need Pillow, which is not installed.
        """
        if self.render_mode is None:
            return None
        self._require_episode()
        return render(self._game, 0, self.render_mode)

    def close(self) -> None:
        """Close the cost model if this environment created it."""
        if self._owns_cost:
            self._game.cost.close()

    @property
    def task(self) -> ShardingTask:
        """The task being placed; raises `gymnasium.error.ResetNeeded` before the first reset."""
        self._require_episode()
        return self._game.catalog.tasks[int(self._game.placements.task[0])]

    @property
    def cost(self) -> CostModel:
        """The cost model that rewards come from."""
        return self._game.cost

    def _require_episode(self) -> None:
        if not self._started:
            raise gymnasium.error.ResetNeeded("there is no episode: call reset() first")

    def _observe(self) -> Observation:
        return {name: values[0] for name, values in self._game.observe().items()}

    def _info(self) -> dict[str, Any]:
        return {name: values.item(0) for name, values in self._game.infos().items()}


def whole_numbers(actions: Any, shape: tuple[int, ...]) -> Ints:
    """Return actions as an array of shape (N,); raises `InputError` unless they are integers of this shape."""
    given: npt.NDArray[Any] = np.asarray(actions)
    if given.shape != shape or given.dtype.kind not in "iu":
        raise InputError(f"actions: expected whole numbers of shape {shape}, got {given.dtype} of shape {given.shape}")
    return given.astype(np.int64).reshape(-1)


class TableWiseEnv(PlacementEnv):
    """Place the tables of a task whole, one after another; registered as `ShardGym/TableWise-v0`.

    **Episode.** `reset` draws a task uniformly, or takes the one given by `options={"task_index": i}` or
    `options={"task": task}`. Tables come up in descending order of memory (see `order`). An episode has as many
    steps as the task has tables.

    **Action.** The number of the device that gets the table. `action_space` is `Discrete(max_devices)`, the largest
    number of devices in the suite.

    **Observation.** A dictionary of boxes of one dimension. Features are float32 in [0, 1]; "share" is relative to the
    whole task unless said otherwise. D is `max_devices`.

    - `table` (25,): the table to place (zeros when none is left). log2(rows) / 40; log2(columns) / 16;
      ln(1 + pooling factor) / ln(1 + 1e6); bytes over the largest device's memory, at most 1; shares of bytes, of
      columns, of columns times pooling factor; whether the reuse histogram is known; its 17 bins (zeros if not).
    - `devices` (7 D,): seven numbers for each device, `reshape(D, 7)` gives a row each. Whether the device exists (all
      zero if not); free share of its memory; its memory over the largest device's; then the load of its tables: shares
      of bytes, columns, columns times pooling factor, tables.
    - `progress` (1,): share of tables placed.
    - `remaining` (5,): shares of tables, bytes, columns, columns times pooling factor still to place; bytes to place
      over bytes free, at most 1.
    - `action_mask`, int8 (D,): 1 for devices that exist and have room for the table. All zero only after the end.

    With observation="timed" one more box is added:

    - `times` (2 D,): `reshape(D, 2)` gives two numbers for each device: its predicted compute (forward and backward)
      with the tables placed so far, and with the table to place as well. Both are relative to the task's even share,
      the time of all its tables on one device (exchanges included) over the number of devices. At most 2 D; 0 for
      devices that do not exist; both equal when no table is left. The cost must be additive, such as "simulator".

    With observation="full" these are added. N is `max_tables`; the rows are the placed tables in the order of placing,
    then the waiting tables, starting with the one to place, then zeros.

    - `tables` (25 N,): the features of every table, as in `table`.
    - `positions`, int32 (N,): 1 + position in `task.tables`.
    - `width_shares` (N,): columns over those of the whole table, which is 1.
    - `waiting`, int8 (N,): 1 for tables still to place.
    - `membership`, int8 (N D,): `reshape(N, D)` has a 1 where a table is on a device.

    observation="full_timed" adds all of these. The names of the features are in `shardgym.envs.features`.
    `action_masks()` returns the mask as booleans. With `flat=("obs", "mask")` an observation is two arrays under these
    names: all numbers, float32, in the order of `observation_space` without `flat`, and the mask.

    **Reward.** A complete plan earns minus its cost, `-info["cost"].total_ms`, but never less than `penalty`, so that
    giving up never pays. With reward="terminal", the last step earns this and earlier steps earn 0. With
    reward="dense", every step earns minus the increase of the cost of the placed tables, as if the task had no others,
    and the last step the rest, including penalties; the return is the same up to rounding. The cost must be additive,
    such as "simulator". With reward="relative", rewards are divided by the task's reference cost, that of a
    simple rule (see `shardgym.envs.reference`), so that tasks of all sizes count alike: a plan as good as the rule's
    earns -1. They are dense if the cost is additive. With other costs ("fbgemm"), they are terminal and relative to
    references of "roofline".

    **End.** `terminated` is set, and `info["outcome"]` says why:

    - "complete": all tables are placed and the plan has a cost.
    - "invalid_action": the device does not exist or has no room. The episode earns `penalty`.
    - "no_device_fits": no device has room for the table that came up. The episode earns `penalty`. If this is the first
      table, `reset` gives the reason in `info["reason"]` and the mask allows all devices of the task, as agents need
      some valid action; the first step ends the episode whatever the action.
    - "no_cost": the plan is infeasible or could not be measured. The episode earns `penalty`.

    Episodes are never truncated.

    **Info.** Always: `task_index` (-1 for a task given by option), `task_hash`, `task` (its name), `table` (name of
    the table to place, "" if none), `placed`. At the end also `outcome`; `is_success`, 1.0 if complete, else 0.0;
    `cost_ms`, the plan's cost, infinite unless complete; and `reason`, one line, unless complete. A complete plan adds
    `plan` (`ShardingPlan`) and `cost` (`PlanCost`), unless plans=False. With reward="relative" there are also
    `reference_ms`, and at the end `ratio`, `cost_ms` over it. Info is deterministic if the cost is.

    **Copies.** `copy.deepcopy(env)` goes on from the same point, with the same cost model. Environments can be pickled
    if the cost model can.

    **Rendering.** Devices with compute, communication and memory of the placed tables, the slowest one marked. Costs
    that are not additive have times only at the end.

    Args:
        suite: name of a suite; "quick-v2" when neither `suite` nor `tasks` is given.
        cost: name of a cost model, or the model itself (which is then not closed with the environment).
        tasks: your own tasks instead of a suite.
        pool: name or path of a pool. Tasks are then drawn at random from its train half, sized like those of `suite`,
            so that a policy trained on them has seen no table of the suite's test half.
        pool_tasks: number of different tasks, by default 4,096. Each is drawn and prepared once, which takes longer
            than playing it, and kept.
        cost_settings: keyword arguments for a cost model given by name.
        order: "size" or "lookup" (columns times pooling factor), descending, ties as the task lists them; or "task".
        observation: "compact", "full", "timed" or "full_timed".
        flat: names of numbers and mask, such as ("obs", "mask"), to make observations two arrays.
        reward: "terminal", "dense" or "relative".
        penalty: return of an episode that ends without a cost, negative and finite: in ms, by default -1000; in
            reference costs where rewards are relative, by default -5.
        max_devices: number of devices in the spaces, if larger than the suite needs, to use a policy on other suites.
        max_tables: number of tables in full observations, likewise.
        plans: whether infos of complete episodes hold `plan` and `cost`. Training needs neither and is faster without
            them: additive costs then come from the running sums of dense rewards or timed observations.
        render_mode: None, "ansi" or "rgb_array".

    Raises:
        InputError: arguments are out of range or contradict each other, or the cost is not additive but must be.
        UnknownNameError: no such suite, pool, cost, order, observation, reward or render mode; the closest names are
            given.

    Example:
        >>> env = gymnasium.make("ShardGym/TableWise-v0", suite="quick-v2", cost="roofline")
        >>> observation, info = env.reset(seed=0)
        >>> ended = False
        >>> while not ended:
        ...     action = env.action_space.sample(mask=observation["action_mask"])
        ...     observation, reward, ended, _, info = env.step(action)
        >>> info["outcome"]
        'complete'
    """


class ColumnWiseEnv(PlacementEnv):
    """Place shards on devices or halve them by columns; registered as `ShardGym/ColumnWise-v0`.

    **State.** A queue of shards, at first the task's whole tables in descending order of memory (see `order`), and the
    shards on every device. A shard is all rows of some columns of one table and counts as a table of that width: as
    many ids, fewer columns, the bytes of its weights and of its own optimiser state. The agent decides about the shard
    at the head of the queue.

    **Action.** `action_space` is `Discrete(max_devices + 1)`.

    - 0 to `max_devices - 1`: the device that gets the shard. Shards of one table may share a device.
    - `max_devices`: halve the shard. It leaves the queue and its two halves enter, left one first, in front of the
      first waiting shard that does not precede them by `order`. So the queue stays sorted, and with order="task" the
      halves come up at once.

    A shard can be halved if its columns are divisible by 8 (four columns are the unit of a cut) and fewer than
    `max_splits` shards were halved in the episode.

    **Episode.** `reset` draws a task, as in `TableWiseEnv`. Each table takes one step and each halving two more, so
    there are at most `tables + 2 * max_splits` steps.

    **Observation.** That of `TableWiseEnv` with these differences. D is `max_devices`, N is `max_tables + max_splits`.

    - `table` (and `tables`, if full) describe shards, and `progress` and all shares of tables count shards, relative
      to the current number of shards, placed or waiting. Shares of bytes, columns and columns times pooling factor
      are relative to the task's whole tables, at most 1.
    - `splits`, float32 (2,), is added: halvings left over `max_splits` (0 if that is 0); columns of the shard to
      place over those of its whole table (0 when none is left).
    - `action_mask` is int8 (D + 1,); its last entry says whether the shard can be halved.

    **Reward, End.** As in `TableWiseEnv`. Halving earns 0. "invalid_action" also covers halving what cannot be halved.
    "no_device_fits" means that no device has room for the shard and it cannot be halved either; if this is the
    first table, the mask allows the task's devices, not halving.

    **Info.** That of `TableWiseEnv`, where `table` names the table of the shard to place and `placed` counts shards;
    and `width`, columns of the shard to place (0 if none), and `splits`, halvings so far.

    **Copies, Rendering.** As in `TableWiseEnv`.

    Args:
        suite: see `TableWiseEnv`.
        cost: see `TableWiseEnv`.
        max_splits: maximum number of halvings in an episode; by default the published depth of NeuroShard's search.
        others: keyword arguments of `TableWiseEnv`, with the same errors.

    Example:
        >>> env = gymnasium.make("ShardGym/ColumnWise-v0", suite="quick-v2", max_splits=4, reward="dense")
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, ended, _, info = env.step(env.action_space.n - 1)
        >>> info["splits"], reward
        (1, 0.0)
    """

    def __init__(
        self, suite: str | None = None, cost: str | CostModel = "roofline", *, max_splits: int = 10, **others: Any
    ) -> None:
        self._limits = SplitLimits(check_int("max_splits", max_splits))
        super().__init__(suite, cost, **others)
