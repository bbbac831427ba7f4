"""What a table may become, and what each of these choices adds to a step, by the cost's own vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from baselines.row_wise import even_rows
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import (
    COLUMNS,
    DOMAIN_ROW_COLUMNS,
    LOADS,
    REPLICA_BYTES,
    ROW_COLUMNS,
    LinkPrices,
    link_prices,
    part_of,
    reduce_scatter_ms,
    transfer_ms,
)
from shardgym.costs.shard_keys import ShardKey
from shardgym.plan import COLUMN_UNIT, Shard
from shardgym.table import EmbeddingTable
from shardgym.task import ELEMENT_BYTES, ShardingTask

#: Numbers of equal pieces by columns.
_CUTS = (1, 2, 4, 8)

#: What decides the places of a table: of each piece, of all of them together (a domain), or nothing.
Spread = Literal["pieces", "domain", "all"]


class Choice(NamedTuple):
    """One way to shard one table.

    Attributes:
        table: its position in the task.
        spread: "pieces" of whole rows go anywhere, at most one to a device; pieces of rows fill one "domain", or "all"
            devices; replicas are on "all" devices.
        pieces: equal pieces by columns; 1 elsewhere.
        ms: forward and backward compute of what a device gets, without fixed costs, shape (N, 2). N is 1 for pieces,
            the devices of a domain, or all devices.
        bytes: what it takes there, shape (N,).
        columns: of pooled output of a piece; of the whole table where it is cut by rows; 0 for replicas.
        replica_bytes: of gradients to exchange.
    """

    table: int
    spread: Spread
    pieces: int
    ms: Floats
    bytes: Ints
    columns: float
    replica_bytes: float = 0.0

    @property
    def is_replicated(self) -> bool:
        """Whether all devices hold the table."""
        return self.replica_bytes > 0


def choices_of(task: ShardingTask, costs: AdditiveCosts, *, replicas: bool) -> list[Choice]:
    """Return all ways to shard the tables of a task, table after table.

    Pieces that no device has memory for are left out.

    Args:
        task: the task.
        costs: of its shards.
        replicas: whether tables may be replicated.
    """
    forms = [form for n, table in enumerate(task.tables) for form in _forms(task, n, table, replicas=replicas)]
    keys = [key for _, _, _, of_form in forms for key in of_form]
    numbers = costs.encode_keys(task, keys)
    vectors = costs.vectors(numbers)
    counts = np.rint(vectors[:, -1]).astype(np.int64)
    # Alone on a device, a shard pays the fixed costs of one operator.
    alone_ms = costs.exact_compute_ms(vectors) - costs.operator_ms(vectors[:, :-LOADS], counts)
    most = max(task.topology.memory_bytes)
    choices = []
    start = 0
    for n, spread, pieces, of_form in forms:
        end = start + len(of_form)
        loads = vectors[start:end, -LOADS:]
        sizes = np.array([task.block_bytes(task.tables[n], key.rows, key.columns) for key in of_form], dtype=np.int64)
        if sizes.max() <= most:
            kind = {"pieces": COLUMNS, "domain": DOMAIN_ROW_COLUMNS, "all": ROW_COLUMNS}[spread]
            columns = float(loads[:, kind].sum())
            copies = float(loads[0, REPLICA_BYTES])
            ms = np.maximum(alone_ms[start:end], 0.0)
            if copies:
                ms = np.repeat(ms, task.num_devices, axis=0)
                sizes = np.repeat(sizes, task.num_devices)
            choices.append(Choice(n, spread, pieces, ms, sizes, columns, copies))
        start = end
    return choices


def _forms(
    task: ShardingTask, number: int, table: EmbeddingTable, *, replicas: bool
) -> list[tuple[int, Spread, int, list[ShardKey]]]:
    """Return number, spread, pieces, and keys of the pieces that differ, of each way to shard a table."""
    rows, width, devices = table.num_embeddings, table.embedding_dim, task.num_devices
    forms: list[tuple[int, Spread, int, list[ShardKey]]] = [
        (number, "pieces", cut, [ShardKey(table.name, rows, width // cut)])
        for cut in _CUTS
        if cut <= devices and width % (cut * COLUMN_UNIT) == 0
    ]
    # TorchRec divides mean-pooled tables that are cut by rows by the wrong bag sizes.
    if table.pooling == "sum" and devices > 1:
        spreads: list[tuple[Spread, int]] = [("all", devices)]
        if has_domains(task):
            spreads.append(("domain", task.topology.fast_domain_size))
        for spread, count in spreads:
            shards = even_rows(table, count)
            if len(shards) == count:
                keys = [ShardKey(table.name, s.num_rows, width, in_domain=spread == "domain") for s in shards]
                forms.append((number, spread, 1, keys))
    if replicas and devices > 1:
        forms.append((number, "all", 1, [ShardKey(table.name, rows, width, served=1)]))
    return forms


def has_domains(task: ShardingTask) -> bool:
    """Say whether there are several fast domains of equal size, which tables may be cut by rows in."""
    domain = task.topology.fast_domain_size
    return 1 < domain < task.num_devices and task.num_devices % domain == 0


def shards_of(task: ShardingTask, choice: Choice, places: list[int]) -> list[Shard]:
    """Return the shards of a table.

    Args:
        task: the task.
        choice: how it is sharded.
        places: device of each piece, or the domain; not used where all devices have a part of it.
    """
    table = task.tables[choice.table]
    if choice.is_replicated:
        return [Shard.whole(table, *range(task.num_devices))]
    if choice.spread == "pieces":
        rows, width = (0, table.num_embeddings), table.embedding_dim // choice.pieces
        return [
            Shard(table.name, rows, (n * width, (n + 1) * width), (device,)) for n, device in enumerate(sorted(places))
        ]
    first = places[0] * task.topology.fast_domain_size if choice.spread == "domain" else 0
    return [
        Shard(table.name, shard.rows, shard.columns, (first + device,))
        for device, shard in enumerate(even_rows(table, len(choice.ms)))
    ]


class Line(NamedTuple):
    """A time that is 0 for nothing, and else latency plus so much per unit."""

    latency_ms: float
    unit_ms: float


class Exchanges(NamedTuple):
    """Exchanges of a step as lines, of which a step takes sums and maxima.

    Attributes:
        links: of the all-to-all.
        rows: reduce-scatter of all devices, by columns.
        replicas: all-reduce of gradients, by bytes.
        inside: reduce-scatter inside of domains, by the columns of the domain that has most.
        sent: between domains after it, by columns of the own domain; the latency is that of both stages' start.
        received: likewise by the columns of all other domains.
        hidden: whether the ids of the next step travel while this one computes.
    """

    links: LinkPrices
    rows: Line
    replicas: Line
    inside: Line
    sent: float
    received: float
    hidden: bool

    @property
    def first(self) -> tuple[float, float, float]:
        """Weights of forward and backward compute and of the transfer in what the slowest device does at first."""
        return (1.0, 1.0, 1.0) if self.hidden else (1.0, 0.0, 0.0)

    @property
    def rest(self) -> tuple[float, float, float]:
        """The same in what the slowest device does after that."""
        return (0.0, 0.0, 1.0) if self.hidden else (0.0, 1.0, 2.0)


def exchanges_of(task: ShardingTask, costs: AdditiveCosts) -> Exchanges:
    """Return the exchanges of a task, found by asking the cost what loads of one kind take.

    For costs whose exchanges are no lines, these are lines through what typical loads take.
    """
    number = costs.add_task(task)
    devices, topology = task.num_devices, task.topology
    element_bytes = ELEMENT_BYTES[task.precision]

    def transfer(kind: int, per_device: Floats) -> Floats:
        loads = np.zeros((1, devices, LOADS))
        loads[0, :, kind] = per_device
        times = costs.exchange_times(number, np.zeros((1, devices, 2)), loads)
        return np.asarray(times.backward_ms[0], dtype=np.float64)

    def line(price: Callable[[float], float], unit: float) -> Line:
        one, two = price(unit), price(2 * unit)
        return Line(max(2 * one - two, 0.0), max(two - one, 0.0) / unit)

    everywhere = np.ones(devices)
    columns = 64.0
    links = link_prices(topology, task.batch_size, element_bytes)
    alike = everywhere * columns
    modelled = float(transfer_ms(topology, alike, task.batch_size, element_bytes).max())
    if not costs.linear and modelled > 0:
        factor = float(transfer(COLUMNS, alike).max()) / modelled
        links = links._replace(
            latency_ms=links.latency_ms * factor, sent_ms=links.sent_ms * factor, received_ms=links.received_ms * factor
        )
    rows = line(lambda width: float(transfer(ROW_COLUMNS, everywhere * width / devices).max()), columns)

    def replicas_ms(num_bytes: float) -> float:
        loads = np.zeros((1, devices, LOADS))
        loads[..., REPLICA_BYTES] = num_bytes
        return float(costs.replicas_ms(task, loads, 1).max())

    replicas = line(replicas_ms, 1e8)
    inside, sent, received = Line(0.0, 0.0), 0.0, 0.0
    if has_domains(task):
        domain = topology.fast_domain_size
        column_bytes = task.batch_size * element_bytes
        ring = part_of(topology, domain)
        inside = line(lambda width: float(reduce_scatter_ms(ring, np.array(width * column_bytes))), columns)
        in_first = (np.arange(devices) < domain) / domain

        def both(place: int) -> Line:
            return line(lambda width: float(transfer(DOMAIN_ROW_COLUMNS, in_first * width)[place]), columns)

        owner, other = both(0), both(devices - 1)
        sent = max(owner.unit_ms - inside.unit_ms, 0.0)
        received = max(other.unit_ms - inside.unit_ms, 0.0)
        inside = inside._replace(latency_ms=other.latency_ms)
    return Exchanges(links, rows, replicas, inside, sent, received, costs.ids_hidden(task))
