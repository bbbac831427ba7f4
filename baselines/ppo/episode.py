"""Episodes of one task with a policy, all at once, without the environment around them.

In the first episode the valid action with the highest score always wins: its plan is that of the same episode in the
environment which the policy was trained in. In the others actions are drawn, with scores as logits. There, a step is
many small calls that serve any tasks; here it is a few of them, for one. Where an episode of the environment would end
without a plan, as a shard fits nowhere and no halvings are left, these halve on.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from baselines.ppo.set_network import ArrayScores, SetNetwork
from shardgym.arrays import Bools, Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import LOADS
from shardgym.costs.shard_keys import ShardKey
from shardgym.envs.features import (
    BYTES,
    DEVICE_FEATURES,
    FREE_BYTES,
    REMAINING_FEATURES,
    SHARDS,
    SPLIT_FEATURES,
    TIME_FEATURES,
    remaining_features,
)
from shardgym.envs.observation import Layout
from shardgym.envs.shard_catalog import ShardCatalog, SplitLimits
from shardgym.errors import NoFeasiblePlanError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask

#: Places of shares among the features of a device.
_FREE = DEVICE_FEATURES.index("free_share")
_LOADS = slice(DEVICE_FEATURES.index("bytes_share"), DEVICE_FEATURES.index("tables_share") + 1)
_NOW, _WITH_NEXT = range(len(DEVICE_FEATURES), len(DEVICE_FEATURES) + len(TIME_FEATURES))


class Decisions(NamedTuple):
    """Actions of n episodes, and what was seen before them.

    Attributes:
        episodes: their numbers, shape (n,).
        table: entry "table" of the observations, shape (n, 25).
        devices: entries "devices" and "times", shape (n, D, 9).
        rest: entries "progress", "remaining" and "splits", shape (n, 8).
        valid: actions that were valid, shape (n, D + 1).
        chosen: actions, shape (n,).
        scores: of all actions, minus infinity where they are not valid, shape (n, D + 1).
    """

    episodes: Ints
    table: Floats
    devices: Floats
    rest: Floats
    valid: Bools
    chosen: Ints
    scores: Floats


#: Chooses actions from numbers of episodes, their shards, and what is seen, see `Decisions`; returns scores, too.
Choose = Callable[[Ints, Ints, Floats, Floats, Bools], tuple[Ints, Floats]]


class Played(NamedTuple):
    """What N episodes ended with.

    Attributes:
        step_ms: cost of the plans; infinite where there is none, shape (N,).
        placed: of each, numbers of shards in the catalog, their first columns and devices, in the order of placing.
        decisions: of every step, where asked for.
        reason: why the first episode that got stuck did; empty where none did.
    """

    step_ms: Floats
    placed: list[list[tuple[int, int, int]]]
    decisions: list[Decisions]
    reason: str


class Episodes:
    """Plays episodes of TableWise, or of ColumnWise if there is a number of halvings.

    Args:
        task: the task.
        costs: price devices, and the plans in the end.
        order: in which tables come up, one of `ORDERS`.
        max_splits: halvings at most of shards that fit somewhere; None where tables are placed whole.
    """

    def __init__(self, task: ShardingTask, costs: AdditiveCosts, order: str, max_splits: int | None = None) -> None:
        self._task = task
        self._costs = costs
        self._max_splits = max_splits
        self._catalog = ShardCatalog(order, task.num_devices, None if max_splits is None else SplitLimits(max_splits))
        self._catalog.number(task)

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
            raise NoFeasiblePlanError(played.reason)
        placed = self._catalog.placed(*np.array(played.placed[cheapest]).T)
        return ShardingPlan.of(self._task, [shard for one in placed for shard in one.in_plan()])

    def play(self, network: SetNetwork, episodes: int, rng: np.random.Generator, *, keep: bool = False) -> Played:
        """Play episodes, all at once. In the first one the valid action with the highest score always wins.

        Args:
            network: scores actions.
            episodes: N.
            rng: of what is drawn in the others, with scores as logits.
            keep: whether decisions are returned.
        """
        policy = ArrayScores(network, self._catalog.shard["features"], halves=self._max_splits is not None)

        def choose(going: Ints, shards: Ints, devices: Floats, rest: Floats, valid: Bools) -> tuple[Ints, Floats]:
            scores = np.where(valid, policy.scores(policy.of_steps(shards, rest), devices), -np.inf)
            if episodes == 1:
                return scores.argmax(axis=1), scores
            # The highest of scores with Gumbel noise is a draw from their softmax.
            noise = rng.gumbel(size=(episodes, scores.shape[1]))
            noise[0] = 0.0
            return (scores + noise[going]).argmax(axis=1), scores

        return self._play(choose, episodes, keep=keep)

    def follow(self, plan: ShardingPlan) -> list[Decisions]:
        """Return the decisions that lead to a plan, whose shards are halves of halves; none where it has others.

        Nor where it takes more halvings than there are. Of equal shards, the first to come up goes to the device of
        these that computes least with it.
        """
        of_shard = self._catalog.shard
        left: dict[tuple[str, int], list[int]] = {}
        for shard in plan.shards:
            left.setdefault((shard.table, shard.num_columns), []).append(shard.devices[0])
        lost = False

        def choose(going: Ints, shards: Ints, devices: Floats, rest: Floats, valid: Bools) -> tuple[Ints, Floats]:
            del going, rest
            nonlocal lost
            wanted = left.get((of_shard["name"][shards[0]], int(of_shard["width"][shards[0]])))
            chosen = valid.shape[1] - 1
            if wanted:
                chosen = min(wanted, key=lambda device: (devices[0, device, _WITH_NEXT], device))
                wanted.remove(chosen)
            if not valid[0, chosen]:
                lost = True
                chosen = int(valid[0].argmax())
            return np.array([chosen]), np.zeros(valid.shape)

        decisions = self._play(choose, 1, keep=True).decisions
        return [] if lost else decisions

    def _play(self, choose: Choose, episodes: int, *, keep: bool) -> Played:
        catalog = self._catalog
        sizes = catalog.shard["bytes"]
        halvable = catalog.shard["halvable"]
        queues = _Queues(catalog, self._max_splits, episodes)
        devices = _Devices(self._task, catalog, self._costs, episodes)
        going = np.arange(episodes)
        stuck = np.zeros(episodes, dtype=np.bool_)
        decisions: list[Decisions] = []
        reason = ""
        while len(going):
            shards = queues.next(going)
            fits = devices.room[going] >= sizes[shards][:, None]
            fits_somewhere = fits.any(axis=1)
            # Where tables are placed whole, no shard of the catalog is halvable.
            can_halve = halvable[shards] & (~fits_somewhere | (queues.splits[going] < (self._max_splits or 0)))
            lost = ~(can_halve | fits_somewhere)
            if np.count_nonzero(lost):
                first = int(np.flatnonzero(lost)[0])
                reason = reason or _why(catalog, int(shards[first]), devices.room[going[first]])
                stuck[going[lost]] = True
                going, shards = going[~lost], shards[~lost]
                fits, can_halve = fits[~lost], can_halve[~lost]
                if not len(going):
                    break
            rest = queues.observe(going, shards)
            seen = devices.observe(going, shards)
            valid = np.concatenate([fits, can_halve[:, None]], axis=1)
            chosen, scores = choose(going, shards, seen, rest, valid)
            if keep:
                table = catalog.shard["features"][shards]
                decisions.append(Decisions(going, table, seen, rest, valid, chosen, scores))
            halving = chosen == self._task.num_devices
            if np.count_nonzero(halving):
                queues.halve(going[halving])
                devices.expect(going[halving], queues.count)
                placing = ~halving
                if np.count_nonzero(placing):
                    queues.place(going[placing], shards[placing], chosen[placing])
                    devices.place(going[placing], shards[placing], chosen[placing])
            else:
                queues.place(going, shards, chosen)
                devices.place(going, shards, chosen)
            going = going[queues.waits(going)]
        return Played(np.where(stuck, np.inf, devices.step_ms()), queues.placed, decisions, reason)


def _why(catalog: ShardCatalog, shard: int, room: Floats) -> str:
    part = "table" if catalog.shard["width_share"][shard] == 1 else "a part of table"
    return (
        f"{part} '{catalog.shard['name'][shard]}' of {int(catalog.shard['bytes'][shard])} bytes fits on no device: the "
        f"largest room left is {int(room.max())} bytes"
    )


class _Queues:
    """The shards that wait in N episodes, of the only task of a catalog. `rows` are numbers of episodes, shape (n,).

    Args:
        catalog: of the task.
        max_splits: see `place_by_score`.
        episodes: N.

    Attributes:
        placed: numbers of shards in the catalog, their first columns and devices, in the order of placing.
        count: of shards, placed or waiting, shape (N,).
        splits: halvings so far, shape (N,).
    """

    def __init__(self, catalog: ShardCatalog, max_splits: int | None, episodes: int) -> None:
        count = int(catalog.task["tables"][0])
        self._shard = catalog.shard
        self._max_splits = max_splits
        self._splits_left = Layout(0, max_splits).splits_left
        waiting = [(shard, 0) for shard in reversed(catalog.shards_of(0)[:count].tolist())]
        #: Numbers of shards in the catalog and their first columns, the next one last.
        self._waiting = [waiting.copy() for _ in range(episodes)]
        self.placed: list[list[tuple[int, int, int]]] = [[] for _ in range(episodes)]
        self.count = np.full(episodes, count)
        self.splits = np.zeros(episodes, dtype=np.int64)
        #: See `Placements.left` and `Placements.scale`.
        self._left: Floats = np.tile(catalog.task["totals"][0], (episodes, 1))
        self._scale: Floats = np.tile(catalog.task["scale"][0], (episodes, 1))

    def waits(self, rows: Ints) -> Bools:
        """Return in which of these episodes shards are left to place, shape (n,)."""
        return np.array([bool(self._waiting[row]) for row in rows.tolist()], dtype=np.bool_)

    def next(self, rows: Ints) -> Ints:
        """Return the numbers of the shards that come next, shape (n,)."""
        return np.array([self._waiting[row][-1][0] for row in rows.tolist()], dtype=np.int64)

    def observe(self, rows: Ints, shards: Ints) -> Floats:
        """Return entries "progress", "remaining" and "splits" of the observations before these shards, shape (n, 8)."""
        left = self._left[rows]
        scale = self._scale[rows]
        seen = np.zeros((len(rows), 1 + len(REMAINING_FEATURES) + len(SPLIT_FEATURES)))
        seen[:, 0] = 1 - left[:, SHARDS] / scale[:, SHARDS]
        seen[:, 1:-2] = remaining_features(left, scale)
        if self._max_splits is not None:
            seen[:, -2] = self._splits_left[np.minimum(self.splits[rows], self._max_splits)]
            seen[:, -1] = self._shard["width_share"][shards]
        return seen

    def place(self, rows: Ints, shards: Ints, devices: Ints) -> None:
        """Place the next shards, which are given, on devices, both of shape (n,)."""
        self._left[rows] -= self._shard["amounts"][shards]
        for row, device in zip(rows.tolist(), devices.tolist(), strict=True):
            self.placed[row].append((*self._waiting[row].pop(), device))

    def halve(self, rows: Ints) -> None:
        """Halve the next shards."""
        keys = self._shard["key"]
        amounts = self._shard["amounts"]
        for row in rows.tolist():
            waiting = self._waiting[row]
            whole, start = waiting.pop()
            half = int(self._shard["half"][whole])
            # In front of all shards that do not precede the halves, the left half first.
            at = bisect.bisect_right(waiting, keys[half], key=lambda other: keys[other[0]])
            waiting[at:at] = [(half, start + int(self._shard["width"][half])), (half, start)]
            self._left[row, :FREE_BYTES] += (2 * amounts[half] - amounts[whole])[:FREE_BYTES]
        self.count[rows] += 1
        self.splits[rows] += 1
        self._scale[rows, SHARDS] += 1


class _Devices:
    """What devices hold and compute in N episodes. `rows` are numbers of episodes, shape (n,).

    Args:
        task: the task.
        catalog: that has this task alone, and numbers shards.
        costs: price devices.
        episodes: N.

    Attributes:
        room: free bytes, shape (N, D).
    """

    def __init__(self, task: ShardingTask, catalog: ShardCatalog, costs: AdditiveCosts, episodes: int) -> None:
        shape = episodes, task.num_devices
        self._costs = costs
        self._task = costs.add_task(task)
        self._amounts: Floats = catalog.shard["amounts"][:, :FREE_BYTES]
        self._capacity: Floats = catalog.task["capacity"][0]
        self._scale: Floats = np.tile(catalog.task["scale"][0], (episodes, 1))
        keys = map(ShardKey, *(catalog.shard[name].tolist() for name in ("name", "rows", "width")))
        # The catalog's first shard is none.
        encoded = costs.encode_keys(task, list(keys)[1:])
        self._vectors = np.pad(costs.vectors(encoded), ((1, 0), (0, 0)))
        self._sums: Floats = np.zeros((*shape, self._vectors.shape[1]))
        self._loads: Floats = np.zeros((*shape, FREE_BYTES))
        self._most_even_shares = Layout(task.num_devices).most_even_shares
        self._even_share_ms = self._all_on_one_ms(task) / task.num_devices
        #: Entries "devices" and "times" of the observations.
        self._seen: Floats = np.zeros((*shape, _WITH_NEXT + 1))
        self._seen[..., : len(DEVICE_FEATURES)] = catalog.task["devices"][0]
        self.room: Floats = np.tile(self._capacity, (episodes, 1))

    def observe(self, rows: Ints, shards: Ints) -> Floats:
        """Return entries "devices" and "times" of the observations before these shards, shape (n, D, 9)."""
        ms = self._costs.exact_compute_ms(self._sums[rows] + self._vectors[shards][:, None])
        shares = np.minimum(ms.sum(axis=2) / self._even_share_ms, self._most_even_shares)
        self._seen[rows, :, _WITH_NEXT] = shares
        return self._seen[rows]

    def place(self, rows: Ints, shards: Ints, devices: Ints) -> None:
        """Place the shards that were observed on devices, both of shape (n,)."""
        self._sums[rows, devices] += self._vectors[shards]
        self._loads[rows, devices] += self._amounts[shards]
        loads = self._loads[rows, devices]
        capacity = self._capacity[devices]
        self.room[rows, devices] = capacity - loads[:, BYTES]
        seen = self._seen[rows, devices]
        seen[:, _FREE] = 1 - loads[:, BYTES] / capacity
        seen[:, _LOADS] = np.minimum(loads / self._scale[rows], 1.0)
        seen[:, _NOW] = seen[:, _WITH_NEXT]
        self._seen[rows, devices] = seen

    def expect(self, rows: Ints, count: Ints) -> None:
        """Observe loads as shares of so many shards, shape (N,)."""
        self._scale[rows, SHARDS] = count[rows]
        self._seen[rows, :, _LOADS] = np.minimum(self._loads[rows] / self._scale[rows][:, None], 1.0)

    def step_ms(self) -> Floats:
        """Return what the plans of the episodes cost, shape (N,)."""
        return self._costs.slowest_ms(self._task, self._costs.compute_ms(self._sums), self._sums[..., -LOADS:])

    def _all_on_one_ms(self, task: ShardingTask) -> float:
        sums = np.zeros((1, *self._sums.shape[1:]))
        sums[0, 0] = self._vectors[1 : 1 + task.num_tables].sum(axis=0)
        return float(self._costs.total_ms(self._task, sums)[0])
