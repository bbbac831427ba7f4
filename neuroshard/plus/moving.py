"""Plans near the one in use: what columns and shared tables move from there, and plans that move no more than that.

The search knows how many columns a device holds of a table, and not which. It counts the columns that a device has more
of than in the plan in use. `plan_near` then hands columns out so that devices keep theirs, and what really moves is
counted of that plan (`shardgym.evaluation.incumbent`). A device's columns of a table are one shard, so it may be a
little more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from neuroshard.plus.sharing import Place, Shared, shards_of
from neuroshard.shard_table import ShardTable
from shardgym.arrays import Floats, Ints
from shardgym.evaluation.incumbent import InUse
from shardgym.plans.migration import migration
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import block_bytes


class Moving:
    """What moving from the plan in use adds to the cost of a step, by what devices hold.

    Args:
        shards: of the task.
        in_use: the plan, and the price of a byte.

    Attributes:
        plan: in use.
        kept: units of each table of which a device has all rows, shape (D, T).
    """

    def __init__(self, shards: ShardTable, in_use: InUse) -> None:
        task = shards.task
        self.plan = in_use.plan
        self._in_use = in_use
        self._task = task
        self._place_ms: dict[tuple[int, str, int], float] = {}
        self.kept: Ints = np.zeros((task.num_devices, task.num_tables), dtype=np.int64)
        partly: Floats = np.zeros((task.num_devices, task.num_tables))
        unit_bytes = np.zeros(task.num_tables)
        for n, table in enumerate(task.tables):
            rows = table.num_embeddings
            unit_bytes[n] = block_bytes(rows, COLUMN_UNIT, task.precision_of(table), task.optimizer_of(table))
            for shard in in_use.plan.of_table(table.name):
                devices = list(shard.devices)
                if shard.num_rows == rows:
                    self.kept[devices, n] += shard.num_columns // COLUMN_UNIT
                else:
                    partly[devices, n] += shard.num_rows * shard.num_columns / (rows * table.embedding_dim)
        # Of what a device has some rows of, the others move.
        self._unit_ms: Floats = in_use.ms_per_byte * unit_bytes * np.maximum(1 - partly, 0.0)

    def ms(self, units: Ints, shared: Shared) -> float:
        """Return it for units of each table on each device, shape (D, T), and tables that devices share."""
        columns = float((self._unit_ms * np.maximum(units - self.kept, 0)).sum())
        return columns + sum(self._ms_of_place(place) for place in shared.places.values())

    def ms_more(self, units: Ints, moves: Ints) -> Floats:
        """Return what each of some moves adds to `ms` of these units, (M, 6) to (M,); see `Shortlist`."""
        givers, takers, tables, given, backs, back_units = moves.T
        more = self._more(units, givers, tables, -given) + self._more(units, takers, tables, given)
        swapped = backs >= 0
        back = np.where(swapped, backs, 0)
        amount = np.where(swapped, back_units, 0)
        return more + self._more(units, givers, back, amount) + self._more(units, takers, back, -amount)

    def like(self, units: Ints) -> Ints:
        """Return which device's units each device should have, so that most of what they hold stays, shape (D,).

        Devices change places inside of fast domains, and with their domains, where these are of one size.
        """
        devices = len(units)
        domain = self._task.topology.fast_domain_size
        stays = np.zeros((devices, devices))  # of what each device has now, if it gets the units of each
        for device in range(devices):
            stays[device] = np.minimum(units, self.kept[device]) @ self._unit_ms[device]
        if devices % domain:
            return np.arange(devices)
        count = devices // domain
        blocks = stays.reshape(count, domain, count, domain).swapaxes(1, 2)
        inner = [[linear_sum_assignment(blocks[n, m], maximize=True)[1] for m in range(count)] for n in range(count)]
        rows = np.arange(domain)
        gains = np.array([[blocks[n, m, rows, inner[n][m]].sum() for m in range(count)] for n in range(count)])
        chosen = linear_sum_assignment(gains, maximize=True)[1].tolist()
        return np.concatenate([m * domain + inner[n][m] for n, m in enumerate(chosen)]).astype(np.int64)

    def _more(self, units: Ints, devices: Ints, tables: Ints, change: Ints) -> Floats:
        before = units[devices, tables] - self.kept[devices, tables]
        more: Floats = self._unit_ms[devices, tables] * (np.maximum(before + change, 0) - np.maximum(before, 0))
        return more

    def _ms_of_place(self, place: Place) -> float:
        form = place.form
        key = form.table, form.kind, place.first
        if key not in self._place_ms:
            part = ShardingPlan.of(self._task, shards_of(self._task, place))
            self._place_ms[key] = self._in_use.ms_per_byte * migration(self._task, self.plan, part).bytes
        return self._place_ms[key]


def plan_near(shards: ShardTable, units: Ints, others: Iterable[Shard], in_use: ShardingPlan) -> ShardingPlan:
    """Return a plan in which devices hold so many units of each table, and keep the columns that they have.

    Args:
        shards: of the task.
        units: of each table on each device, shape (D, T).
        others: shards of tables of which there are no units.
        in_use: for the tables and devices of the task.
    """
    task = shards.task
    placed = [*others]
    for n in np.flatnonzero(units.any(axis=0)).tolist():
        table = task.tables[n]
        whole = [s for s in in_use.of_table(table.name) if s.num_rows == table.num_embeddings]
        columns: dict[int, list[tuple[int, int]]] = {}
        for shard in whole:
            for device in shard.devices:
                columns.setdefault(device, []).append(shard.columns)
        width = {device: COLUMN_UNIT * int(units[device, n]) for device in np.flatnonzero(units[:, n]).tolist()}
        order = _order(width, columns)
        ends = itertools.accumulate(width[device] for device in order)
        for device, end in zip(order, ends, strict=True):
            bounds = end - width[device], end
            placed.append(Shard(table.name, (0, table.num_embeddings), bounds, (device,)))
    return ShardingPlan.of(task, placed)


def _order(width: dict[int, int], columns: dict[int, list[tuple[int, int]]]) -> list[int]:
    """Return devices from the left to the right of a table: those that hold columns stay in order, others in between.

    Args:
        width: columns of each device that there will be.
        columns: ranges that devices hold now.
    """
    order = sorted((device for device in width if device in columns), key=lambda device: columns[device][0])
    for device in sorted(set(width) - set(order), key=lambda device: (-width[device], device)):
        ways = [[*order[:place], device, *order[place:]] for place in range(len(order) + 1)]
        order = max(ways, key=lambda way: _kept(way, width, columns))
    return order


def _kept(order: Sequence[int], width: dict[int, int], columns: dict[int, list[tuple[int, int]]]) -> int:
    """Return how many columns stay on their devices in an order."""
    kept = 0
    start = 0
    for device in order:
        end = start + width[device]
        kept += sum(max(0, min(end, last) - max(start, first)) for first, last in columns.get(device, ()))
        start = end
    return kept
