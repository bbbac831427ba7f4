"""Hierarchical sharding as in ZionEX: tables to nodes first, then over the devices of their node."""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from baselines.greedy import alone_ms, place_greedily, whole_table_ms
from baselines.lpt import Pieces, halves, merged, place_with_cuts
from neuroshard.plus.sharing import even_rows, takes_rows
from shardgym.costs.base import CostModel
from shardgym.costs.links import part_of
from shardgym.costs.ties import quantized
from shardgym.errors import NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import Shard
from shardgym.tasks.task import ShardingTask, exact_bytes
from shardgym.tasks.topology import MAX_MEMORY_BYTES

#: Largest pieces of columns that are tried, in shares of the average time of a node's devices.
_SHARES = (math.inf, 1.0, 0.5, 0.0)
#: How often the numbers of tables between the best and its neighbours are tried.
_REFINEMENTS = 2


class Hierarchical:
    """Assign every table to one node, then keep it whole or cut it by columns or rows over the node's devices.

    ZionEX shards this way (Mudigere et al., ISCA 2022). A node is a fast domain of the topology, whose links add up the
    partial sums of row shards before they leave it. TorchRec calls these plans `table_row_wise` and
    `table_column_wise`, or `row_wise` and `column_wise` if there is one domain. The search is our own:

    1. LPT splits tables among nodes by their compute alone on a device, in proportion to the node's devices and within
       their memory. If this split leaves some kind of plan without room, a split that balances bytes is tried, too.
    2. LPT places pieces on the devices of each node. Columns are cut into 2, 4, 8, ... pieces, at most one per device;
       pieces of a table that meet on a device become one shard. Rows are cut evenly over all devices of the node,
       except those of mean-pooled tables and of tables with too few rows.
    3. The oracle prices plans with 0, 1, 2, 4, ..., all tables cut by rows, those with the most ids per sample first,
       since devices share these ids. The other tables are cut by columns until no piece takes more than a share of the
       mean time of the node's devices: any, 1, 1/2, or 0, as far as possible. Finally, the oracle prices numbers of
       row-cut tables next to the best. The cheapest plan wins.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return a plan, see `Solver`; `seed` is ignored."""
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        plans = _Plans(task, cost)
        rows = len(plans.row_order)
        sizes = [float(task.table_bytes(table)) for table in task.tables]
        for number, figures in enumerate((plans.whole_ms, sizes)):
            try:
                plans.splits[number] = split_among_nodes(task, figures)
            except NoFeasiblePlanError as error:
                plans.errors.append(error)
                continue
            # All tables whole, by columns, or by rows.
            basic = [_Way(number, 0, None), _Way(number, 0, 0.0), _Way(number, rows, None)]
            plans.price(basic)
            plans.search(number)
            if all(way in plans.cost_ms for way in basic):
                break
        if not plans.cost_ms:
            raise plans.errors[0]
        return plans.made[plans.cheapest()]


class Node(NamedTuple):
    """A fast domain: its devices, which are consecutive, and the positions of its tables in the task."""

    devices: range
    tables: list[int]


def split_among_nodes(task: ShardingTask, figures: Sequence[float]) -> list[Node]:
    """Assign every table to one node by LPT, balancing the sum of figures per device."""
    size = task.topology.fast_domain_size
    every = range(task.num_devices)
    nodes = [Node(every[first : first + size], []) for first in every[::size]]
    speeds = [len(node.devices) for node in nodes]
    room = [min(sum(task.capacity_bytes[d] for d in node.devices), MAX_MEMORY_BYTES) for node in nodes]
    # Each node is one device of a made-up task.
    coarse = task.part(room, topology=task.topology.roomy(len(nodes)))
    try:
        plan = place_greedily(coarse, figures, speeds=speeds)
    except NoFeasiblePlanError as error:
        raise NoFeasiblePlanError(f"with each of {len(nodes)} nodes treated as a device: {error}") from None
    node_of = {shard.table: shard.devices[0] for shard in plan.shards}
    for n, table in enumerate(task.tables):
        nodes[node_of[table.name]].tables.append(n)
    return nodes


