"""Episodes of one task with a policy, all at once, without the environment around them.

In the first episode the valid action with the highest score always wins: its plan is that of the same episode in the
environment which the policy was trained in. In the others actions are drawn, with scores as logits.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from baselines.column_greedy import merged
from baselines.ppo.any_game import AnyGame
from baselines.ppo.column_game import ColumnGame
from baselines.ppo.game import WITH_NEXT, Moments, OneTaskGame
from baselines.ppo.held import held_in
from baselines.ppo.set_network import ArrayScores, SetNetwork
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.shard_catalog import ShardCatalog, SplitLimits
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask


class Decisions(NamedTuple):
    """Actions of n episodes, and what was seen before them.

    Attributes:
        episodes: their numbers, shape (n,).
        table: entry "table" of the observations, shape (n, 25).
        devices: see `Moments`.
        rest: likewise.
        valid: likewise.
        chosen: actions, shape (n,).
        scores: of all actions, minus infinity where they are not valid, shape (n, actions).
    """

    episodes: Ints
    table: Floats
    devices: Floats
    rest: Floats
    valid: Bools
    chosen: Ints
    scores: Floats


#: Chooses actions; returns scores, too.
Choose = Callable[[Moments], tuple[Ints, Floats]]


class Played(NamedTuple):
    """What N episodes ended with.

    Attributes:
        step_ms: cost of the plans; infinite where there is none, shape (N,).
        game: that was played.
        decisions: of every step, where asked for.
    """

    step_ms: Floats
    game: OneTaskGame
    decisions: list[Decisions]


class Episodes(abc.ABC):
    """Plays episodes of one task. A subclass says which game that is.

    Args:
        task: the task.
        catalog: that has this task alone, and numbers shards.
    """

    def __init__(self, task: ShardingTask, catalog: ShardCatalog) -> None:
        self._task = task
        self._catalog = catalog

    @abc.abstractmethod
    def start(self, episodes: int) -> OneTaskGame:
        """Return a game of so many episodes that have just begun."""

    def plan(self, network: SetNetwork, *, episodes: int = 1, seed: int = 0) -> ShardingPlan:
        """Return the cheapest plan of episodes; of equally cheap plans the first counts.

        Args:
            network: scores actions.
            episodes: N. Nothing is drawn in the first one.
            seed: of what is drawn in the others.

        Raises:
            NoFeasiblePlanError: in every episode a shard fits nowhere any more.
        """
        played = self.play(network, episodes, np.random.default_rng(seed))
        cheapest = int(played.step_ms.argmin())
        if np.isinf(played.step_ms[cheapest]):
            raise NoFeasiblePlanError(played.game.reason)
        placed = self._catalog.placed(*played.game.placed(cheapest))
        return ShardingPlan.of(self._task, [shard for one in placed for shard in one.in_plan()])

    def play(self, network: SetNetwork, episodes: int, rng: np.random.Generator, *, keep: bool = False) -> Played:
        """Play episodes, all at once. In the first one the valid action with the highest score always wins.

        Args:
            network: scores actions.
            episodes: N.
            rng: of what is drawn in the others, with scores as logits.
            keep: whether decisions are returned.
        """
        game = self.start(episodes)
        features = self._catalog.shard["features"]
        policy = ArrayScores(network, features, self._task.num_devices, halves=self._halves)
        holders = self._catalog.kind["holders"] if network.every_kind else None

        def choose(moments: Moments) -> tuple[Ints, Floats]:
            of_steps = policy.of_steps(moments.shards, moments.rest)
            found = policy.scores(of_steps, moments.devices, None if holders is None else holders[moments.shards])
            scores = np.where(moments.valid, found, -np.inf)
            if episodes == 1:
                return scores.argmax(axis=1), scores
            # The highest of scores with Gumbel noise is a draw from their softmax.
            noise = rng.gumbel(size=(episodes, scores.shape[1]))
            noise[0] = 0.0
            return (scores + noise[moments.episodes]).argmax(axis=1), scores

        return self._play(game, choose, keep=keep)

    def follow(self, plan: ShardingPlan) -> list[Decisions]:
        """Return the decisions that lead to a plan; none where no actions do, or there are too few halvings.

        Columns that no halving makes are made of several shards on one device. Of equal shards, the first to come up
        goes to the device of these that computes least with it.
        """
        left = held_in(self._task, plan)
        of_shard = self._catalog.shard
        of_kind = self._catalog.kind
        lost = False

        def choose(moments: Moments) -> tuple[Ints, Floats]:
            nonlocal lost
            [shard] = moments.shards.tolist()
            holders = int(of_kind["holders"][shard]) if len(of_kind) else 1
            columns = int(of_shard["width"][shard])
            held = left.get(of_shard["name"][shard], [])
            ways = [way for way in held if way.columns >= columns]
            chosen = self._task.num_devices
            if ready := [way for way in ways if way.holders == holders and not way.replicated]:
                least = {way: moments.devices[0, way.first, WITH_NEXT] for way in ready}
                way = min(ready, key=lambda way: (way.columns != columns, least[way], way.first))
                held.remove(way)
                if way.columns > columns:
                    held.append(way._replace(columns=way.columns - columns))
                chosen = way.first
            elif any(way.replicated for way in ways):
                chosen += REPLICATE
            else:
                chosen += CUT_ROWS if ways else HALVE
            if chosen >= moments.valid.shape[1] or not moments.valid[0, chosen]:
                lost = True
                chosen = int(moments.valid[0].argmax())
            return np.array([chosen]), np.zeros(moments.valid.shape)

        decisions = self._play(self.start(1), choose, keep=True).decisions
        return [] if lost else decisions

    @property
    def _halves(self) -> bool:
        """Whether halving is an action."""
        return True

    def _play(self, game: OneTaskGame, choose: Choose, *, keep: bool) -> Played:
        decisions: list[Decisions] = []
        while len((moments := game.moments()).episodes):
            chosen, scores = choose(moments)
            if keep:
                going, shards, devices, rest, valid = moments
                table = self._catalog.shard["features"][shards]
                decisions.append(Decisions(going, table, devices, rest, valid, chosen, scores))
            game.take(moments, chosen)
        return Played(game.step_ms(), game, decisions)


class ColumnEpisodes(Episodes):
    """Plays episodes of TableWise, or of ColumnWise if there is a number of halvings.

    Args:
        task: the task.
        costs: price devices, and the plans in the end.
        order: in which tables come up, one of `ORDERS`.
        max_splits: halvings at most of shards that fit somewhere; None where tables are placed whole.
    """

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, order: str, max_splits: int | None = None) -> None:
        limits = None if max_splits is None else SplitLimits(max_splits)
        super().__init__(task, ShardCatalog(order, task.num_devices, limits))
        self._catalog.number(task)
        self._costs = costs
        self._max_splits = max_splits

    def start(self, episodes: int) -> OneTaskGame:
        """See `Episodes`."""
        return ColumnGame(self._task, self._catalog, self._costs, self._max_splits, episodes)

    @property
    def _halves(self) -> bool:
        return self._max_splits is not None


class AnyEpisodes(Episodes):
    """Plays episodes of AnyWise; see `AnyGame` for the arguments."""

    def __init__(self, task: ShardingTask, cost: CostModel, order: str, max_splits: int, episodes: int) -> None:
        self._game = AnyGame(task, cost, order, max_splits, episodes)
        super().__init__(task, self._game.catalog)

    def start(self, episodes: int) -> OneTaskGame:
        """See `Episodes`. There is one game: those before are lost."""
        self._game.begin(episodes)
        return self._game

    def plan(self, network: SetNetwork, *, episodes: int = 1, seed: int = 0) -> ShardingPlan:
        """See `Episodes`; shards of one table on one device become one."""
        return merged(self._task, super().plan(network, episodes=episodes, seed=seed))
