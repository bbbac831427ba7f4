"""Episodes of one task by the rules of its environment, all played at once: `TaskGame`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.ties import quantized
from shardgym.envs.features import DEVICE_FEATURES, REMAINING_FEATURES, TIME_FEATURES
from shardgym.envs.game import Game, Rules
from shardgym.envs.kind_rules import HALVE
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import ShardCatalog, SplitLimits
from shardgym.tasks.task import ShardingTask

#: Places of times behind the features of a device.
NOW, WITH_NEXT = range(len(DEVICE_FEATURES), len(DEVICE_FEATURES) + len(TIME_FEATURES))
#: Halvings at most; those of ColumnWise beyond its limit, of shards that fit nowhere, too.
MOST_SPLITS = 64

#: Entries of observations that have something for every device, and those of which there is one.
_PER_DEVICE = ("devices", "times")
_REST = ("progress", "remaining", "splits", "kind")
#: Where the share of halvings left is in these.
_SPLITS_LEFT = 1 + len(REMAINING_FEATURES)
#: Return of an episode that ends without a plan; nobody sees it.
_PENALTY_MS = -1e9


class Moments(NamedTuple):
    """What is seen in n episodes before their next actions."""

    episodes: Ints  #: their numbers, shape (n,)
    shards: Ints  #: numbers of their next shards in the catalog, shape (n,)
    devices: Floats  #: entries "devices" and "times" of the observations, shape (n, D, 9)
    #: Entries "progress" and "remaining", "splits" where shards may be halved, and "kind" in AnyWise, shape (n, 6), (n,
    #: 8) or (n, 10).
    rest: Floats
    valid: Bools  #: actions that are valid, shape (n, actions)


class TaskGame:
    """Up to N episodes of a task; `begin` starts them, as often as they are to be played.

    Where an episode of ColumnWise would end without a plan, as a shard fits nowhere and no halvings are left, these
    halve on.

    Args:
        task: the task.
        cost: prices devices, and the plans in the end; additive.
        order: in which tables come up, one of `ORDERS`.
        episodes: N.
        splits: halvings at most of shards that fit somewhere; None where tables are placed whole.
        every_kind: whether rows may be cut and tables replicated, as in AnyWise.

    Attributes:
        catalog: numbers the shards of the task.
        reason: why the first episode that got stuck did; empty where none did.
        step_ms: cost of the plans; infinite where there is none, shape (n,).
    """

    def __init__(
        self, task: ShardingTask, cost: CostModel, order: str, episodes: int, *, splits: int | None, every_kind: bool
    ) -> None:
        most = None if splits is None else MOST_SPLITS
        limits = None if most is None else SplitLimits(most, every_kind=every_kind)
        layout = Layout(task.num_devices, most, timed=True, every_kind=every_kind)
        self._game = Game(Rules(order, "terminal", _PENALTY_MS, limits=limits, plans=False), cost, layout, episodes)
        self._task = task
        self._splits = splits
        self._splits_left = Layout(0, splits).splits_left
        self._rows = np.arange(episodes)
        self._actions = np.zeros(episodes, dtype=np.int64)
        self.catalog: ShardCatalog = self._game.catalog
        self.catalog.number(task)
        self.begin(episodes)

    def begin(self, episodes: int) -> None:
        """Start so many episodes anew, at most N."""
        reasons = self._game.start(self._rows, [(0, self._task)] * len(self._rows))
        self.reason = next(iter(reasons.values()), "")
        # All begin alike.
        self._going = self._rows[: 0 if reasons else episodes]
        self.step_ms: Floats = np.full(episodes, np.inf)

    def moments(self) -> Moments:
        """Return what is seen in all episodes that go on; there are none once all have ended."""
        going, placements, num_devices = self._going, self._game.placements, self._task.num_devices
        seen = self._game.observe()
        devices = [seen[name].reshape(len(self._rows), num_devices, -1)[going] for name in _PER_DEVICE]
        rest = np.concatenate([seen[name][going] for name in _REST if name in seen], axis=1, dtype=np.float64)
        valid = placements.allowed[going, :-1]
        if self._splits is not None:
            splits = np.minimum(placements.splits[going], self._splits)
            rest[:, _SPLITS_LEFT] = self._splits_left[splits]
            valid[:, num_devices + HALVE] &= (splits < self._splits) | ~valid[:, :num_devices].any(axis=1)
        shards = placements.next[going]
        return Moments(going, shards, np.concatenate(devices, axis=2, dtype=np.float64), rest, valid)

    def take(self, moments: Moments, chosen: Ints) -> None:
        """Take a valid action in each of these episodes, shape (n,)."""
        self._actions[moments.episodes] = chosen
        ends = self._game.step(moments.episodes, self._actions).ends
        for row, end in ends.items():
            self.step_ms[row] = quantized(end["cost_ms"])
            self.reason = self.reason or end.get("reason", "")
        if ends:
            self._going = self._going[~self._game.ended[self._going]]

    def placed(self, episode: int) -> Ints:
        """Return shards in the order of placing: numbers in the catalog, first columns, (first) devices; (3, n)."""
        placements = self._game.placements
        first = slice(placements.placed[episode])
        return np.array([array[episode, first] for array in (placements.shards, placements.starts, placements.devices)])
