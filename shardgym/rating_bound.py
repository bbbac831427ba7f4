"""The least that TorchRec's rating of a plan can be, proven.

A plan is rated by the largest sum of its shards' times over devices (`shardgym.costs.torchrec_rating`): nothing waits,
and shards share nothing. Suppose that no device takes more than Y. Then no shard does. So every table adds at least
what the cheapest of its cuts into shards within Y adds, and all tables together add at most Y on each device. The bound
is the smallest Y for which both can be true: the even share of all tables, where none of them is too much for a device,
and more where one has to be cut, since the pieces of a table take longer than the table.

Which cuts there are:

- *columns*: into any widths divisible by four. The cheapest cut is found by dynamic programming over the width.
- *rows evenly*: besides, a table as a whole may be cut by rows, one equal piece on every device. A piece takes a time
  for its outputs, which all pieces have, and its share of the time for ids.
- *any rows*: rectangles of any kind. Each cell of a table is in one of them; the bound spreads the time of a shard
  evenly over its cells, and takes the cheapest shard within Y. Pieces with more rows are cheaper per cell.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.torchrec_rating import PlannerConstants, shard_ms, split_shard_ms
from shardgym.plan import COLUMN_UNIT
from shardgym.task import ShardingTask

#: Ways to cut tables by rows, besides columns.
RowCuts = Literal["none", "even", "any"]

#: The last halving leaves less than the rounding of the sums.
_HALVINGS = 60


def rating_bound(task: ShardingTask, constants: PlannerConstants, row_cuts: RowCuts = "none") -> float:
    """Return what no plan of a task is rated below, in ms, up to rounding; memory is not looked at.

    Args:
        task: with widths that can be fused.
        constants: of the planner.
        row_cuts: "none" for plans that cut columns alone, "even" for those that may cut whole tables evenly by rows
            over all devices, too, as TorchRec's row-wise sharding does; "any" for all plans.
    """
    tables = _TableTimes(task, constants)
    low = 0.0
    high = tables.whole_ms
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if float(tables.least_ms(middle, row_cuts).sum()) <= middle * task.num_devices:
            high = middle
        else:
            low = middle
    return low


class _TableTimes:
    """Times of all shards that the T tables of a task can be cut into; U is the largest width in units of columns."""

    def __init__(self, task: ShardingTask, constants: PlannerConstants) -> None:
        units = np.array([table.embedding_dim // COLUMN_UNIT for table in task.tables])
        shape = len(units), int(units.max()) + 1
        self._units = units
        self._widths = COLUMN_UNIT * np.arange(shape[1])
        #: Of shards with all rows, and the two parts of those with fewer: for outputs, and for all ids; shape (T, U+1).
        self._column_ms = np.full(shape, np.inf)
        self._output_ms = np.full(shape, np.inf)
        self._ids_ms = np.full(shape, np.inf)
        for t, table in enumerate(task.tables):
            for u in range(1, units[t] + 1):
                width = int(self._widths[u])
                self._column_ms[t, u] = sum(shard_ms(constants, task, table.name, table.num_embeddings, width))
                self._output_ms[t, u], self._ids_ms[t, u] = split_shard_ms(constants, task, table, width)
        rows = np.array([table.num_embeddings for table in task.tables], dtype=np.float64)
        self._even_pieces = np.minimum(rows, task.num_devices)
        self._most_rows = (rows - 1) / rows
        #: No plan needs to be dearer: everything whole on one device.
        self.whole_ms = float(self._column_ms[np.arange(len(units)), units].sum())

    def least_ms(self, limit: float, row_cuts: RowCuts) -> Floats:
        """Return what each table adds at least if no shard takes more than a limit, shape (T,); infinite for never."""
        if row_cuts == "any":
            return self._any_ms(limit)
        least = self._columns_ms(limit)
        if row_cuts == "even":
            whole = np.arange(len(self._units)), self._units
            outputs = self._output_ms[whole]
            ids = self._ids_ms[whole]
            fits = outputs + ids / self._even_pieces <= limit
            least = np.where(fits, np.minimum(least, outputs * self._even_pieces + ids), least)
        return least

    def _columns_ms(self, limit: float) -> Floats:
        allowed = np.where(self._column_ms <= limit, self._column_ms, np.inf)
        least = np.full_like(allowed, np.inf)
        least[:, 0] = 0.0
        for u in range(1, len(self._widths)):
            least[:, u] = (allowed[:, 1 : u + 1] + least[:, :u][:, ::-1]).min(axis=1)
        return np.asarray(least[np.arange(len(self._units)), self._units], dtype=np.float64)

    def _any_ms(self, limit: float) -> Floats:
        whole = np.where(self._column_ms <= limit, self._column_ms, np.inf)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.minimum((limit - self._output_ms) / self._ids_ms, self._most_rows[:, None])
            parts = np.where(share > 0, self._output_ms / share + self._ids_ms, np.inf)
            per_column = np.minimum(whole, np.where(np.isnan(parts), np.inf, parts))[:, 1:] / self._widths[1:]
        return np.asarray(per_column.min(axis=1) * COLUMN_UNIT * self._units, dtype=np.float64)
