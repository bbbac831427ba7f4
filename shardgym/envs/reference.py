"""Reference costs: the cost of a simple rule's plan of a task, which relative rewards compare episodes with.

The rule is longest processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969), as in the solver
`lpt`, the base of boards: shards in descending order of their time alone, each to the device with the smallest sum.
Tables that take longer alone than an even share of all are halved by columns until no shard does; the cheaper of the
plans with and without these cuts counts.

Unlike `lpt`, the rule ignores memory. Every task therefore has a reference, which is the same in every environment; if
memory is tight, its plan may not fit. The reference is not a lower bound, because bounds are loose by different factors
on different tasks, and a return near -1 would not mean the same everywhere.
"""

from collections.abc import Sequence

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.shard_keys import ShardKey
from shardgym.costs.ties import quantized
from shardgym.errors import InputError
from shardgym.plans.shard import COLUMN_UNIT
from shardgym.tasks.task import ShardingTask

#: Tasks that are priced at once: arrays of more would take hundreds of MB.
_AT_ONCE = 1024


def references_ms(costs: AdditiveCosts, tasks: Sequence[ShardingTask]) -> Floats:
    """Return the reference costs of tasks in ms, shape (n,), priced in a few calls.

    Raises:
        InputError: a table has a width that no kernel supports.
    """
    for task in tasks:
        odd = next((table for table in task.tables if table.embedding_dim % COLUMN_UNIT), None)
        if odd is not None:
            raise InputError(
                f"task '{task.name}' has no reference cost: table '{odd.name}' has {odd.embedding_dim} columns, and "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    found = np.zeros(len(tasks))
    num_devices = np.array([task.num_devices for task in tasks])
    for count in np.unique(num_devices).tolist():
        group = np.flatnonzero(num_devices == count)
        for first in range(0, len(group), _AT_ONCE):
            which = group[first : first + _AT_ONCE]
            found[which] = _added_up_ms(costs, [tasks[n] for n in which.tolist()])
    return found


def longest_first(alone_ms: Floats, num_devices: int) -> Ints:
    """Place the shards of n tasks, the longest one of each first, on the devices with the smallest sums.

    `alone_ms` are times of shards alone, 0 beyond a task's last, shape (n, S). Returns devices of the same shape.
    """
    rows = np.arange(len(alone_ms))
    order = np.argsort(-alone_ms, axis=1, kind="stable")
    sums = np.zeros((len(alone_ms), num_devices))
    devices = np.zeros(alone_ms.shape, dtype=np.int64)
    for shards in order.T:
        lightest = sums.argmin(axis=1)
        devices[rows, shards] = lightest
        sums[rows, lightest] += alone_ms[rows, shards]
    return devices


def _added_up_ms(costs: AdditiveCosts, tasks: Sequence[ShardingTask]) -> Floats:
    """Return the references of tasks with equally many devices, shape (n,)."""
    num_devices = tasks[0].num_devices
    whole = [_numbers(costs, task, [(table.name, table.embedding_dim) for table in task.tables]) for task in tasks]
    found, alone_ms = _placed_ms(costs, tasks, whole)
    shares = alone_ms.sum(axis=1) / num_devices
    long = alone_ms > shares[:, None]
    changed = []
    pieces = []
    for n in np.flatnonzero(long.any(axis=1)).tolist():
        widths = [table.embedding_dim for table in tasks[n].tables]
        cut = [
            _balanced_width(costs, tasks[n], position, shares[n]) if long[n, position] else width
            for position, width in enumerate(widths)
        ]
        if cut != widths:
            changed.append(n)
            names = [table.name for table in tasks[n].tables]
            numbers = _numbers(costs, tasks[n], list(zip(names, cut, strict=True)))
            pieces.append(np.repeat(numbers, [whole // part for whole, part in zip(widths, cut, strict=True)]))
    if changed:
        with_cuts, _ = _placed_ms(costs, [tasks[n] for n in changed], pieces)
        found[changed] = np.minimum(found[changed], with_cuts)
    return found


def _placed_ms(costs: AdditiveCosts, tasks: Sequence[ShardingTask], shards: Sequence[Ints]) -> tuple[Floats, Floats]:
    """Return the costs of the rule's plans for n tasks, shape (n,), and the times of shards alone, shape (n, S)."""
    counts = np.array([len(numbers) for numbers in shards])
    exists = np.arange(counts.max()) < counts[:, None]
    of_shards = costs.vectors(np.concatenate(shards))
    vectors = np.zeros((*exists.shape, of_shards.shape[1]))
    vectors[exists] = of_shards
    alone_ms = np.zeros(exists.shape)
    alone_ms[exists] = quantized(costs.exact_compute_ms(of_shards).sum(axis=1))
    devices = longest_first(alone_ms, tasks[0].num_devices)
    sums = np.zeros((len(tasks), tasks[0].num_devices, vectors.shape[2]))
    rows = np.arange(len(tasks))
    for place in range(exists.shape[1]):
        sums[rows, devices[:, place]] += vectors[:, place]
    numbers = np.array([costs.add_task(task) for task in tasks], dtype=np.int64)
    return costs.total_ms(numbers, sums), alone_ms


def _balanced_width(costs: AdditiveCosts, task: ShardingTask, position: int, share_ms: float) -> int:
    """Return the width of a table's widest halves that take at most `share_ms` alone, or of the narrowest ones."""
    table = task.tables[position]
    width = table.embedding_dim
    while width % (2 * COLUMN_UNIT) == 0:
        width //= 2
        vectors = costs.vectors(_numbers(costs, task, [(table.name, width)]))
        if quantized(costs.exact_compute_ms(vectors).sum(axis=1))[0] <= share_ms:
            break
    return width


def _numbers(costs: AdditiveCosts, task: ShardingTask, widths: Sequence[tuple[str, int]]) -> Ints:
    """Return the numbers of shards with all rows, given their tables and columns."""
    keys = [ShardKey(name, task.table(name).num_embeddings, width) for name, width in widths]
    return costs.encode_keys(task, keys)
