"""Scoring: placements that cannot be among the best are not scored, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest

from neuroshard.contents import Contents
from neuroshard.cutoff import Cutoff
from neuroshard.kinds import Kinds
from neuroshard.scoring import best_placements
from shardgym import EmbeddingTable, ShardingTask, Topology


class Listed(Contents):
    """Contents 1, 2, 3, ... take what is given; a plan takes that of its first device plus the extra of its second."""

    def __init__(self, compute, extra):
        topology = Topology(num_devices=2, memory_bytes=2**30)
        super().__init__(Kinds(ShardingTask((EmbeddingTable("t", 10, 4),), topology, batch_size=8)))
        self.compute, self.extra, self.scored = np.array(compute), np.array(extra), []

    def least(self, contents):
        return self.compute[contents[:, 0]]

    def totals(self, contents):
        self.scored += contents[:, 0].tolist()
        return self.compute[contents[:, 0]] + self.extra[contents[:, 1]]

    def held(self, content):
        return [content]

    def _price(self, numbers, contents, kinds):
        raise NotImplementedError


@pytest.fixture(autouse=True)
def one_placement_per_call(monkeypatch):
    monkeypatch.setattr("neuroshard.scoring._DEVICES_PER_CALL", 2)


def test_the_cutoff_is_the_last_cost_that_goes_on():
    cutoff = Cutoff(2)
    assert cutoff.above(np.array([5.0])) == np.inf
    assert cutoff.above(np.array([5.0, 3.0, 4.0])) == 4.0
    cutoff.keep(np.array([6.0, 1.0]))
    assert cutoff.above(np.array([])) == 6.0
    assert cutoff.above(np.array([2.0, 3.0])) == 2.0


def test_placements_above_the_cutoff_are_not_scored():
    """One column plan goes on: 2 + 5 is better than 8 alone, and so are 3 + 1."""
    contents = Listed([8.0, 2.0, 3.0, 4.0], [0.0, 5.0, 1.0, 0.0])
    held = np.array([[0, 0], [1, 1], [2, 2], [3, 3]])
    placed = best_placements(contents, np.arange(4), np.zeros(4, dtype=np.int64), held, np.arange(4), Cutoff(1))
    assert contents.scored == [1, 2, 3]
    assert placed.costs.tolist() == [np.inf, 7.0, 4.0, 4.0]
    assert placed.held(2) == [[2], [2]]


def test_costs_of_earlier_parts_count():
    contents, cutoff = Listed([3.0, 2.0], [0.0, 0.0]), Cutoff(1)
    cutoff.keep(np.array([2.5]))
    held = np.array([[0, 0], [1, 1]])
    placed = best_placements(contents, np.arange(2), np.zeros(2, dtype=np.int64), held, np.arange(2), cutoff)
    assert contents.scored == [1]
    assert placed.costs.tolist() == [np.inf, 2.0]


def test_the_best_few_are_what_scoring_everything_finds():
    rng = np.random.default_rng(0)
    for _ in range(50):
        contents = Listed(rng.integers(0, 6, 40).astype(float), rng.integers(0, 4, 40).astype(float))
        held, rows = rng.integers(0, 40, (40, 2)), rng.integers(0, 12, 40)
        totals, low = contents.totals(held), np.zeros(40, dtype=np.int64)
        everything = np.array([totals[rows == row].min(initial=np.inf) for row in range(12)])
        contents.scored = []
        placed = best_placements(contents, rows, low, held, np.arange(12), Cutoff(3))
        best = everything.argsort(kind="stable")[:3]
        assert placed.costs.argsort(kind="stable")[:3].tolist() == best.tolist()
        np.testing.assert_array_equal(placed.costs[best], everything[best])
        assert len(contents.scored) <= 40


def test_ties_go_to_the_least_value_of_the_grid():
    """Whatever is scored first: the second and third cost 3 ms, too, but at least 1 and 2."""
    contents = Listed([0.5, 1.0, 2.0], [2.5, 2.0, 1.0])
    held, low = np.array([[0, 0], [1, 1], [2, 2]]), np.array([4, 3, 2])
    placed = best_placements(contents, np.zeros(3, dtype=np.int64), low, held, np.zeros(1, dtype=np.int64), Cutoff(1))
    assert contents.scored == [0, 1, 2]
    assert placed.held(0) == [[2], [2]]
