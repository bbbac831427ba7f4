"""Game: what actions do to an episode, and what they earn."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardgym.costs.base import CostModel
from shardgym.envs.episode import Episode
from shardgym.envs.figures import Figures
from shardgym.envs.partial_cost import partial_cost
from shardgym.envs.placement import Placement
from shardgym.envs.refusals import dead_end, why_not_there
from shardgym.envs.rules import Rules
from shardgym.envs.scoring import plan_cost
from shardgym.envs.shards import NO_SPLITS
from shardgym.errors import MeasurementError


class Move(NamedTuple):
    """What an action led to.

    Attributes:
        reward: for it.
        end: what `info` says of the end; empty while the episode goes on.
    """

    reward: float
    end: dict[str, Any]


class Game:
    """Plays episodes by rules.

    Args:
        rules: the rules.
        cost: scores plans.
        max_devices: device actions; the action of this number halves, if the rules have limits for that.
    """

    def __init__(self, rules: Rules, cost: CostModel, max_devices: int) -> None:
        self.rules, self.cost, self._max_devices = rules, cost, max_devices

    def start(self, task_index: int, figures: Figures) -> Episode:
        """Return an episode with nothing placed."""
        placement = Placement(figures, self.rules.limits or NO_SPLITS)
        dense = self.rules.reward == "dense"
        return Episode(task_index, placement, partial_cost(self.cost, placement) if dense else None)

    def masks(self, episode: Episode) -> npt.NDArray[np.bool_]:
        """Return which actions are valid now, shape (actions,); see `PlacementEnv.action_masks`."""
        mask = np.zeros(self._max_devices + (self.rules.limits is not None), dtype=np.bool_)
        if not episode.ended:
            fitting, can_split = episode.placement.fitting(), episode.placement.can_split
            mask[: len(fitting)] = fitting if can_split or fitting.any() else True
            mask[self._max_devices :] = can_split
        return mask

    def play(self, episode: Episode, action: Any) -> Move:
        """Do what an action says; the episode must not have ended."""
        placement = episode.placement
        if (reason := dead_end(placement)) is not None:
            return self._give_up(episode, "no_device_fits", reason)
        halving = self.rules.limits is not None and _is(action, self._max_devices)
        if (reason := placement.split_refusal() if halving else why_not_there(placement, action)) is not None:
            return self._give_up(episode, "invalid_action", reason)
        if halving:
            placement.halve()
        else:
            episode.put(int(action))
        return self._after(episode, placed=not halving)

    def _after(self, episode: Episode, *, placed: bool) -> Move:
        """Go on, unless the plan is complete or nothing can be done about the next shard."""
        if episode.placement.complete:
            return self._score(episode)
        if (reason := dead_end(episode.placement)) is not None:
            return self._give_up(episode, "no_device_fits", reason)
        if not placed or episode.partial is None:
            return Move(0.0, {})
        try:
            standing = -float(episode.partial.per_device().sum(axis=1).max())
        except MeasurementError as error:
            return self._give_up(episode, "no_cost", str(error))
        return Move(episode.earn(standing), {})

    def _score(self, episode: Episode) -> Move:
        plan = episode.placement.plan()
        cost = episode.cost = plan_cost(self.cost, episode.placement.figures.task, plan)
        if not cost.feasible:
            return self._give_up(episode, "no_cost", str(cost.reason), plan=plan, cost=cost)
        episode.ended = True
        reward = episode.earn(max(-cost.total_ms, self.rules.penalty))
        return Move(reward, {"outcome": "complete", "plan": plan, "cost": cost})

    def _give_up(self, episode: Episode, outcome: str, reason: str, **more: Any) -> Move:
        episode.ended = True
        return Move(episode.earn(self.rules.penalty), {"outcome": outcome, "reason": reason, **more})


def _is(action: Any, number: int) -> bool:
    try:
        return operator.index(action) == number
    except TypeError:
        return False
