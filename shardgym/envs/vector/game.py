"""VectorGame: what actions do to N episodes, and what they earn."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from shardgym.arrays import Bools, Ints
from shardgym.envs.game import Game
from shardgym.envs.observation_space import Layout
from shardgym.envs.refusals import dead_end, why_not_there
from shardgym.envs.shards import NO_SPLITS
from shardgym.envs.vector.infos import Infos
from shardgym.envs.vector.observations import Observations
from shardgym.envs.vector.outcomes import Outcomes
from shardgym.envs.vector.placements import Placements
from shardgym.envs.vector.task_shards import Prepare, TaskShards
from shardgym.envs.vector.turn import Turn
from shardgym.task import ShardingTask

#: Tasks that are kept between episodes, if not more are being played.
_TASKS_KEPT = 1024


class VectorGame:
    """`Game` for N environments. Methods take `rows`, numbers of environments, shape (n,).

    Args:
        num_envs: N.
        game: rules and cost model.
        layout: of the observation space.
        prepare: gives figures and observations of a task.

    Attributes:
        shards: of the tasks.
        placements: how far the episodes have come.
        observations: of them.
        outcomes: how they ended, and what they earn.
    """

    def __init__(self, num_envs: int, game: Game, layout: Layout, prepare: Prepare) -> None:
        self.rules, self._max_devices = game.rules, layout.max_devices
        limits = game.rules.limits or NO_SPLITS
        self.shards = TaskShards(prepare, layout, limits)
        self.placements = Placements(num_envs, layout.max_devices, self.shards, limits)
        self.observations = Observations(self.placements, layout)
        self.outcomes = Outcomes(num_envs, game, self.placements)

    def begin(self, rows: Ints, tasks: Sequence[ShardingTask]) -> Ints:
        """Start episodes of tasks, at least one, and return the numbers of those in which nothing can be done."""
        if len(self.shards) > max(_TASKS_KEPT, 2 * len(self.outcomes.ended)):
            self._forget(rows)
        self.placements.begin(rows, np.array([self.shards.slot(task) for task in tasks]))
        self.observations.begin(rows)
        self.outcomes.begin(rows)
        return rows[~self.placements.open[rows]]

    def masks(self) -> Bools:
        """Return which actions are valid now, shape (N, actions); see `PlacementEnv.action_masks`."""
        p = self.placements
        masks = np.where(p.open[:, None], p.fits, p.capacity >= 0)
        if self.rules.limits is not None:
            masks = np.column_stack([masks, p.can_split])
        masks[self.outcomes.ended] = False
        return masks

    def play(self, rows: Ints, numbers: Ints, actions: Any) -> Turn:
        """Do what actions say.

        Args:
            rows: environments whose episodes have not ended.
            numbers: actions of all environments, shape (N,).
            actions: the same as they were given.
        """
        p, turn = self.placements, Turn(len(self.outcomes.ended))
        going, lost = rows[p.open[rows]], rows[~p.open[rows]]
        asked = numbers[going]
        inside = (asked >= 0) & (asked < self._max_devices)
        fits = inside & p.fits[going, np.where(inside, asked, 0)]
        halves = p.can_split[going] & (asked == self._max_devices)
        self.outcomes.give_up(lost, "no_device_fits", self.reason, turn)
        refused = going[~(fits | halves)]
        why = functools.partial(self._refusal, numbers, actions)
        self.outcomes.give_up(refused, "invalid_action", why, turn)
        self._put(going[fits], asked[fits])
        self._halve(going[halves])
        self._after(going[fits], turn, placed=True)
        self._after(going[halves], turn, placed=False)
        return turn

    def describe(self, rows: Ints, infos: Infos) -> None:
        """Say what is said of every step."""
        p, kinds = self.placements, self.shards.kinds
        slot, now = p.slot[rows], p.queue.next[rows]
        infos.put("task_hash", rows, self.shards.tasks["hash"][slot])
        infos.put("task", rows, self.shards.tasks["name"][slot])
        infos.put("table", rows, kinds["name"][now])
        infos.put("placed", rows, p.placed[rows])
        if self.rules.limits is not None:
            infos.put("width", rows, kinds["width"][now])
            infos.put("splits", rows, p.splits[rows])

    def reason(self, row: int) -> str | None:
        """Return why nothing can be done in an episode, or None."""
        return dead_end(self.placements.placement(row))

    def _refusal(self, numbers: Ints, actions: Any, row: int) -> str | None:
        """Return why the action of an environment cannot be done."""
        placement = self.placements.placement(row)
        halving = self.rules.limits is not None and numbers[row] == self._max_devices
        return placement.split_refusal() if halving else why_not_there(placement, actions[row])

    def _put(self, rows: Ints, devices: Ints) -> None:
        if len(rows):
            self.outcomes.put(rows, devices)
            self.placements.put(rows, devices)
            self.observations.put(rows, devices)

    def _halve(self, rows: Ints) -> None:
        if len(rows):
            self.placements.halve(rows)
            self.observations.halve(rows)

    def _after(self, rows: Ints, turn: Turn, *, placed: bool) -> None:
        """Go on, unless plans are complete or nothing can be done about the next shards."""
        p = self.placements
        waiting, is_open = p.queue.waiting[rows] > 0, p.open[rows]
        self.outcomes.score(rows[~waiting], turn)
        self.outcomes.give_up(rows[waiting & ~is_open], "no_device_fits", self.reason, turn)
        if placed:
            self.outcomes.compare(rows[waiting & is_open], turn)

    def _forget(self, rows: Ints) -> None:
        """Keep the tasks that are played in other environments than these, and no others."""
        others = np.setdiff1d(np.arange(len(self.outcomes.ended)), rows)
        self.placements.clear(rows)
        number, shift = self.shards.keep(self.placements.slot[others])
        self.placements.renumber(number, shift)
        self.outcomes.forget()
