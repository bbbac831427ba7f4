"""What `GridSearch` does step by step, in one compiled call for many steps."""

from __future__ import annotations

import numpy as np

from neuroshard.compiled.jit import jit
from neuroshard.compiled.lanes import Lanes, Limits, choose, copy
from neuroshard.compiled.table import Table, find_or_append, price_new
from shardgym.arrays import Ints


@jit
def advance(
    lanes: Lanes, used: int, table: Table, count: int, limits: Limits, rows: Ints, forks: Ints, first: int, last: int
) -> tuple[int, int, int]:
    """Place the shards of some steps in all lanes.

    Args:
        lanes: the first `used` are under way.
        used: lanes.
        table: contents.
        count: contents in it.
        limits: of devices.
        rows: sequences, shape (U, n).
        forks: step, stem and row of every parting, in order of steps, shape (F, 3).
        first: step.
        last: step, itself not taken.

    Returns:
        The step that comes next, earlier than `last` when the table may get too small or no lane is left; lanes;
        contents.
    """
    fork = np.searchsorted(forks[:, 0], first)
    for step in range(first, last):
        if count + len(lanes.rows) > len(table.keys):
            return step, used, count
        while fork < len(forks) and forks[fork, 0] == step:
            used = _fork(lanes, used, forks[fork, 1], forks[fork, 2])
            fork += 1
        used = choose(lanes, used, limits, rows[:, step])
        new = count
        for lane in range(used):
            kind, device = rows[lanes.rows[lane], step], lanes.device[lane]
            number = find_or_append(table, count, lanes.contents[lane, device], kind)
            count = max(count, number + 1)
            lanes.contents[lane, device] = number
            lanes.bytes[lane, device] += limits.kind_bytes[kind]
            lanes.columns[lane, device] += limits.kind_columns[kind]
        price_new(table, new, count)
        for lane in range(used):
            device = lanes.device[lane]
            lanes.ms[lane, device] = table.compared_ms[lanes.contents[lane, device]]
        if not used:
            return step + 1, used, count
    return last, used, count


@jit
def _fork(lanes: Lanes, used: int, stem: int, row: int) -> int:
    """Let a row go on from where its stem is; return how many lanes there are then."""
    for lane in range(used):
        if lanes.rows[lane] == stem:
            copy(lanes, lane, used)
            lanes.rows[used] = row
            used += 1
    return used
