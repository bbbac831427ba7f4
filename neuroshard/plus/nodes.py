"""Balances tables that single nodes hold by rows over the nodes.

A step waits for the slowest node's compute and its traffic to others, and for the widest node's columns in the exchange
inside nodes. A node here is a domain of fast links.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from neuroshard.plus.local_search import Allocation, IteratedLocalSearch
from neuroshard.plus.sharing import Place, Shared, has_domains
from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.links import COLUMNS, DOMAIN_ROW_COLUMNS, LOADS
from shardgym.costs.shard_keys import ShardKey, shard_loads
from shardgym.costs.ties import BITS, rounded
from shardgym.tasks.task import ShardingTask

#: The largest of several loads is nearly the 32nd root of their added 32nd powers, in which the second largest counts,
#: too; a second descent has 128th powers, which are nearer. Powers are made by squaring so often.
_FIRST, _LAST = 5, 7
#: Changes of a descent at most, for each table.
_CHANGES_PER_TABLE = 8
#: Shares of a step's time that a change, and packing tables anew, must save at least.
_LEAST_CHANGE = 1e-6
_LEAST_GAIN = 1e-4
#: Sums that differ by less than this share are ties.
_SAME = 1e-9


class NodePrices(NamedTuple):
    """Linear prices of exchanges of tables that single nodes hold by rows; all 0 with one node."""

    latency_ms: float  #: latency of the exchanges
    inside_ms: float  #: time inside nodes, per column of the widest node
    sent_ms: float  #: time between nodes afterwards, per column of the own node
    received_ms: float  #: time between nodes afterwards, per column of all other nodes


def node_prices(task: ShardingTask, costs: AdditiveCosts) -> NodePrices:
    """Return the prices of a task, lines through the cost's times of one column and of all columns.

    Concave times lie above these lines.
    """
    if not has_domains(task):
        return NodePrices(0.0, 0.0, 0.0, 0.0)
    devices = task.num_devices
    topology, element_bytes = costs.all_to_all_links(task)
    received_ms = task.batch_size * element_bytes / devices / topology.inter_bandwidth * 1e3
    whole = [shard_loads(task, ShardKey(t.name, t.num_embeddings, t.embedding_dim)) for t in task.tables]
    widths = np.array([1.0, max(sum(loads[COLUMNS] for loads in whole), 2.0)])
    loads = np.zeros((2, devices, LOADS))
    domain = topology.fast_domain_size
    loads[:, :domain, DOMAIN_ROW_COLUMNS] = widths[:, None] / domain
    times = costs.exchange_times(costs.add_task(task), np.zeros((2, devices, 2)), loads)
    # The last device is in another node than the first one, and receives all columns.
    one_ms, all_ms = (times.backward_ms[:, -1] - received_ms * widths).tolist()
    inside_ms = max(all_ms - one_ms, 0.0) / (widths[1] - 1)
    prices = max(one_ms - inside_ms, 0.0), inside_ms, received_ms * (devices // domain - 1), received_ms
    return NodePrices(*rounded(np.array(prices), BITS).tolist())


def first_and_last(costs: AdditiveCosts, task: ShardingTask) -> Floats:
    """Return the weights of forward and backward compute in a device's first and last work, shape (2, 2).

    A step waits for the slowest device's first work, compute and the exchange of pooled values, then for the longest
    exchange of gradients and the slowest device's remaining compute (see `shardgym.costs.links.exchange_times`). If ids
    are hidden, all compute comes first; otherwise forward compute does.
    """
    return np.array([[1.0, 1.0], [0.0, 0.0]]) if costs.ids_hidden(task) else np.eye(2)


def node_loads(ms: Floats, columns: float, prices: NodePrices) -> Floats:
    """Return the loads that a table adds to its node, in ms, shape (3,); of each, the largest over nodes counts.

    The loads are the first and last work of its devices, and the wait of all devices inside nodes. `ms` is the first
    and last compute of each device of the node for it, shape (n, 2); both are followed by an exchange of outputs.
    """
    return np.array([*(ms.max(axis=0) + prices.sent_ms * columns), 2 * prices.inside_ms * columns])


def packed(loads: Floats, base: Floats, sizes: Ints, room: Ints) -> Ints:
    """Return the node of each table, shape (T,).

    The largest tables come first, each on the node with which the sum of the largest loads stays smallest. Then tables
    of the most loaded nodes move and swap as long as that helps. If no node has room for a table, the one with most
    room gets it. `loads` are those of tables, (T, 3), `base` the nodes' other loads, (N, 3), `sizes` the bytes of
    tables per device, (T,), and `room` the bytes for them on each device of a node, (N,).
    """
    # An even share is 1, which keeps powers within range.
    unit = max(float((loads.sum(axis=0) / len(base) + base.max(axis=0)).max()), 1e-12)
    loads, sums = loads / unit, base / unit
    order = np.array(sorted(range(len(loads)), key=lambda n: (-float(loads[n].sum()), n)), dtype=np.int64)
    found = np.zeros(len(loads), dtype=np.int64)
    left = room.copy()
    _place(loads, sums, sizes, left, order, found)
    for squarings in (_FIRST, _LAST):
        unit = max(float(sums.max()), 1e-12)
        loads /= unit
        sums /= unit
        _descend(loads, sums, sizes, left, found, squarings)
    return found


def _place(loads: Floats, sums: Floats, sizes: Ints, left: Ints, order: Ints, found: Ints) -> None:
    """Place tables one after another, updating the nodes' `sums` and `left`, and `found`."""
    for table in order.tolist():
        before = _powers(sums, _FIRST)
        others = np.cumsum(before, axis=0)[-1] - before  # added in the order of nodes on all processors
        values = _roots(others + _powers(sums + loads[table], _FIRST), _FIRST)
        best = _first_least(np.where(sizes[table] <= left, values, np.inf), np.inf)
        if best < 0:
            best = int(left.argmax())
        found[table] = best
        sums[best] += loads[table]
        left[best] -= sizes[table]


