"""The inner search on made-up prices that can be followed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard.budget import Budget
from neuroshard.contents import Contents
from neuroshard.cutoff import Cutoff
from neuroshard.grid_search import GridSearch
from neuroshard.kinds import Kinds
from shardgym import EmbeddingTable, ShardingTask, Topology


class Flat(Contents):
    """Whatever a device holds takes 1 ms; a plan takes as many ms as its last device has columns."""

    def totals(self, contents):
        return np.array([float(self.kinds.columns[self.held(int(row[-1]))].sum()) for row in contents])

    def _price(self, numbers, contents, kinds):
        return np.ones(len(numbers))


def placed(widths: list[int], caps: list[float], memory_bytes: tuple[int, int] = (2**30, 2**30), rows: int = 10):
    """Place tables in the given order, the second of so many rows; return the cost and the widths on either device."""
    tables = tuple(EmbeddingTable(f"t{n}", rows if n == 1 else 10, width) for n, width in enumerate(widths))
    kinds = Kinds(ShardingTask(tables, Topology(num_devices=2, memory_bytes=memory_bytes), batch_size=8))
    contents = Flat(kinds)
    best = GridSearch(contents, np.array(caps), Budget()).place(kinds.whole[None], Cutoff(1))
    held = best.held(0) if np.isfinite(best.costs[0]) else [[], []]
    return best.costs[0], [sorted(kinds.columns[on_device].tolist()) for on_device in held]


def test_ties_of_compute_go_to_the_device_with_fewer_bytes_then_to_the_lower_number():
    """16 to the first, 8 to the empty second, 8 to the second with 8 against 16, 8 to the first with 16 against 16."""
    assert placed([16, 8, 8, 8], [np.inf]) == (16.0, [[8, 16], [8, 8]])


def test_values_of_the_grid_part_where_one_rules_out_a_device_and_the_best_of_them_counts():
    """The second table has 1 row, so the third goes to its device (28 columns), where 28 are allowed."""
    assert placed([16, 20, 8], [28.0], rows=1) == (28.0, [[16], [8, 20]])
    assert placed([16, 20, 8], [24.0], rows=1) == (20.0, [[8, 16], [20]])
    assert placed([16, 20, 8], [20.0, 24.0, 26.0, 28.0, 30.0], rows=1) == (20.0, [[8, 16], [20]])
    assert placed([16, 20, 8], [20.0], rows=1) == (np.inf, [[], []])


def test_a_shard_goes_where_memory_is_left():
    """Forty bytes per column: the second device has room for 12 columns."""
    assert placed([16, 12, 8], [np.inf], (2**30, 12 * 40)) == (12.0, [[8, 16], [12]])


@pytest.mark.parametrize("caps", [[8.0], [8.0, 12.0]])
def test_there_is_no_placement_when_a_shard_is_wider_than_every_limit(caps):
    assert placed([16, 8], caps)[0] == np.inf
