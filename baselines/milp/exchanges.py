"""Exchanges of a step as lines: what they take at least, and exactly by a cost whose link model is that of lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuroshard.plus.nodes import NodePrices, first_and_last, node_prices
from shardgym.arrays import Floats
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import (
    COLUMNS,
    LOADS,
    REPLICA_BYTES,
    ROW_COLUMNS,
    LinkPrices,
    link_prices,
    transfer_ms,
)
from shardgym.costs.shard_keys import ShardKey, shard_loads
from shardgym.costs.ties import BITS, rounded
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask


class Line(NamedTuple):
    """A time that is 0 for nothing, and else latency plus so much per unit."""

    latency_ms: float
    unit_ms: float


class Exchanges(NamedTuple):
    """Exchanges of a step as lines, of which a step takes sums and maxima; see `first_and_last`."""

    links: LinkPrices  #: of the all-to-all
    rows: Line  #: reduce-scatter of all devices, by columns
    replicas: Line  #: all-reduce of gradients, by bytes
    nodes: NodePrices  #: of tables that single domains hold by rows
    compute: Floats  #: weights of forward and backward compute in what a device does first and at last, shape (2, 2)
    transfers: Floats  #: of the exchange of outputs in the same, shape (2,)


def exchanges_of(task: ShardingTask, costs: AdditiveCosts) -> Exchanges:
    """Return the exchanges of a task, found by asking the cost what loads of one kind take.

    Times that grow ever more slowly are at least the lines through what the least and the largest load take.
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
        one, all_ms = price(1.0), price(most)
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
    return Exchanges(links, rows, replicas, node_prices(task, costs), *first_and_last(costs, task))


def _exact(value: float) -> float:
    return float(rounded(np.asarray(value), BITS))
