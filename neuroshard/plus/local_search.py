"""Iterated local search over the units of each table on each device: descents between random kicks."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from neuroshard.plus.linear_model import LARGE, LinearModel
from neuroshard.plus.moves import BACK_TABLE, BACK_UNITS, GIVER, NONE, TABLE, TAKER, UNITS
from neuroshard.plus.placement import DRAWS_PER_KICK, Placement, constructed, kick_and_descend
from neuroshard.plus.pricing import Pricing
from shardgym.arrays import Floats, Ints
from shardgym.costs.links import LOADS
from shardgym.evaluation.solver import Budget

#: Kicks without a limit of time, as far as they look at no more than so many moves.
_DEFAULT_KICKS = 128
_MOST_MOVES = 2_000_000
#: Rounds of kicks in succession without success after which a search with a limit of time ends early.
PATIENCE = 20
#: Kicks of a round, and so many devices and tables together after which a round has fewer.
_KICKS_PER_ROUND = 32
_LARGE = 500
#: Constructed placements from which the search descends; and beside tables that devices of large tasks share.
_DESCENTS = 3
_FEW_DESCENTS = 1
#: Moves of a descent between looks at the clock.
_STEPS = 64
#: Random moves that are priced together, and such samples in succession that may bring nothing.
_SAMPLE = 64
_VAIN_SAMPLES = 4
#: A move by exact prices must save more than this share of the objective.
_LEAST_GAIN = 1e-4


class Allocation:
    """Units of tables on devices, and their price."""

    def __init__(self, pricing: Pricing, units: Ints) -> None:
        self.pricing = pricing  #: pricing of the task
        self.units = units  #: units of each table on each device, shape (D, T); must not be changed
        self.sums: Floats = pricing.sums(units)  #: sum of vectors of each device, shape (D, V)
        self.compute: Floats = pricing.compute(self.sums)  #: forward and backward of each device in ms, shape (D, 2)
        totals, values = pricing.objective(self.compute[None], self.sums[None, :, -LOADS:])
        possible = pricing.has_room(units)
        #: Predicted cost of the plan in ms; infinite if hosts have no room for it.
        self.total_ms = float(totals[0]) if possible else math.inf
        self.value = float(values[0]) if possible else math.inf  #: objective of the plan in ms, likewise

    def after(self, moves: Ints) -> tuple[Floats, Floats]:
        """Return compute, (M, D, 2), and loads, (M, D, LOADS), of devices after each of some moves, (M, 6)."""
        number = np.arange(len(moves))
        pairs = moves[:, :2]
        sums = self.pricing.sums_after(self.units, self.sums, moves)
        compute = np.tile(self.compute, (len(moves), 1, 1))
        loads = np.tile(self.sums[:, -LOADS:], (len(moves), 1, 1))
        compute[number[:, None], pairs] = self.pricing.compute(sums)
        loads[number[:, None], pairs] = sums[..., -LOADS:]
        return compute, loads

    def moved(self, move: Ints) -> Allocation:
        """Return the allocation after a move."""
        giver, taker, table, units, back, back_units = move.tolist()
        after = self.units.copy()
        after[[giver, taker], table] += [-units, units]
        if back != NONE:
            after[[giver, taker], back] += [back_units, -back_units]
        return Allocation(self.pricing, after)


def corrected(model: LinearModel, allocation: Allocation) -> LinearModel:
    """Correct a model so that it is exact for the compute of an allocation's devices."""
    exact = allocation.compute.sum(axis=1) - model.shared_ms
    estimate = model.row_ms[model.first + allocation.units].sum(axis=1)
    device_ms = np.where(allocation.units.any(axis=1), exact - estimate, model.device_ms)
    return dataclasses.replace(model, device_ms=device_ms)


