"""An episode in which the valid action with the highest score always wins, without the environment around it.

The plan is that of an episode in the environment which the policy was trained in. There, a step is many small calls
that serve any number of episodes; here it is a few of them, for one. Where that episode would end without a plan, as a
shard fits nowhere and no halvings are left, this one halves on.
"""

from __future__ import annotations

import bisect

import numpy as np

from baselines.ppo.set_network import ArrayScores, SetNetwork
from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import ShardKey
from shardgym.envs.features import (
    BYTES,
    DEVICE_FEATURES,
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


def place_by_score(
    network: SetNetwork, task: ShardingTask, costs: AdditiveCosts, order: str, max_splits: int | None = None
) -> ShardingPlan:
    """Return the plan of an episode in TableWise, or in ColumnWise if there is a number of halvings.

    Args:
        network: scores actions.
        task: the task.
        costs: price devices.
        order: in which tables come up, one of `ORDERS`.
        max_splits: halvings at most of shards that fit somewhere; None where tables are placed whole.

    Raises:
        NoFeasiblePlanError: a shard fits nowhere any more.
    """
    catalog = ShardCatalog(order, task.num_devices, None if max_splits is None else SplitLimits(max_splits))
    catalog.number(task)
    sizes, halvable = (catalog.shard[name].tolist() for name in ("bytes", "halvable"))
    policy = ArrayScores(network, catalog.shard["features"], halves=max_splits is not None)
    devices = _Devices(task, catalog, costs)
    queue = _Queue(catalog, max_splits)
    of_steps = iter(policy.of_steps(*queue.observe()))
    placed: list[tuple[int, int, int]] = []
    while queue.waiting:
        shard, start = queue.waiting[-1]
        fits = devices.room >= sizes[shard]
        fits_somewhere = bool(np.count_nonzero(fits))
        # Where tables are placed whole, no shard of the catalog is halvable.
        can_halve = halvable[shard] and (not fits_somewhere or queue.splits < (max_splits or 0))
        if not (can_halve or fits_somewhere):
            part = "table" if catalog.shard["width_share"][shard] == 1 else "a part of table"
            raise NoFeasiblePlanError(
                f"{part} '{catalog.shard['name'][shard]}' of {int(sizes[shard])} bytes fits on no device: the "
                f"largest room left is {int(devices.room.max())} bytes"
            )
        devices.price_with(shard)
        of_devices, of_halving = policy.scores(next(of_steps), devices.seen)
        of_devices[~fits] = -np.inf
        device = int(of_devices.argmax())
        if can_halve and of_halving > of_devices[device]:
            queue.halve()
            devices.expect(queue.count)
            of_steps = iter(policy.of_steps(*queue.observe()))
        else:
            queue.waiting.pop()
            devices.place(shard, device)
            placed.append((shard, start, device))
    held = [shard for one in catalog.placed(*np.array(placed).T) for shard in one.in_plan()]
    return ShardingPlan.of(task, held)


class _Queue:
    """The shards that wait, of the only task of a catalog.

    Attributes:
        waiting: numbers of shards in the catalog and their first columns, the next one last.
        count: of shards, placed or waiting.
        splits: halvings so far.
    """

    def __init__(self, catalog: ShardCatalog, max_splits: int | None) -> None:
        self.count = int(catalog.task["tables"][0])
        self.splits = 0
        self.waiting = [(shard, 0) for shard in reversed(catalog.shards_of(0)[: self.count].tolist())]
        self._shard = catalog.shard
        self._scale: Floats = catalog.task["scale"][0]
        self._max_splits = max_splits
        #: See `Placements.left`, before each of the steps that were observed last; those to go begin here.
        self._left: Floats = catalog.task["totals"]

    def observe(self) -> tuple[list[int], Floats]:
        """Return the shards of all steps up to the next halving, and what is observed in them.

        Returns:
            Numbers of n shards; entries "progress", "remaining" and "splits", shape (n, 8).
        """
        shards = [shard for shard, _ in reversed(self.waiting)]
        steps = np.concatenate([self._left[:1], self._shard["amounts"][shards]])
        self._left = np.subtract.accumulate(steps)[:-1]
        seen = np.zeros((len(shards), 1 + len(REMAINING_FEATURES) + len(SPLIT_FEATURES)))
        seen[:, 0] = np.arange(self.count - len(shards), self.count) / self.count
        seen[:, 1:-2] = remaining_features(self._left, np.append(self._scale[:3], self.count))
        if self._max_splits is not None:
            seen[:, -2] = Layout(0, self._max_splits).splits_left[min(self.splits, self._max_splits)]
            seen[:, -1] = self._shard["width_share"][shards]
        return shards, seen

    def halve(self) -> None:
        """Halve the next shard; `observe` comes next."""
        left = self._left[len(self._left) - len(self.waiting)]
        whole, start = self.waiting.pop()
        half = int(self._shard["half"][whole])
        keys = self._shard["key"]
        # In front of all shards that do not precede the halves, the left half first.
        at = bisect.bisect_right(self.waiting, keys[half], key=lambda other: keys[other[0]])
        self.waiting[at:at] = [(half, start + int(self._shard["width"][half])), (half, start)]
        self.count += 1
        self.splits += 1
        amounts = self._shard["amounts"]
        left[:4] += (2 * amounts[half] - amounts[whole])[:4]
        self._left = left[None]


class _Devices:
    """What devices hold and compute. Numbers of shards are those of the catalog, which has one task.

    Attributes:
        seen: entries "devices" and "times" of the observation, shape (D, 9).
        room: free bytes, shape (D,).
    """

    def __init__(self, task: ShardingTask, catalog: ShardCatalog, costs: AdditiveCosts) -> None:
        self._costs = costs
        self._amounts: Floats = catalog.shard["amounts"][:, :4]
        self._capacity: Floats = catalog.task["capacity"][0]
        self._scale: Floats = catalog.task["scale"][0].copy()
        keys = map(ShardKey, *(catalog.shard[name].tolist() for name in ("name", "rows", "width")))
        # The catalog's first shard is none.
        encoded = costs.encode_keys(task, list(keys)[1:])
        self._vectors = np.pad(costs.vectors(encoded), ((1, 0), (0, 0)))
        self._sums: Floats = np.zeros((task.num_devices, self._vectors.shape[1]))
        self._loads: Floats = np.zeros((task.num_devices, 4))
        self._most_even_shares = Layout(task.num_devices).most_even_shares
        self._even_share_ms = self._all_on_one_ms(task) / task.num_devices
        self.seen = np.zeros((task.num_devices, _WITH_NEXT + 1))
        self.seen[:, : len(DEVICE_FEATURES)] = catalog.task["devices"][0]
        self.room: Floats = self._capacity.copy()

    def price_with(self, shard: int) -> None:
        """Observe what each device would compute with a shard."""
        ms = self._costs.exact_compute_ms(self._sums + self._vectors[shard])
        self.seen[:, _WITH_NEXT] = np.minimum((ms[:, 0] + ms[:, 1]) / self._even_share_ms, self._most_even_shares)

    def place(self, shard: int, device: int) -> None:
        """Place the shard that was priced."""
        self._sums[device] += self._vectors[shard]
        load = self._loads[device]
        load += self._amounts[shard]
        self.room[device] = self._capacity[device] - load[BYTES]
        seen = self.seen[device]
        seen[_FREE] = 1 - load[BYTES] / self._capacity[device]
        seen[_LOADS] = np.minimum(load / self._scale, 1.0)
        seen[_NOW] = seen[_WITH_NEXT]

    def expect(self, count: int) -> None:
        """Observe loads as shares of so many shards."""
        self._scale[SHARDS] = count
        self.seen[:, _LOADS] = np.minimum(self._loads / self._scale, 1.0)

    def _all_on_one_ms(self, task: ShardingTask) -> float:
        sums = np.zeros((1, *self._sums.shape))
        sums[0, 0] = self._vectors[1 : 1 + task.num_tables].sum(axis=0)
        return float(self._costs.total_ms(self._costs.add_task(task), sums)[0])
