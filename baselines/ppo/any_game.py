"""Episodes of one task in AnyWise, by the rules of its environment."""

from __future__ import annotations

import numpy as np

from baselines.ppo.game import Moments
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.envs.game import Game, Rules
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import ShardCatalog, SplitLimits
from shardgym.tasks.task import ShardingTask

#: Return of an episode that ends without a plan; nobody sees it.
_PENALTY_MS = -1e9

#: Entries of observations that have something for every device, and those of which there is one.
_PER_DEVICE = ("devices", "times")
_REST = ("progress", "remaining", "splits", "kind")


class AnyGame:
    """Episodes of a task; see `OneTaskGame`. `begin` starts them, as often as they are to be played.

    Args:
        task: the task.
        cost: prices devices, and the plans in the end; additive.
        order: in which tables come up, one of `ORDERS`.
        max_splits: halvings at most.
        episodes: that are played at once at most.

    Attributes:
        catalog: numbers the shards of the task.
    """

    def __init__(self, task: ShardingTask, cost: CostModel, order: str, max_splits: int, episodes: int) -> None:
        limits = SplitLimits(max_splits, every_kind=True)
        layout = Layout(task.num_devices, max_splits, timed=True, every_kind=True)
        self._game = Game(Rules(order, "terminal", _PENALTY_MS, limits=limits, plans=False), cost, layout, episodes)
        self._task = task
        self._rows = np.arange(episodes)
        self._actions = np.zeros(episodes, dtype=np.int64)
        self.catalog: ShardCatalog = self._game.catalog
        self.catalog.number(task)
        self.begin(episodes)

    def begin(self, episodes: int) -> None:
        """Start so many episodes anew."""
        reasons = self._game.start(self._rows, [(0, self._task)] * len(self._rows))
        self.reason = next(iter(reasons.values()), "")
        # All begin alike.
        self._going = self._rows[: 0 if reasons else episodes]
        self._step_ms: Floats = np.full(episodes, np.inf)

    def moments(self) -> Moments:
        """See `OneTaskGame`."""
        going = self._going
        seen = self._game.observe()
        devices, times = (seen[name].reshape(len(self._rows), self._task.num_devices, -1) for name in _PER_DEVICE)
        rest = np.concatenate([seen[name] for name in _REST], axis=1, dtype=np.float64)
        return Moments(
            going,
            self._game.placements.next[going],
            np.concatenate([devices[going], times[going]], axis=2, dtype=np.float64),
            rest[going],
            self._game.placements.allowed[going, :-1],
        )

    def take(self, moments: Moments, chosen: Ints) -> None:
        """See `OneTaskGame`."""
        self._actions[moments.episodes] = chosen
        ends = self._game.step(moments.episodes, self._actions, self._actions.tolist()).ends
        for row, end in ends.items():
            self._step_ms[row] = quantized(end["cost_ms"])
            self.reason = self.reason or end.get("reason", "")
        if ends:
            self._going = self._going[~self._game.ended[self._going]]

    def step_ms(self) -> Floats:
        """See `OneTaskGame`."""
        return self._step_ms

    def placed(self, episode: int) -> Ints:
        """See `OneTaskGame`."""
        placements = self._game.placements
        first = slice(placements.placed[episode])
        return np.array([array[episode, first] for array in (placements.shards, placements.starts, placements.devices)])