class _Way(NamedTuple):
    """The recipe of a plan: its split, how many tables are cut by rows, and the pieces of columns."""

    split: int
    by_rows: int
    share: float | None


#: First device of a node, its tables that are cut by rows, the others, and which cuts by columns these begin with.
_Inside = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]


class _Plans:
    """Plans of a task, each made and priced once, by way; `errors` say why there are no others."""

    def __init__(self, task: ShardingTask, cost: CostModel) -> None:
        self.task = task
        self.cost = cost
        self.whole_ms: list[float] = whole_table_ms(task, cost).tolist()
        # TorchRec cuts unpooled tables by rows over all devices alone.
        domain = task.topology.fast_domain_size
        able = [n for n, table in enumerate(task.tables) if table.is_pooled and takes_rows(table, domain)]
        self.row_order = sorted(able, key=lambda n: task.tables[n].pooling_factor, reverse=True)
        self.splits: dict[int, list[Node]] = {}
        self.made: dict[_Way, ShardingPlan] = {}
        self.cost_ms: dict[_Way, float] = {}
        self.errors: list[NoFeasiblePlanError] = []
        #: Shards inside of nodes, or why there are none.
        self._inside: dict[_Inside, list[Shard] | NoFeasiblePlanError] = {}

    def search(self, split: int) -> None:
        """Price plans with 0, 1, 2, 4, ..., all tables cut by rows, then with numbers next to the best."""
        most = len(self.row_order)
        counts = sorted({0, *(2**n for n in range(most.bit_length())), most})
        self.price(_Way(split, count, share) for count in counts for share in _SHARES)
        for _ in range(_REFINEMENTS):
            tried = sorted({way.by_rows for way in self.cost_ms if way.split == split})
            if not tried:
                return
            best = self.cheapest(split)
            place = tried.index(best.by_rows)
            between = {(best.by_rows + other) // 2 for other in tried[max(place - 1, 0) : place + 2]} - {*tried}
            self.price(_Way(split, count, best.share) for count in sorted(between))

    def price(self, ways: Iterable[_Way]) -> None:
        """Make plans in these ways, and price the feasible ones in one query."""
        made = {}
        for way in ways:
            if way not in self.made:
                try:
                    made[way] = self._make(way)
                except NoFeasiblePlanError as error:
                    self.errors.append(error)
        totals = [float(quantized(answer.total_ms)) for answer in self.cost.evaluate(self.task, list(made.values()))]
        self.made |= made
        self.cost_ms |= zip(made, totals, strict=True)

    def cheapest(self, split: int | None = None) -> _Way:
        """Return the cheapest way, of one split or of all; the first of those that cost the same."""
        return min((way for way in self.cost_ms if split in (None, way.split)), key=lambda way: self.cost_ms[way])

    def _make(self, way: _Way) -> ShardingPlan:
        """Return a plan; raises `NoFeasiblePlanError` when pieces do not fit in their nodes."""
        by_rows = set(self.row_order[: way.by_rows])
        shards: list[Shard] = []
        for devices, tables in self.splits[way.split]:
            cut = [n for n in tables if n in by_rows and takes_rows(self.task.tables[n], len(devices))]
            others = [n for n in tables if n not in cut]
            levels = None if way.share is None else self._levels(others, len(devices), way.share)
            # Ways differ in a few tables, and so in a few nodes.
            key = devices.start, tuple(cut), tuple(others), levels
            if key not in self._inside:
                self._inside[key] = self._make_inside(devices, cut, others, levels)
            inside = self._inside[key]
            if isinstance(inside, NoFeasiblePlanError):
                if len(self.splits[way.split]) == 1:
                    raise inside
                raise NoFeasiblePlanError(f"inside the node that begins with device {devices.start}: {inside}")
            shards += inside
        return ShardingPlan.of(self.task, shards)

    def _make_inside(
        self, devices: range, cut: Sequence[int], others: Sequence[int], levels: tuple[int, ...] | None
    ) -> list[Shard] | NoFeasiblePlanError:
        """Return the shards of a node's tables, or why there are none."""
        pieces = [piece for n in cut for piece in even_rows(self.task.tables[n], len(devices), devices.start)]
        room = _room(self.task, devices, pieces)
        if not others:
            return pieces
        try:
            part = self.task.part(room, [self.task.tables[n] for n in others], part_of(self.task.topology, len(room)))
            placed = merged(part, self._place(part, others, levels))
        except NoFeasiblePlanError as error:
            return error
        return pieces + [shard.on(shard.devices[0] + devices.start) for shard in placed.shards]

    def _levels(self, tables: Sequence[int], size: int, share: float) -> tuple[int, ...]:
        """Return in which cut of `_cuts` each table begins, so that no piece takes more than a share of a node's."""
        limit_ms = share * sum(self.whole_ms[n] for n in tables) / size
        return tuple(_first_within(self._cuts_in(n, size), limit_ms) for n in tables)

    def _cuts_in(self, table: int, size: int) -> list[Pieces]:
        """Return the cuts of a table into at most so many pieces."""
        return [cut for cut in self._cuts[table] if len(cut.shards) <= size]

    def _place(self, part: ShardingTask, tables: Sequence[int], levels: tuple[int, ...] | None) -> ShardingPlan:
        """Return a plan for the task of one node and some tables, without cuts by rows."""
        if levels is None:
            return place_greedily(part, [self.whole_ms[n] for n in tables])
        cuts = {n: self._cuts_in(n, part.num_devices) for n in tables}
        level = dict(zip(tables, levels, strict=True))
        while True:
            taken = [cuts[n][level[n]] for n in tables]
            pieces = Pieces([s for cut in taken for s in cut.shards], [ms for cut in taken for ms in cut.alone_ms], {})
            try:
                return place_greedily(part, pieces.alone_ms, pieces.shards)
            except NoFeasiblePlanError:
                finer = [n for n in tables if level[n] + 1 < len(cuts[n])]
            if not finer:
                return place_with_cuts(part, self.cost, pieces)[1]
            # All cuts are priced already, so that the table with the largest pieces takes its next one.
            level[max(finer, key=lambda n: cuts[n][level[n]].shards[0].bytes(self.task))] += 1

    @functools.cached_property
    def _cuts(self) -> list[list[Pieces]]:
        """Each table in 1, 2, 4, ... pieces of columns; all take what the widest does, so that one query is enough."""
        cuts = [_halvings(Shard.whole(table, 0), self.task.topology.fast_domain_size) for table in self.task.tables]
        widest = [max(cut, key=lambda piece: piece.num_columns) for of_table in cuts for cut in of_table[1:]]
        priced = iter(alone_ms(self.task, self.cost, widest).tolist())
        return [
            [Pieces(cut, [whole_ms if len(cut) == 1 else next(priced)] * len(cut), {}) for cut in of_table]
            for whole_ms, of_table in zip(self.whole_ms, cuts, strict=True)
        ]


def _first_within(cuts: Sequence[Pieces], limit_ms: float) -> int:
    """Return the position of the coarsest cut whose pieces take no longer; of the finest where none does."""
    return next((n for n, cut in enumerate(cuts) if cut.alone_ms[0] <= limit_ms), len(cuts) - 1)


def _halvings(shard: Shard, most: int) -> list[list[Shard]]:
    """Return a shard in 1, 2, 4, ... pieces of columns, up to `most`, as far as its width permits."""
    found = [[shard]]
    while 2 * len(found[-1]) <= most and all(map(halves, found[-1])):
        found.append([half for piece in found[-1] for half in halves(piece)])
    return found


def _room(task: ShardingTask, devices: range, pieces: Iterable[Shard]) -> list[int]:
    """Return the bytes that pieces leave on these devices; raises `NoFeasiblePlanError` where they do not fit."""
    room = [task.capacity_bytes[device] for device in devices]
    for piece in pieces:
        room[piece.devices[0] - devices.start] -= piece.bytes(task)
    for device, left in zip(devices, room, strict=True):
        if left < 0:
            raise NoFeasiblePlanError(f"tables cut by rows need {exact_bytes(-left)} more than device {device} has")
    return room
