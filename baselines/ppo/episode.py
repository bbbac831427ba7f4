"""Batched episodes of one task with a policy, without the environment around them.

The first episode takes the valid action with the highest score at each step, and ends with the same plan as in the
environment that trained the policy. The others sample actions with scores as logits.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from baselines.lpt import merged
from baselines.ppo.set_network import ArrayScores, SetNetwork
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.base import CostModel, additive_costs
from shardgym.costs.ties import quantized
from shardgym.envs.features import DEVICE_FEATURES, REMAINING_FEATURES, TIME_FEATURES
from shardgym.envs.game import Game, Rules
from shardgym.envs.kind_rules import CUT_ROWS, HALVE, REPLICATE
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import ShardCatalog, SplitLimits
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask

#: Places of times behind the features of a device.
NOW, WITH_NEXT = range(len(DEVICE_FEATURES), len(DEVICE_FEATURES) + len(TIME_FEATURES))
#: Maximum of halvings, including those of ColumnWise beyond its limit, for shards that fit nowhere.
MOST_SPLITS = 64

#: Entries of observations with values for every device, and other entries.
_PER_DEVICE = ("devices", "times")
_REST = ("progress", "remaining", "splits", "kind")
#: Position of the share of halvings left in the others.
_SPLITS_LEFT = 1 + len(REMAINING_FEATURES)
#: Return of an episode that ends without a plan, which is not used.
_PENALTY_MS = -1e9
#: Tables that take longest come up first, so that the last ones can even out what is left.
ORDER = "lookup"


class Moments(NamedTuple):
    """Observations of n running episodes."""

    episodes: Ints  #: their numbers, shape (n,)
    shards: Ints  #: catalog numbers of their next shards, shape (n,)
    devices: Floats  #: entries "devices" and "times" of the observations, shape (n, D, 9)
    #: Entries "progress", "remaining", in ColumnWise "splits", and in AnyWise "kind", shape (n, 6), (n, 8) or (n, 10).
    rest: Floats
    valid: Bools  #: valid actions, shape (n, actions)


class Decisions(NamedTuple):
    """Actions of n episodes, with the observations before them."""

    episodes: Ints  #: their numbers, shape (n,)
    table: Floats  #: entry "table" of the observations, shape (n, 25)
    devices: Floats  #: see `Moments`
    rest: Floats  #: likewise
    valid: Bools  #: likewise
    chosen: Ints  #: actions, shape (n,)
    scores: Floats  #: scores of all actions, minus infinity for invalid ones, shape (n, actions)


#: Chooses actions; also returns scores.
Choose = Callable[[Moments], tuple[Ints, Floats]]


class Played(NamedTuple):
    """The ends of N episodes."""

    step_ms: Floats  #: costs of the plans, infinite without a plan, shape (N,)
    decisions: list[Decisions]  #: decisions of every step, if kept


class Episodes:
    """Plays up to N episodes of one task at a time, by the rules of TableWise, ColumnWise or AnyWise.

    Unlike in ColumnWise, shards that fit nowhere are halved even if no halvings are left.

    Args:
        task: the task.
        cost: an additive cost model, which prices devices and plans.
        order: the order of tables, one of `ORDERS`.
        episodes: number of episodes, N.
        splits: maximum number of halvings of shards that fit somewhere; None to place tables whole.
        every_kind: whether rows may be cut and tables replicated, as in AnyWise.

    Raises:
        InputError: the cost is not additive.
    """

    def __init__(
        self, task: ShardingTask, cost: CostModel, order: str, episodes: int = 1, *, splits: int | None = None,
        every_kind: bool = False,
    ) -> None:  # fmt: skip
        additive_costs(cost, "a policy over devices")
        most = None if splits is None else MOST_SPLITS
        limits = None if most is None else SplitLimits(most, every_kind=every_kind)
        layout = Layout(task.num_devices, most, timed=True, every_kind=every_kind)
        self._game = Game(Rules(order, "terminal", _PENALTY_MS, limits=limits, plans=False), cost, layout, episodes)
        self._task = task
        self._every_kind = every_kind
        self._splits = splits
        self._splits_left = Layout(0, splits).splits_left
        self._rows = np.arange(episodes)
        self._actions = np.zeros(episodes, dtype=np.int64)
        self._catalog: ShardCatalog = self._game.catalog
        self._catalog.number(task)

    def plan(self, network: SetNetwork, *, episodes: int = 1, seed: int = 0) -> ShardingPlan:
        """Return the cheapest plan of some episodes; ties go to the first."""
        played = self.play(network, episodes, np.random.default_rng(seed))
        cheapest = int(played.step_ms.argmin())
        if np.isinf(played.step_ms[cheapest]):
            raise NoFeasiblePlanError(self._reason)
        placed = self._catalog.placed(*self._placed(cheapest))
        plan = ShardingPlan.of(self._task, [shard for one in placed for shard in one.in_plan()])
        return merged(self._task, plan) if self._every_kind else plan

    def play(self, network: SetNetwork, episodes: int, rng: np.random.Generator, *, keep: bool = False) -> Played:
        """Play some episodes at once: the first one greedily, the others with sampled actions."""
        features = self._catalog.shard["features"]
        policy = ArrayScores(network, features, self._task.num_devices, halves=self._splits is not None)
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

        return self._play(episodes, choose, keep=keep)

    def follow(self, plan: ShardingPlan) -> list[Decisions]:
        """Return the decisions that lead to a plan; none if no actions do, or there are too few halvings.

        Widths that no halving makes become several shards on one device. Among equal shards, the first one goes to the
        device that computes least with it.
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

        decisions = self._play(1, choose, keep=True).decisions
        return [] if lost else decisions

    def _play(self, episodes: int, choose: Choose, *, keep: bool) -> Played:
        reasons = self._game.start(self._rows, [(0, self._task)] * len(self._rows))
        self._reason = next(iter(reasons.values()), "")
        # All begin alike.
        self._going = self._rows[: 0 if reasons else episodes]
        self._step_ms: Floats = np.full(episodes, np.inf)
        decisions: list[Decisions] = []
        while len((moments := self._moments()).episodes):
            chosen, scores = choose(moments)
            if keep:
                going, shards, devices, rest, valid = moments
                table = self._catalog.shard["features"][shards]
                decisions.append(Decisions(going, table, devices, rest, valid, chosen, scores))
            self._actions[moments.episodes] = chosen
            ends = self._game.step(moments.episodes, self._actions).ends
            for row, end in ends.items():
                self._step_ms[row] = quantized(end["cost_ms"])
                self._reason = self._reason or end.get("reason", "")
            if ends:
                self._going = self._going[~self._game.ended[self._going]]
        return Played(self._step_ms, decisions)

    def _moments(self) -> Moments:
        """Return the observations of all running episodes."""
        going = self._going
        placements = self._game.placements
        num_devices = self._task.num_devices
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

    def _placed(self, episode: int) -> Ints:
        """Return catalog numbers, first columns and first devices of shards in the order of placing, (3, n)."""
        placements = self._game.placements
        first = slice(placements.placed[episode])
        return np.array([array[episode, first] for array in (placements.shards, placements.starts, placements.devices)])


