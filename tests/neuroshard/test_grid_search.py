"""The inner search on made-up prices that can be followed by hand: placing, and scoring what was placed."""

import numpy as np
import pytest

from neuroshard.device_sets import DeviceSets
from neuroshard.grid_search import Cutoff, GridSearch, best_placements
from neuroshard.shard_table import ShardTable
from shardgym import EmbeddingTable, ShardingTask, Topology
from shardgym.evaluation.solver import Budget


class Flat(DeviceSets):
    """Whatever a device holds takes 1 ms; a plan takes as many ms as its last device has columns."""

    def total_ms(self, sets):
        return np.array([float(self.shards.columns[self.members(int(row[-1]))].sum()) for row in sets])

    def _price(self, first, last):
        return np.full((last - first, 2), 0.5)


def placed(widths: list[int], max_columns: list[float], memory_bytes: tuple[int, int] = (2**30, 2**30), rows: int = 10):
    """Place tables in the given order, the second of so many rows; return the cost and the widths on either device."""
    tables = tuple(EmbeddingTable(f"t{n}", rows if n == 1 else 10, width) for n, width in enumerate(widths))
    shards = ShardTable(ShardingTask(tables, Topology(num_devices=2, memory_bytes=memory_bytes), batch_size=8))
    best = GridSearch(Flat(shards, np.zeros((len(shards), 0))), Budget()).place(
        shards.whole[None], np.array(max_columns), Cutoff(1)
    )
    devices = best.devices_of(0) if np.isfinite(best.costs[0]) else [[], []]
    return best.costs[0], [sorted(shards.columns[rows].tolist()) for rows in devices]


def test_ties_of_compute_go_to_the_device_with_fewer_bytes_then_to_the_lower_number():
    """16 to the first, 8 to the empty second, 8 to the second with 8 against 16, 8 to the first with 16 against 16."""
    assert placed([16, 8, 8, 8], [np.inf]) == (16.0, [[8, 16], [8, 8]])


def test_limits_part_where_one_rules_out_a_device_and_the_best_of_them_counts():
    """The second table has 1 row, so the third goes to its device (28 columns), where 28 are allowed."""
    assert placed([16, 20, 8], [28.0], rows=1) == (28.0, [[16], [8, 20]])
    assert placed([16, 20, 8], [24.0], rows=1) == (20.0, [[8, 16], [20]])
    assert placed([16, 20, 8], [20.0, 24.0, 26.0, 28.0, 30.0], rows=1) == (20.0, [[8, 16], [20]])
    assert placed([16, 20, 8], [20.0], rows=1) == (np.inf, [[], []])


def test_a_shard_goes_where_memory_is_left():
    """Forty bytes per column: the second device has room for 12 columns."""
    assert placed([16, 12, 8], [np.inf], (2**30, 12 * 40)) == (12.0, [[8, 16], [12]])


@pytest.mark.parametrize("max_columns", [[8.0], [8.0, 12.0]])
def test_there_is_no_placement_when_a_shard_is_wider_than_every_limit(max_columns):
    assert placed([16, 8], max_columns)[0] == np.inf


class Listed(DeviceSets):
    """Sets 1, 2, 3, ... take what is given; a plan takes that of its first device plus the extra of its second."""

    def __init__(self, compute, extra):
        topology = Topology(num_devices=2, memory_bytes=2**30)
        shards = ShardTable(ShardingTask((EmbeddingTable("t", 10, 4),), topology, batch_size=8))
        super().__init__(shards, np.zeros((len(shards), 0)))
        self.compute, self.extra, self.scored = np.array(compute), np.array(extra), []

    def lower_bounds(self, sets):
        return self.compute[sets[:, 0]]

    def total_ms(self, sets):
        self.scored += sets[:, 0].tolist()
        return self.compute[sets[:, 0]] + self.extra[sets[:, 1]]

    def members(self, number):
        return [number]

    def _price(self, first, last):
        raise NotImplementedError


@pytest.fixture
def one_placement_per_call(monkeypatch):
    monkeypatch.setattr("neuroshard.grid_search._DEVICES_PER_CALL", 2)


def test_placements_above_the_cutoff_are_not_scored(one_placement_per_call):
    """One column plan goes on: 2 + 5 is better than 8 alone, and so are 3 + 1."""
    sets = Listed([8.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 0.0])
    numbers = np.array([[0, 0], [1, 1], [2, 2], [3, 3]])
    best = best_placements(sets, np.arange(4), np.zeros(4, dtype=np.int64), numbers, 4, Cutoff(1))
    assert sets.scored == [1, 2, 3]
    assert best.costs.tolist() == [np.inf, 7.0, 4.0, 4.0]
    assert best.devices_of(2) == [[2], [2]]


def test_costs_of_earlier_parts_count(one_placement_per_call):
    sets, cutoff = Listed([3.0, 2.0], [0.0, 0.0]), Cutoff(1)
    cutoff.update(np.array([2.5]))
    numbers = np.array([[0, 0], [1, 1]])
    best = best_placements(sets, np.arange(2), np.zeros(2, dtype=np.int64), numbers, 2, cutoff)
    assert sets.scored == [1]
    assert best.costs.tolist() == [np.inf, 2.0]


def test_the_best_few_are_what_scoring_everything_finds(one_placement_per_call):
    rng = np.random.default_rng(0)
    for _ in range(50):
        sets = Listed(rng.integers(0, 6, 40).astype(float), rng.integers(0, 4, 40).astype(float))
        numbers, rows = rng.integers(0, 40, (40, 2)), rng.integers(0, 12, 40)
        totals, low = sets.total_ms(numbers), np.zeros(40, dtype=np.int64)
        everything = np.array([totals[rows == row].min(initial=np.inf) for row in range(12)])
        sets.scored = []
        best = best_placements(sets, rows, low, numbers, 12, Cutoff(3))
        first = everything.argsort(kind="stable")[:3]
        assert best.costs.argsort(kind="stable")[:3].tolist() == first.tolist()
        np.testing.assert_array_equal(best.costs[first], everything[first])
        assert len(sets.scored) <= 40


def test_ties_go_to_the_least_limit(one_placement_per_call):
    """Whatever is scored first: the second and third cost 3 ms, too, but at least 1 and 2."""
    sets = Listed([0.5, 1.0, 2.0], [2.5, 2.0, 1.0])
    numbers, low = np.array([[0, 0], [1, 1], [2, 2]]), np.array([4, 3, 2])
    best = best_placements(sets, np.zeros(3, dtype=np.int64), low, numbers, 1, Cutoff(1))
    assert sets.scored == [0, 1, 2]
    assert best.devices_of(0) == [[2], [2]]
