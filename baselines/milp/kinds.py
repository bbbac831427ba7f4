"""The kinds that a table may have, what each adds to a step, and linear models of a step's exchanges."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from neuroshard.plus.nodes import NodePrices, first_and_last, node_loads, node_prices
from neuroshard.plus.sharing import even_rows, has_domains, piece_bytes, row_keys, takes_rows
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import (
    COLUMNS,
    DOMAIN_ROW_COLUMNS,
    LOADS,
    REPLICA_BYTES,
    ROW_COLUMNS,
    SHARDS,
    LinkPrices,
    link_prices,
    transfer_ms,
)
from shardgym.costs.shard_keys import ShardKey, shard_loads
from shardgym.costs.ties import BITS, rounded
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask


class Line(NamedTuple):
    """A linear time: latency plus time per unit, and 0 for no units."""

    latency_ms: float
    unit_ms: float


class Exchanges(NamedTuple):
    """Linear models of a step's exchanges; for their sums and maxima see `first_and_last`."""

    links: LinkPrices  #: of the all-to-all
    rows: Line  #: reduce-scatter of all devices, by columns
    replicas: Line  #: all-reduce of gradients, by bytes
    nodes: NodePrices  #: of tables that single domains hold by rows
    compute: Floats  #: weights of forward and backward compute in what a device does first and at last, shape (2, 2)


def exchanges_of(task: ShardingTask, costs: AdditiveCosts) -> Exchanges:
    """Return the exchanges of a task, fitted to the cost's times of loads of one kind.

    Concave times lie above the line through the smallest and the largest load.
    """
    number = costs.add_task(task)
    devices = task.num_devices
    topology, element_bytes = costs.all_to_all_links(task)
    whole = [shard_loads(task, ShardKey(t.name, t.num_embeddings, t.embedding_dim)) for t in task.tables]
    columns = sum(loads[COLUMNS] for loads in whole)

    def transfer(kind: int, per_device: Floats) -> Floats:
        loads = np.zeros((1, devices, LOADS))
        loads[0, :, kind] = per_device
        times = costs.exchange_times(number, np.zeros((1, devices, 2)), loads)
        return np.asarray(times.backward_ms[0], dtype=np.float64)

    def line(price: Callable[[float], float], most: float) -> Line:
        one = price(1.0)
        all_ms = price(most)
        unit_ms = max(all_ms - one, 0.0) / max(most - 1, 1.0)
        return Line(_exact(max(one - unit_ms, 0.0)), _exact(unit_ms))

    def replicas_ms(num_bytes: float) -> float:
        loads = np.zeros((1, devices, LOADS))
        loads[..., REPLICA_BYTES] = num_bytes
        return float(costs.replicas_ms(task, loads, 1).max())

    everywhere = np.ones(devices)
    links = link_prices(topology, task.batch_size, element_bytes)
    factor = 1.0
    if not costs.bounded:
        alike = everywhere * columns / devices
        modelled = float(transfer_ms(topology, alike, task.batch_size, element_bytes).max())
        factor = float(transfer(COLUMNS, alike).max()) / modelled if modelled > 0 else 1.0
    links = links._replace(
        latency_ms=rounded(links.latency_ms * factor, BITS),
        sent_ms=rounded(links.sent_ms * factor, BITS),
        received_ms=rounded(links.received_ms * factor, BITS),
    )
    table_bytes = sum(t.num_embeddings * t.embedding_dim * ELEMENT_BYTES[task.precision_of(t)] for t in task.tables)
    rows = line(lambda width: float(transfer(ROW_COLUMNS, everywhere * width / devices).max()), columns)
    replicas = line(replicas_ms, float(table_bytes))
    return Exchanges(links, rows, replicas, node_prices(task, costs), first_and_last(costs, task))


def _exact(value: float) -> float:
    return float(rounded(np.asarray(value), BITS))


