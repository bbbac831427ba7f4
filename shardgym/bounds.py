"""lower_bound: what no feasible plan can cost less than, proven.

For `roofline`. A device takes its compute and its transfer of gradients, waits for the last device to get there, and
takes its transfer of pooled values. So a plan costs

    total = max over devices of (compute + transfer) + max over devices of transfer,

and each of the two maxima is bounded from below by itself. Three facts hold however tables are cut:

1. Compute of a device that holds something is a fixed time plus the added times of its shards.
2. A transfer takes at least a latency plus a time per column that the device holds. Every column of every table is on
   some device; one that is cut by rows is on several.
3. A shard takes at least its share of the table's bytes, and no device holds more bytes than it has room for.

By the first two, what a device takes up to the exchange is a start-up time plus the *loads* of its shards: their
compute, and the transfer of their columns. Now suppose that the busiest device takes no more than Y. Then no shard
has a load of more than Y less the start-up time. Every cell of a table is on some shard. The load of a shard, spread
evenly over its cells, is at least the lowest load per cell of all shards that the table can be cut into and that are
below this limit. So every table adds its cells times this lowest load, or more, wherever its pieces are. Wide shards
are mostly the cheapest, as ids are read once for all columns. Some are not, as rows of narrow shards stay in the
cache. From this:

- *Exchange*: the longest transfer is at least the mean one, and the mean number of columns is known.
- *Work*: the busiest device takes at least the start-up time and its even share of all loads. If that is more than Y,
  no plan stays within Y. The bound is the smallest Y for which it is not. It counts what cutting costs where a table
  is too much for one device.
- *Memory*: likewise, with an uneven share. The devices with the least memory can together hold no more load than fits
  into it, the tables with most load per byte first (a fractional knapsack); the others must carry the rest.
- *Pieces*, for plans that cut no rows: a table of u units of four columns is spread over at most D devices, so one of
  them holds u / D units or more, rounded up. Call that device the table's home. Of k D + 1 tables, k + 1 have the
  same home, which takes at least the k + 1 smallest of these loads.

For `torchrec_rating`. A plan is rated by the largest sum of its shards' times over devices: nothing waits, and shards
share nothing. Suppose that no device takes more than Y. Then no shard does. So every table adds at least what the
cheapest of its cuts into shards within Y adds, and all tables together add at most Y on each device. The bound is the
smallest Y for which both can be true: the even share of all tables, where none of them is too much for a device, and
more where one has to be cut, since the pieces of a table take longer than the table. Which cuts there are:

- *columns*: into any widths divisible by four. The cheapest cut is found by dynamic programming over the width.
- *rows evenly*: besides, a table as a whole may be cut by rows, one equal piece on every device. A piece takes a time
  for its outputs, which all pieces have, and its share of the time for ids.
- *any rows*: rectangles of any kind. Each cell of a table is in one of them; the bound spreads the time of a shard
  evenly over its cells, and takes the cheapest shard within Y. Pieces with more rows are cheaper per cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from shardgym.arguments import check_instance
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.links import link_prices
from shardgym.costs.roofline import DeviceConstants, RooflineCost, compute_ms, expected_distinct_rows
from shardgym.costs.torchrec_rating import PlannerConstants, TorchRecRatingCost, shard_ms, split_shard_ms
from shardgym.errors import InputError
from shardgym.plan import COLUMN_UNIT, check_possible
from shardgym.task import ELEMENT_BYTES, OPTIMIZER_STATE, ShardingTask

Argument = Literal["work", "memory", "pieces"]
#: Ways to cut tables by rows, besides columns.
RowCuts = Literal["none", "even", "any"]

#: Costs are sums of many rounded numbers; a bound that is this much lower is safe from that.
_ROUNDING = 1e-9
#: The last halving leaves less than the rounding of the sums.
_HALVINGS = 60


@dataclass(frozen=True)
class LowerBound:
    """A lower bound on `PlanCost.total_ms` of every feasible plan of a task; all times in ms.

    Attributes:
        total_ms: the bound: `exchange_ms` plus the largest of the other three, less what rounding may account for.
        argument: which of the three that is.
        exchange_ms: the longest transfer of an exchange takes at least this.
        work_ms: compute and transfer of the busiest device take at least this, as all loads are on some device.
        memory_ms: likewise, as small devices cannot hold their share; 0 where all have the same memory.
        pieces_ms: likewise, by tables that share a home; 0 if rows may be cut.
        row_cuts: whether plans that cut rows are covered, too.
    """

    total_ms: float
    argument: Argument
    exchange_ms: float
    work_ms: float
    memory_ms: float
    pieces_ms: float
    row_cuts: bool


def lower_bound(task: ShardingTask, cost: CostModel, *, row_cuts: bool = True) -> LowerBound:
    """Return what no feasible plan of a task costs less than.

    Args:
        task: the task.
        cost: `roofline` or `torchrec_rating`. Others have no bound that is proven: what a learned model says of
            contents that were not tried follows from nothing, as its networks are neither additive nor monotone, and a
            measured time may come out lower the next time.
        row_cuts: whether the bound is to hold for plans that cut tables by rows, too. Without them it is higher.

    Raises:
        InputError: there is no proven bound for this cost; or these are no task and cost.
        NoFeasiblePlanError: a width cannot be fused, or the tables are larger than all devices together.
        UnknownNameError: the topology names a device that roofline does not know.
    """
    check_instance("task", task, ShardingTask)
    check_instance("cost", cost, CostModel)
    check_instance("row_cuts", row_cuts, bool)
    if not isinstance(cost, RooflineCost | TorchRecRatingCost):
        raise InputError(
            f"no lower bound is known for cost '{cost.name}': {_why_not(cost)}; "
            "'roofline' and 'torchrec_rating' have one"
        )
    check_possible(task)
    if isinstance(cost, TorchRecRatingCost):
        rated_ms = rating_bound(task, cost.constants, "any" if row_cuts else "none")
        return LowerBound(rated_ms * (1 - _ROUNDING), "work", 0.0, rated_ms, 0.0, 0.0, row_cuts)
    device = cost.device_of(task)
    num_devices = task.num_devices
    num_columns = sum(table.embedding_dim for table in task.tables)
    links = link_prices(task.topology, task.batch_size, ELEMENT_BYTES[task.precision])
    exchange_ms = work_ms = memory_ms = pieces_ms = 0.0
    # Links inside of domains and those between them give bounds of their own.
    for latency_ms, sent_ms in zip(links.latency_ms, links.sent_ms, strict=True):
        column_ms = float(sent_ms.min())
        start_ms = device.forward_ms + device.backward_ms + float(latency_ms.min())
        loads = _ShardLoads(device, task, column_ms, row_cuts=row_cuts)
        exchange_ms = max(exchange_ms, float(latency_ms.mean()) + column_ms * num_columns / num_devices)
        work_ms = max(work_ms, start_ms + loads.least_limit(lambda of_tables: float(of_tables.sum()) / num_devices))
        if len(set(task.topology.memory_bytes)) > 1:
            memory_ms = max(memory_ms, start_ms + loads.least_limit(lambda of_tables: _uneven_load(task, of_tables)))
        if not row_cuts:
            pieces_ms = max(pieces_ms, start_ms + _shared_home(loads.at_home(num_devices), num_devices))
    busiest: dict[Argument, float] = {"work": work_ms, "memory": memory_ms, "pieces": pieces_ms}
    argument = max(busiest, key=lambda name: busiest[name])
    total_ms = (exchange_ms + busiest[argument]) * (1 - _ROUNDING)
    return LowerBound(total_ms, argument, exchange_ms, work_ms, memory_ms, pieces_ms, row_cuts)


def _why_not(cost: CostModel) -> str:
    if cost.learned:
        return "it is learned, and networks are neither additive nor monotone, so plans that were not tried say nothing"
    if not cost.deterministic:
        return "it is measured, and may come out lower the next time"
    return "what its times are made of is not known"


class _ShardLoads:
    """Loads of all N shards of 4, 8, ... columns of each table, by the share of the rows that they hold.

    The load of a shard is piecewise linear in the share, and rises with it. It has two kinks: where its rows just fit
    into the cache, and where it has one id per sample. So does the load per share, as a function of 1 / share; its
    minimum is at a kink, or at the largest share within a limit.

    Args:
        device: constants of the devices.
        task: the task.
        column_ms: transfer per column that a device holds.
        row_cuts: whether shares below 1 are looked at.
    """

    def __init__(self, device: DeviceConstants, task: ShardingTask, column_ms: float, *, row_cuts: bool) -> None:
        self._row_cuts = row_cuts
        self._columns: Floats = np.array([table.embedding_dim for table in task.tables], dtype=np.float64)
        self._units: Ints = np.array([table.embedding_dim // COLUMN_UNIT for table in task.tables], dtype=np.int64)
        self._first: Ints = np.cumsum(self._units) - self._units
        table: Ints = np.repeat(np.arange(task.num_tables), self._units)
        self._widths: Floats = (COLUMN_UNIT * (np.arange(len(table)) - self._first[table] + 1)).astype(np.float64)
        ids = task.batch_size * np.array([t.pooling_factor for t in task.tables])[table]
        distinct = np.array([expected_distinct_rows(t, task.batch_size) for t in task.tables])[table]
        width_bytes = self._widths * ELEMENT_BYTES[task.precision]
        per_weight, per_row = OPTIMIZER_STATE[task.optimizer]
        kinks = [
            np.minimum(device.cache_bytes / np.maximum(distinct * width_bytes, 1.0), 1.0),
            np.minimum(task.batch_size / np.maximum(ids, 1.0), 1.0),
        ]
        # Ascending, shape (4, N).
        self._shares: Floats = np.stack([np.zeros(len(table)), *np.sort(kinks, axis=0), np.ones(len(table))])
        forward, backward = compute_ms(
            device, batch_size=task.batch_size, ids=ids * self._shares, distinct=distinct * self._shares,
            width_bytes=width_bytes, state_bytes=4.0 * (per_weight * self._widths + per_row),
        )  # fmt: skip
        self._loads: Floats = np.asarray(forward + backward + column_ms * self._widths, dtype=np.float64)

    def of_tables(self, limit: float) -> Floats:
        """Return what each table adds at least if no shard has a load above a limit; infinite if none is within it."""
        whole = self._loads[-1]
        per_column = np.where(whole <= limit, whole / self._widths, np.inf)
        if self._row_cuts:
            rises = np.diff(self._loads, axis=0)
            parts = np.clip((limit - self._loads[:-1]) / np.maximum(rises, 1e-300), 0.0, 1.0)
            largest = (np.diff(self._shares, axis=0) * parts).sum(axis=0)
            shares = np.vstack([self._shares[1:], largest])
            loads = np.vstack([self._loads[1:], np.minimum(whole, limit)])
            within = (loads <= limit) & (shares > 0)
            per_column = np.where(within, loads / np.where(within, shares * self._widths, 1.0), np.inf).min(axis=0)
        return np.asarray(self._columns * np.minimum.reduceat(per_column, self._first), dtype=np.float64)

    def least_limit(self, needed: Callable[[Floats], float]) -> float:
        """Return the smallest limit that is at least what some device needs, given the loads of tables under it."""
        low = 0.0
        high = float(self._loads.max()) + needed(self.of_tables(np.inf))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            loads = self.of_tables(middle)
            if np.isfinite(loads).all() and needed(loads) <= middle:
                high = middle
            else:
                low = middle
        return low

    def at_home(self, num_devices: int) -> Floats:
        """Return the least load of the device that holds most columns of a table, rows uncut, shape (T,)."""
        loads = np.zeros(len(self._units))
        for table, (first, units) in enumerate(zip(self._first.tolist(), self._units.tolist(), strict=True)):
            shards = slice(first, first + units)
            # Of so many columns on one device, every piece is at most as wide.
            least = self._widths[shards] * np.minimum.accumulate(self._loads[-1, shards] / self._widths[shards])
            fewest = -(-units // num_devices)
            loads[table] = least[fewest - 1 :].min()
        return loads


def _uneven_load(task: ShardingTask, loads: Floats) -> float:
    """Return the largest mean load of the devices with most memory, whichever number of them is looked at.

    Args:
        task: its devices differ in memory.
        loads: of every table, shape (T,).
    """
    sizes = np.array([float(task.table_bytes(table)) for table in task.tables])
    by_density = np.argsort(-loads / sizes, kind="stable")
    bytes_filled = np.concatenate([[0.0], np.cumsum(sizes[by_density])])
    load_held = np.concatenate([[0.0], np.cumsum(loads[by_density])])
    memory = np.sort(np.array(task.topology.memory_bytes, dtype=np.float64))
    room_of_smallest = np.concatenate([[0.0], np.cumsum(memory)[:-1]])
    rest = load_held[-1] - np.interp(room_of_smallest, bytes_filled, load_held)
    return float((rest / np.arange(len(memory), 0, -1)).max())


def _shared_home(loads: Floats, num_devices: int) -> float:
    """Return what the fullest home takes at least, from the loads of tables at their homes, shape (T,)."""
    added = np.concatenate([[0.0], np.cumsum(np.sort(loads)[::-1])])
    more = np.arange((len(loads) - 1) // num_devices + 1)
    ends = more * num_devices + 1
    return float((added[ends] - added[ends - more - 1]).max())


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