class Held(NamedTuple):
    """Columns of a table on consecutive devices."""

    columns: int  #: how many
    first: int  #: the first holder
    holders: int  #: how many there are
    replicated: bool  #: whether each has all rows


def held_in(task: ShardingTask, plan: ShardingPlan) -> dict[str, list[Held]]:
    """Return how a plan holds the columns of each table.

    Omits what no action of AnyWise makes: uneven cuts by rows, holders other than a fast domain or all devices,
    replicas on some devices, and plans of groups.
    """
    if plan.group_size is not None:
        return {}
    blocks: dict[tuple[str, tuple[int, int]], list[Shard]] = {}
    for shard in plan.shards:
        blocks.setdefault((shard.table, shard.columns), []).append(shard)
    found: dict[str, list[Held]] = {}
    for (table, _), shards in blocks.items():
        held = _held(task, shards)
        if held is not None:
            found.setdefault(table, []).append(held)
    return found


def _held(task: ShardingTask, shards: list[Shard]) -> Held | None:
    """Return how the shards of a table with the same columns are held; None if no action makes that."""
    rows = task.table(shards[0].table).num_embeddings
    shards = sorted(shards, key=lambda shard: shard.rows)
    columns = shards[0].num_columns
    first = shards[0].devices[0]
    holders = len(shards)
    if holders == 1:
        several = shards[0].devices
        if len(several) == 1:
            return Held(columns, first, 1, replicated=False)
        return Held(columns, 0, len(several), replicated=True) if len(several) == task.num_devices else None
    block = -(-rows // holders)
    even = all(
        shard.rows == (place * block, min((place + 1) * block, rows)) and shard.devices == (first + place,)
        for place, shard in enumerate(shards)
    )
    is_run = holders in (task.num_devices, task.topology.fast_domain_size) and first % holders == 0
    return Held(columns, first, holders, replicated=False) if even and is_run else None