class Columns(NamedTuple):
    """A table in column pieces of any width, at most one per device. A unit is `COLUMN_UNIT` columns.

    The time of a piece is the maximum of several lines, because narrow pieces read whole sectors and wide pieces leave
    fewer rows in the cache. The lines bound true times from below.
    """

    table: int  #: its position in the task
    units: int  #: of the whole table
    unit_columns: float  #: that go to others, of a unit
    #: In what a device does first, and at last: ms per piece and per unit, each of shape (L, 2).
    lines: tuple[Floats, Floats]
    least_ms: Floats  #: what a piece of at least so many units takes at least, first and at last, shape (2, units + 1)
    most_ms: Floats  #: what the pieces of a table take together at most by the lines, shape (2,)
    piece_bytes: int  #: of a piece, whatever its width
    unit_bytes: int  #: besides, of a unit


class Spread(NamedTuple):
    """A table that all devices, or all devices of one fast domain, hold."""

    table: int  #: its position in the task
    devices: Literal["all", "domain"]  #: "all" have rows or a replica; or those of a "domain" have rows
    ms: Floats  #: what a device does for it first and at last, without fixed costs, shape (N, 2), N for these devices
    bytes: Ints  #: what it takes there, shape (N,)
    columns: float = 0.0  #: of the table where it is cut by rows; 0 for replicas
    replica_bytes: float = 0.0  #: of gradients to exchange


class Kinds(NamedTuple):
    """All kinds that the tables of a task may have."""

    columns: list[Columns | None]  #: of each table; None where not even its narrowest piece fits on a device
    spreads: list[Spread]  #: table after table
    fixed_ms: Floats  #: of each operator on a device that has any work for it, first and at last, shape (2,)


def kinds_of(task: ShardingTask, costs: AdditiveCosts, exchanges: Exchanges, *, replicas: bool) -> Kinds:
    """Return all kinds that the tables of a task may have within devices' memory; `replicas` allows replicas."""
    pieces = [
        [ShardKey(t.name, t.num_embeddings, width) for width in range(COLUMN_UNIT, t.embedding_dim + 1, COLUMN_UNIT)]
        for t in task.tables
    ]
    forms = [form for n, table in enumerate(task.tables) for form in _spread_forms(task, n, table, replicas=replicas)]
    keys = [key for of_table in pieces for key in of_table] + [key for *_, of_form in forms for key in of_form]
    vectors = costs.vectors(costs.encode_keys(task, keys))
    whole = np.cumsum([len(of_table) for of_table in pieces]) - 1
    typical = np.array([sum(column) for column in vectors[whole].T.tolist()])  # in this order on all processors
    ms = rounded(np.maximum(costs.least_ms(vectors, typical), 0.0) @ exchanges.compute.T, BITS)
    loads = vectors[:, -LOADS:]
    most = max(task.capacity_bytes)
    columns: list[Columns | None] = []
    end = 0
    for n, of_table in enumerate(pieces):
        start, end = end, end + len(of_table)
        found = _columns_of(task, n, ms[start:end], float(loads[start, COLUMNS]))
        columns.append(found if found.piece_bytes + found.unit_bytes <= most else None)
    spreads = []
    for n, devices, of_form in forms:
        start, end = end, end + len(of_form)
        sizes = np.array([piece_bytes(task, key)[0] for key in of_form], dtype=np.int64)
        if sizes.max() > most:
            continue
        of_spread = ms[start:end]
        if of_form[0].served == 1:
            of_spread, sizes = np.repeat(of_spread, task.num_devices, axis=0), np.repeat(sizes, task.num_devices)
        width = float(np.rint(loads[start:end, [ROW_COLUMNS, DOMAIN_ROW_COLUMNS]].sum()))
        spreads.append(Spread(n, devices, of_spread, sizes, width, float(loads[start, REPLICA_BYTES])))
    counts = vectors[:1, -LOADS:][:, SHARDS]
    fixed_ms = rounded(exchanges.compute @ costs.operator_ms(vectors[:1, :-LOADS], counts)[0], BITS)
    return Kinds(columns, spreads, fixed_ms)