def _descend(loads: Floats, sums: Floats, sizes: Ints, left: Ints, found: Ints, squarings: int) -> None:
    """Move and swap tables as long as that helps, updating the nodes' `sums` and `left`, and `found`."""
    tables, nodes = len(loads), len(sums)
    # What comes back for a table: nothing, from each node, or one of the tables.
    backs = np.concatenate([np.zeros((nodes, 3)), loads])
    back_sizes = np.concatenate([np.zeros(nodes, dtype=np.int64), sizes])
    for _ in range(_CHANGES_PER_TABLE * tables):
        powers = _powers(sums, squarings)
        added = np.cumsum(powers, axis=0)[-1]
        least = float(_roots(added, squarings)) * (1 - _LEAST_CHANGE)
        takers = np.concatenate([np.arange(nodes), found])
        giving = (sums >= sums.max(axis=0) * (1 - _SAME)).any(axis=1)
        best = None
        for one in np.flatnonzero(giving[found]).tolist():
            node = found[one]
            more = sizes[one] - back_sizes
            load = loads[one] - backs
            after = added - powers[node] - powers[takers]
            after += _powers(sums[node] - load, squarings) + _powers(sums[takers] + load, squarings)
            possible = (takers != node) & (more <= left[takers]) & (-more <= left[node])
            values = np.where(possible, _roots(after, squarings), np.inf)
            other = _first_least(values, least)
            if other >= 0:
                best = (one, other)
                least = float(values[other])
        if best is None:
            return
        one, other = best
        node = int(found[one])
        taker = int(takers[other])
        for table, giver, to in ((one, node, taker), (other - nodes, taker, node)):
            if table >= 0:
                sums[giver] -= loads[table]
                sums[to] += loads[table]
                left[giver] += sizes[table]
                left[to] -= sizes[table]
                found[table] = to


def _first_least(values: Floats, least: float) -> int:
    """Return the position of the last value that beats `least` and all earlier ones by more than a tie; -1 if none."""
    best = -1
    for n in np.flatnonzero(values < least * (1 - _SAME)).tolist():
        if values[n] < least * (1 - _SAME):
            best = n
            least = float(values[n])
    return best


def _powers(values: Floats, squarings: int) -> Floats:
    """Square values so often, after replacing negative ones, which come from rounding, by 0."""
    powers = np.maximum(values, 0.0)
    for _ in range(squarings):
        powers = powers * powers
    return powers


def _roots(powers: Floats, squarings: int) -> Floats:
    """Return the sums of the roots of powers, (..., 3) to (...), by square roots, which all processors round alike."""
    values = np.maximum(powers, 0.0)
    for _ in range(squarings):
        values = np.sqrt(values)
    return values[..., 0] + values[..., 1] + values[..., 2]


class Nodes:
    """Packs the tables that single nodes hold by rows in an allocation."""

    def __init__(self, task: ShardingTask, costs: AdditiveCosts) -> None:
        self._size = task.topology.fast_domain_size
        self._prices = node_prices(task, costs)
        self._compute = first_and_last(costs, task)

    def packed_anew(self, best: Allocation, search_beside: Callable[[Shared], IteratedLocalSearch]) -> Allocation:
        """Improve an allocation by packing and a descent of columns; return it unchanged if that does not help."""
        shared = self._packed(best)
        if shared is None:
            return best
        other = search_beside(shared).descended([best.units])
        return other if other.value < best.value * (1 - _LEAST_GAIN) else best

    def _packed(self, best: Allocation) -> Shared | None:
        """Return the shared tables after packing; None if all tables stay, or have no room elsewhere."""
        pricing, size = best.pricing, self._size
        held = [place for place in pricing.shared.places.values() if len(place.form.bytes) < len(best.units)]
        if not held:
            return None
        # What a table adds to a device that has to do what all have on average.
        typical = best.sums.mean(axis=0)
        vectors = np.array([place.form.vectors for place in held])
        more = pricing.compute(typical + vectors) - pricing.compute(typical)
        ms = np.maximum(more @ self._compute.T, 0.0)
        columns = vectors[..., -LOADS + DOMAIN_ROW_COLUMNS].sum(axis=1)
        loads = np.array([
            node_loads(of_table, width, self._prices)
            for of_table, width in zip(ms, columns.tolist(), strict=True)
        ])  # fmt: skip
        others = best.sums.copy()
        for place in held:
            others[place.devices] -= place.form.vectors
        base = np.zeros((len(best.units) // size, 3))
        # What is left of a device that gave everything away is rounding.
        others_ms = pricing.compute(np.maximum(others, 0.0)) @ self._compute.T
        base[:, :2] = others_ms.reshape(-1, size, 2).max(axis=1)
        left = pricing.room(best.units)
        room = left.reshape(-1, size).min(axis=1)
        sizes = np.array([int(place.form.bytes.max()) for place in held], dtype=np.int64)
        now = np.array([place.first // size for place in held], dtype=np.int64)
        np.add.at(room, now, sizes)
        nodes = packed(loads, base, sizes, room)
        places = [Place(place.form, node * size) for place, node in zip(held, nodes.tolist(), strict=True)]
        after = pricing.shared.changed([], places)
        fits = (after.bytes - pricing.shared.bytes <= left).all()
        return after if fits and (nodes != now).any() else None
