"""TableWiseEnv: place whole tables on devices, one after another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PlanCost
from shardgym.costs.registry import make_cost
from shardgym.envs.observation import Observation, ObservationBuilder, observation_space
from shardgym.envs.placement import Figures, Placement, check_order
from shardgym.envs.render import RenderModeError, render_ansi
from shardgym.envs.task_sampler import TaskSampler
from shardgym.errors import InputError, MeasurementError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

Step = tuple[Observation, float, bool, bool, dict[str, Any]]

#: Tasks whose figures are kept between episodes.
_TASKS_KEPT = 1024


class TableWiseEnv(gymnasium.Env[Observation, np.int64]):
    """Place the tables of a task whole, one after another; registered as `ShardGym/TableWise-v0`.

    **Episode.** `reset` draws a task uniformly from the suite, or takes the one asked for with
    `options={"task_index": i}` or `options={"task": task}`. Tables come up in descending order of memory (see
    `order`). An episode has as many steps as the task has tables.

    **Action.** The number of the device that gets the table. `action_space` is `Discrete(max_devices)`, the largest
    number of devices in the suite.

    **Observation.** A dictionary of boxes. All features lie in [0, 1]; "share" is relative to the whole task
    unless said otherwise. D is `max_devices`.

    - `table`, float32 (25,): the table to place (zeros when none is left). log2(rows) / 40; log2(columns) / 16;
      ln(1 + pooling factor) / ln(1 + 1e6); bytes over the largest device's memory, at most 1; shares of bytes, of
      columns, of columns times pooling factor; whether the reuse histogram is known; its 17 bins (zeros if not).
    - `devices`, float32 (D, 7): whether the device exists (all zero if not); free share of its memory; its memory over
      the largest device's; then what it holds: shares of bytes, columns, columns times pooling factor, tables.
    - `progress`, float32 (1,): share of tables placed.
    - `remaining`, float32 (5,): shares of tables, bytes, columns, columns times pooling factor still to place;
      bytes to place over bytes free, at most 1.
    - `action_mask`, int8 (D,): 1 for devices that exist and have room for the table. All zero only after the end.

    The names of the features are in `shardgym.envs.observation`. `action_masks()` returns the mask as booleans.

    **Reward.** 0 until the end. A complete plan earns minus its cost, `-info["cost"].total_ms`, but never less
    than `penalty`, so that giving up never pays.

    **End.** `terminated` is set, and `info["outcome"]` says how it came:

    - "complete": all tables are placed and the plan has a cost.
    - "invalid_action": the device does not exist or has no room. Reward `penalty`.
    - "no_device_fits": no device has room for the table that came up. Reward `penalty`. Where this is so for
      the first table, `reset` says so in `info["reason"]` and opens the mask for all devices of the task; the first
      step ends the episode whatever the action.
    - "no_cost": the plan is complete, but infeasible or could not be measured. Reward `penalty`.

    Episodes are never truncated.

    **Info.** Always: `task_index` (-1 for a task given by option), `task_hash`, `task` (its name), `table` (name of
    the table to place, "" if none), `placed`. At the end also `outcome`, and `reason`, one line, unless complete. A
    complete plan adds `plan` (`ShardingPlan`) and `cost` (`PlanCost`). Info is deterministic if the cost is.

    Args:
        suite: name of a suite; "quick-v1" when neither `suite` nor `tasks` is given.
        cost: name of a cost model, or the model itself (which is then not closed with the environment).
        tasks: tasks of one's own instead of a suite.
        cost_settings: keyword arguments for a cost model given by name.
        order: "size", "lookup" (columns times pooling factor), "dim" or "task"; descending, ties as the task lists
            them.
        penalty: reward of an episode that ends without a cost; negative and finite.
        max_devices: makes the spaces larger than the suite needs, to use a policy on other suites.
        render_mode: None or "ansi".

    Raises:
        InputError: arguments that are out of range or contradict each other.
        UnknownNameError: no such suite, cost or order; the closest names are given.

    Example:
        >>> env = gymnasium.make("ShardGym/TableWise-v0", suite="quick-v1", cost="roofline")
        >>> observation, info = env.reset(seed=0)
        >>> ended = False
        >>> while not ended:
        ...     action = env.action_space.sample(mask=observation["action_mask"])
        ...     observation, reward, ended, _, info = env.step(action)
        >>> info["outcome"]
        'complete'
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]

    def __init__(
        self,
        suite: str | None = None,
        cost: str | CostModel = "roofline",
        *,
        tasks: Sequence[ShardingTask] | None = None,
        cost_settings: dict[str, Any] | None = None,
        order: str = "size",
        penalty: float = -1000.0,
        max_devices: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if not (math.isfinite(penalty) and penalty < 0):
            raise InputError(f"penalty {penalty} is not a negative number")
        if render_mode not in (None, "ansi"):
            raise RenderModeError(f"unknown render_mode '{render_mode}': expected None or 'ansi'")
        self.render_mode = render_mode
        self._order = check_order(order)
        self._penalty = penalty
        self._sampler = TaskSampler(suite, tasks, max_devices)
        self._cost, self._owns_cost = _cost_model(cost, cost_settings)
        self._prepared: dict[str, tuple[Figures, ObservationBuilder]] = {}
        self._placement: Placement | None = None
        self._ended = True
        self.observation_space: spaces.Dict = observation_space(self._sampler.max_devices)  # type: ignore[assignment]
        self.action_space = spaces.Discrete(self._sampler.max_devices)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for `options`.

        Raises:
            InputError: unknown options, or a task that is out of range or has too many devices.
        """
        super().reset(seed=seed)
        self._task_index, task = self._sampler.pick(self.np_random, options)
        figures, self._builder = self._prepare(task)
        self._placement, self._ended = Placement(figures), False
        reason = self._placement.dead_end()
        return self._observe(), self._info() | ({} if reason is None else {"reason": reason})

    def step(self, action: Any) -> Step:
        """Put the table on device `action`; see the class for what ends the episode.

        Raises:
            gymnasium.error.ResetNeeded: there is no running episode.
        """
        placement = self._running()
        if (reason := placement.dead_end()) is not None:
            return self._end("no_device_fits", self._penalty, reason=reason)
        if (reason := placement.refusal(action)) is not None:
            return self._end("invalid_action", self._penalty, reason=reason)
        placement.put(int(action))
        if placement.complete:
            return self._score(placement.plan())
        if (reason := placement.dead_end()) is not None:
            return self._end("no_device_fits", self._penalty, reason=reason)
        return self._observe(), 0.0, False, False, self._info()

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return which actions are valid now, shape (max_devices,); none after the end (as in sb3-contrib)."""
        mask = np.zeros(self._sampler.max_devices, dtype=np.bool_)
        if self._placement is not None and not self._ended:
            fitting = self._placement.fitting()
            mask[: len(fitting)] = fitting if fitting.any() else True
        return mask

    def render(self) -> str | None:
        """Return the placement as text, or None without render mode; raises `ResetNeeded` before the first reset."""
        if self.render_mode is None:
            return None
        if self._placement is None:
            raise gymnasium.error.ResetNeeded("nothing to render: call reset() first")
        return render_ansi(self._placement)

    def close(self) -> None:
        """Close the cost model if this environment made it."""
        if self._owns_cost:
            self._cost.close()

    def _running(self) -> Placement:
        if self._placement is None or self._ended:
            raise gymnasium.error.ResetNeeded("the episode has ended or not begun: call reset() first")
        return self._placement

    def _prepare(self, task: ShardingTask) -> tuple[Figures, ObservationBuilder]:
        if task.digest not in self._prepared:
            if len(self._prepared) >= _TASKS_KEPT:
                self._prepared.pop(next(iter(self._prepared)))
            figures = Figures.of(task, self._order)
            self._prepared[task.digest] = figures, ObservationBuilder(figures, self._sampler.max_devices)
        return self._prepared[task.digest]

    def _score(self, plan: ShardingPlan) -> Step:
        cost = self._evaluate(plan)
        if cost.feasible:
            return self._end("complete", max(-cost.total_ms, self._penalty), plan=plan, cost=cost)
        return self._end("no_cost", self._penalty, reason=str(cost.reason), plan=plan, cost=cost)

    def _evaluate(self, plan: ShardingPlan) -> PlanCost:
        task = self._running().figures.task
        try:
            return self._cost.evaluate(task, [plan])[0]
        except MeasurementError as error:
            return self._cost.no_cost(task, str(error))

    def _end(self, outcome: str, reward: float, **more: Any) -> Step:
        self._ended = True
        return self._observe(), float(reward), True, False, self._info() | {"outcome": outcome, **more}

    def _observe(self) -> Observation:
        assert self._placement is not None
        return self._builder.observe(self._placement, self.action_masks())

    def _info(self) -> dict[str, Any]:
        assert self._placement is not None
        task = self._placement.figures.task
        return {
            "task_index": self._task_index, "task_hash": task.digest, "task": task.name,
            "table": self._placement.table_name, "placed": self._placement.placed,
        }  # fmt: skip


def _cost_model(cost: str | CostModel, settings: dict[str, Any] | None) -> tuple[CostModel, bool]:
    """Return the cost model, and whether it was made here."""
    if isinstance(cost, str):
        return make_cost(cost, **(settings or {})), True
    if not isinstance(cost, CostModel):
        raise InputError(f"expected a cost model or its name, got {type(cost).__name__}")
    if settings:
        raise InputError("cost_settings are for a cost given by name, a ready-made cost model was given")
    return cost, False