def _columns_of(task: ShardingTask, number: int, ms: Floats, unit_columns: float) -> Columns:
    """Return a table in pieces; `ms` are times of 1, 2, ... units, first and at last, shape (units, 2)."""
    table = task.tables[number]
    units = len(ms)
    lines = _lines_below(ms[:, 0]), _lines_below(ms[:, 1])
    least_ms = np.minimum.accumulate(ms[::-1])[::-1].T
    # Lines bend upwards, so one wide piece and narrow ones take most together, or narrow ones alone.
    count = np.arange(1, min(units, task.num_devices) + 1)
    narrow_ms, wide_ms = (
        np.array([(of_goal @ [np.ones(len(width)), width]).max(axis=0) for of_goal in lines])
        for width in (np.ones(1), units - count + 1.0)
    )
    most_ms = ((count - 1) * narrow_ms + np.maximum(narrow_ms, wide_ms)).max(axis=1)
    one, two = (
        task.block_bytes(table, table.num_embeddings, COLUMN_UNIT * n) for n in (1, 2)
    )  # a line: state of whole rows is in both
    least_ms = np.concatenate([least_ms[:, :1], least_ms], axis=1)
    return Columns(number, units, unit_columns, lines, least_ms, most_ms, 2 * one - two, two - one)


def _lines_below(ms: Floats) -> Floats:
    """Return the lines of the lower convex hull of times by units, per piece and per unit, shape (L, 2)."""
    corners: list[int] = []
    for last in range(len(ms)):
        # Corners on or above the line from the one before to the new one are none.
        while len(corners) > 1 and (ms[last] - ms[corners[-2]]) * (corners[-1] - corners[-2]) <= (
            ms[corners[-1]] - ms[corners[-2]]
        ) * (last - corners[-2]) * (1 + 1e-9):
            corners.pop()
        corners.append(last)
    if len(corners) == 1:
        return np.array([[0.0, ms[0]]])
    slopes = [(ms[b] - ms[a]) / (b - a) for a, b in itertools.pairwise(corners)]
    lines = [(ms[a] - slope * (a + 1), slope) for a, slope in zip(corners, slopes, strict=False)]
    return rounded(np.array(lines), BITS)


def _spread_forms(
    task: ShardingTask, number: int, table: EmbeddingTable, *, replicas: bool
) -> list[tuple[int, Literal["all", "domain"], list[ShardKey]]]:
    """Return number, devices, and keys of the shards that differ, of each way to spread a table."""
    width, devices, domain = table.embedding_dim, task.num_devices, task.topology.fast_domain_size
    forms: list[tuple[int, Literal["all", "domain"], list[ShardKey]]] = []
    if table.is_pooled and takes_rows(table, devices):
        forms.append((number, "all", row_keys(table, devices, width, in_domain=False)))
    if has_domains(task) and table.is_pooled and takes_rows(table, domain):
        forms.append((number, "domain", row_keys(table, domain, width, in_domain=True)))
    if replicas and devices > 1:
        forms.append((number, "all", [ShardKey(table.name, table.num_embeddings, width, served=1)]))
    return forms


def spread_loads(spreads: Sequence[Spread], exchanges: Exchanges) -> Floats:
    """Return the loads that tables add to the domains that hold them by rows, see `node_loads`, shape (T, 3)."""
    return np.array([node_loads(spread.ms, spread.columns, exchanges.nodes) for spread in spreads])


def shards_of(task: ShardingTask, spread: Spread, domain: int = 0) -> Sequence[Shard]:
    """Return the shards of a spread table, on all devices or on those of a domain."""
    table = task.tables[spread.table]
    if spread.replica_bytes:
        return [Shard.whole(table, *range(task.num_devices))]
    first = domain * len(spread.ms) if spread.devices == "domain" else 0
    return even_rows(table, len(spread.ms), first)