@dataclass(frozen=True)
class IteratedLocalSearch:
    """Local search by a linear model, refined by exact prices."""

    pricing: Pricing  #: pricing of the task
    model: LinearModel  #: linear model of the prices
    kicks: int | None  #: see `NeuroShardPlus`
    budget: Budget  #: time budget, which may run out in the middle
    rng: np.random.Generator  #: random generator of the kicks
    found: Callable[[Allocation], None]  #: called with every start and every local optimum within memory

    def starts(self) -> list[Ints]:
        """Descend by the model from the most promising constructed placements; return results within memory."""
        ranked: list[tuple[tuple[float, float], Placement]] = []
        is_large = len(self.model.memory) * len(self.model.first) > LARGE
        most = _FEW_DESCENTS if is_large and self.pricing.shared.places else _DESCENTS
        for placement in constructed(self.model):
            self.budget.check()
            rank = placement.rank()
            if all(rank != other for other, _ in ranked):  # most are the same
                ranked = sorted([*ranked, (rank, placement)], key=lambda entry: entry[0])[:most]
        for _, placement in ranked:
            finished = False
            while not finished:
                self.budget.check()
                finished, _ = placement.descend(_STEPS)
        return [placement.units for _, placement in ranked if not placement.rank()[0]]

    def descended(self, starts: Iterable[Ints]) -> Allocation:
        """Descend by exact prices from starts within memory, shape (D, T) each; return the best result."""
        allocations = [self.offer(units) for units in starts]
        return min((self._polish(one) for one in allocations), key=lambda one: one.value)

    def kicked(self, best: Allocation, *, on: bool = False) -> Allocation:
        """Kick an allocation and its improvements until kicks are used up; return the best.

        If kicks are not counted, `on` continues as long as there is time and kicks help.
        """
        if on and (self.kicks is not None or not self.budget.limited):
            return best
        counted = self.kicks is None and not on
        kicks = _DEFAULT_KICKS if counted else math.inf if self.kicks is None else self.kicks
        most_moves = _MOST_MOVES if counted else math.inf
        size = best.units.shape[0] + best.units.shape[1]
        most = max(1, _KICKS_PER_ROUND * _LARGE // max(size, _LARGE))
        in_vain = 0
        made = 0
        looked_at = 0
        while made != kicks and in_vain < PATIENCE and looked_at < most_moves:
            count = int(min(most, kicks - made))
            draws = self.rng.random((most, DRAWS_PER_KICK))[:count]
            other, more = self._kick(best, draws, improve=count == most)
            made += count
            looked_at += more
            in_vain = 0 if other.value < best.value else in_vain + 1
            best = min(best, other, key=lambda one: one.value)
        return best

    def offer(self, units: Ints) -> Allocation:
        """Report and return an allocation found elsewhere."""
        allocation = Allocation(self.pricing, units)
        self.found(allocation)
        return allocation

    def _kick(self, best: Allocation, draws: Floats, *, improve: bool) -> tuple[Allocation, int]:
        """Kick by the model; return the result by exact prices, and the number of moves tried."""
        # Whatever is better by the model is reported, and only what a whole round leads to is improved by exact prices.
        # So a search with fewer kicks is the beginning of one with more, which is never worse.
        self.budget.check()
        better, looked_at = kick_and_descend(corrected(self.model, best), best.units, draws)
        if not better:
            return best, looked_at
        other = [self.offer(units) for units in better][-1]
        return self.sampled(self._polish(other)) if improve else other, looked_at

    def _polish(self, allocation: Allocation) -> Allocation:
        """Make the model's best moves as long as they help by exact prices."""
        better: Allocation | None = allocation
        while better is not None:
            allocation = better
            better = None
            placement = Placement(corrected(self.model, allocation), allocation.units)
            for giver in placement.givers():
                self.budget.check()
                move = placement.best_move(giver)
                better = None if move is None else self._after_best(allocation, move[None])
                if better is not None:
                    break
        self.found(allocation)
        return allocation

    def sampled(self, allocation: Allocation) -> Allocation:
        """Make the best of sampled moves by exact prices, until several samples in succession do not help."""
        in_vain = 0
        while in_vain < _VAIN_SAMPLES:
            self.budget.check()
            moves = random_moves(self.pricing, allocation.units, _SAMPLE, self.rng)
            better = self._after_best(allocation, moves) if len(moves) else None
            allocation = better or allocation
            in_vain = 0 if better else in_vain + 1
        self.found(allocation)
        return allocation

    def _after_best(self, allocation: Allocation, moves: Ints) -> Allocation | None:
        """Return the allocation after the best of some moves; None if none helps."""
        enough = allocation.value * (1 - _LEAST_GAIN)
        _, values = self.pricing.objective(*allocation.after(moves))
        best = int(values.argmin())
        if values[best] >= enough:
            return None
        # Where sums are added up anew, the learned simulator may see other devices ready at the same time.
        better = allocation.moved(moves[best])
        return better if better.value < enough else None


def random_moves(pricing: Pricing, units: Ints, count: int, rng: np.random.Generator) -> Ints:
    """Return up to `count` random moves within memory, shape (M, 6), see `moves.GIVER`."""
    shards = pricing.shards
    devices, tables = np.nonzero(units)
    if not len(devices):
        return np.empty((0, 6), dtype=np.int64)
    given = rng.integers(len(devices), size=count)
    back = rng.integers(len(devices), size=count)
    # A device gives all, half, or any part, and half of the time something comes back.
    takers = np.where(rng.random(count) < 0.5, devices[back], rng.integers(len(units), size=count))
    swaps = (takers == devices[back]) & (tables[back] != tables[given])
    moves = np.column_stack([
        devices[given], takers, tables[given], _part(units[devices[given], tables[given]], rng),
        np.where(swaps, tables[back], NONE), np.where(swaps, _part(units[devices[back], tables[back]], rng), 0),
    ])  # fmt: skip
    moves = moves[moves[:, GIVER] != moves[:, TAKER]]
    more = np.zeros((len(moves), 2), dtype=np.int64)
    for table, amount in ((moves[:, TABLE], moves[:, UNITS]), (moves[:, BACK_TABLE], -moves[:, BACK_UNITS])):
        for side, change in ((GIVER, -amount), (TAKER, amount)):
            before = shards.first[table] + units[moves[:, side], table]
            more[:, side] += shards.bytes[before + change] - shards.bytes[before]
    room = pricing.room(units)[moves[:, [GIVER, TAKER]]]
    return np.asarray(moves[(more <= room).all(axis=1)], dtype=np.int64)


def _part(units: Ints, rng: np.random.Generator) -> Ints:
    """Return all units with probability 1/2, else a random number of them from 1 on, shape (n,)."""
    return np.where(rng.random(len(units)) < 0.5, units, rng.integers(1, units + 1))
