"""Iterated local search over the units of each table on each device: descents and random kicks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard.plus.moves import Allocation, Moves, moves_of
from neuroshard.plus.pricing import Pricing
from neuroshard.shard_table import ShardTable
from shardgym.arguments import check_int
from shardgym.arrays import Ints
from shardgym.errors import InputError
from shardgym.incumbent import Budget

#: Plans that a cost model other than the simulator evaluates, without a limit of time.
DEFAULT_QUERIES = 32
#: Kicks in succession without success after which a search with a limit of time ends early.
PATIENCE = 300
#: Kicks of a task with 0, 1, 2, ... tables: 30, 27, 24, ...
_KICKS_OF_NONE = 30
_FEWER_PER_TABLE = 3
#: Draws per move before a kick goes without it, which happens where memory is full or there is one device.
_DRAWS = 20
#: A move has to bring more than this share of the objective.
_LEAST_GAIN = 1e-6


@dataclass(frozen=True)
class PlusSettings:
    """Constants of the search, explained in `NeuroShardPlus`.

    Raises:
        InputError: a value is out of range or of another type.
    """

    kicks: int | None = None
    kick_moves: int = 2
    shortlist: int = 4
    sources: int = 2
    softness: float = 0.01
    queries: int | None = None

    def __post_init__(self) -> None:
        for name, least in (("kicks", 0), ("kick_moves", 1), ("shortlist", 1), ("sources", 1), ("queries", 1)):
            value = getattr(self, name)
            if value is not None or name not in ("kicks", "queries"):
                check_int(name, value, least)
        soft = self.softness
        if isinstance(soft, bool) or not isinstance(soft, int | float) or not 0 <= soft < math.inf:
            raise InputError(f"softness {soft!r} is not a number from 0 on")

    def kicks_within(self, tables: int, *, limited: bool) -> int | None:
        """Return the number of kicks with exact prices, with or without a time limit; None for any number.

        Args:
            tables: of the task. Without a limit, large tasks get no kicks, so that the search takes no longer than the
                published one; on small ones a few milliseconds are worth it.
            limited: whether there is a time limit.
        """
        if self.kicks is not None or limited:
            return self.kicks
        return max(0, _KICKS_OF_NONE - _FEWER_PER_TABLE * tables)

    def queries_within(self, *, limited: bool) -> float:
        """Return the number of queries of a search with or without a time limit."""
        if self.queries is not None:
            return self.queries
        return math.inf if limited else DEFAULT_QUERIES


class LocalSearch:
    """Descents from several starts, then from disturbed copies of the best allocation.

    Args:
        pricing: of the task.
        settings: how thoroughly.
        budget: of time; may run out in the middle.
        rng: of the kicks.
        found: called with every start and every local optimum.
    """

    def __init__(
        self, pricing: Pricing, settings: PlusSettings, budget: Budget, rng: np.random.Generator,
        found: Callable[[Allocation], None],
    ) -> None:  # fmt: skip
        self._pricing = pricing
        self._settings = settings
        self._budget = budget
        self._rng = rng
        self._found = found
        self._memory: Ints = np.array(pricing.shards.task.topology.memory_bytes, dtype=np.int64)

    def run(self, starts: Sequence[Ints], kicks: int | None) -> Allocation:
        """Return the best allocation found.

        Args:
            starts: units of each table on each device, each of shape (D, T); at least one.
            kicks: how many; None for as many as bring anything.

        Raises:
            OutOfTime: the budget is spent.
        """
        allocations = [self.offer(units) for units in starts]
        best = self._descend(min(allocations, key=lambda allocation: allocation.value))
        number = 0
        in_vain = 0
        while number != kicks and in_vain != PATIENCE:
            units = kick(self._pricing.shards, best.units, self._settings.kick_moves, self._rng)
            other = self._descend(Allocation(self._pricing, units))
            number += 1
            in_vain = 0 if other.value < best.value else in_vain + 1
            best = min(best, other, key=lambda allocation: allocation.value)
        return best

    def offer(self, units: Ints) -> Allocation:
        """Report and return an allocation that was found elsewhere."""
        allocation = Allocation(self._pricing, units)
        self._found(allocation)
        return allocation

    def _descend(self, allocation: Allocation) -> Allocation:
        """Make the best move of the most loaded devices until none makes the plan better."""
        better: Allocation | None = allocation
        while better is not None:
            allocation = better
            better = self._improved(allocation)
        self._found(allocation)
        return allocation

    def _improved(self, allocation: Allocation) -> Allocation | None:
        """Return the allocation after the best move of the first device that has one; None when none has."""
        load = allocation.compute + self._pricing.ms_per_column * allocation.columns
        for device in (-load).argsort(kind="stable")[: self._settings.sources].tolist():
            self._budget.check()
            better = self._best_move(allocation, device)
            if better is not None:
                return better
        return None

    def _best_move(self, allocation: Allocation, device: int) -> Allocation | None:
        """Return the allocation after the best move of one device; None when none brings anything.

        All moves are priced together: roughly first, then the most promising exactly, then with communication.
        """
        number = self._settings.shortlist
        moves = self._shortlist(moves_of(allocation, device, self._memory), allocation, device, 2 * number)
        moves = self._shortlist(moves.priced(allocation, device), allocation, device, number)
        if not len(moves.targets):
            return None
        compute, columns = moves.outcome(allocation, device)
        totals, values = self._pricing.objective(compute, columns)
        best = int(values.argmin())
        if values[best] >= allocation.value * (1 - _LEAST_GAIN):
            return None
        return Allocation(self._pricing, moves.applied(best, device, allocation.units), float(totals[best]))

    def _shortlist(self, moves: Moves, allocation: Allocation, device: int, number: int) -> Moves:
        """Return the moves that look best, none that does not look better than no move."""
        values = self._pricing.rough_objective(*moves.outcome(allocation, device))
        now = self._pricing.rough_objective(allocation.compute[None], allocation.columns[None])
        promising = np.flatnonzero(values < now)
        return moves.take(promising[values[promising].argsort(kind="stable")[:number]])


def kick(shards: ShardTable, units: Ints, moves: int, rng: np.random.Generator) -> Ints:
    """Return units after random moves and swaps of shards and parts of them that memory allows.

    Args:
        shards: of the task.
        units: of each table on each device, shape (D, T).
        moves: how many.
        rng: of the draws.
    """
    memory = np.array(shards.task.topology.memory_bytes, dtype=np.int64)
    for _ in range(moves):
        for _ in range(_DRAWS):
            after = _random_move(units, rng)
            changed = (after != units).any(axis=1)
            used = shards.bytes[shards.first + after[changed]].sum(axis=1)
            if changed.any() and (used <= memory[changed]).all():
                units = after
                break
    return units


def _random_move(units: Ints, rng: np.random.Generator) -> Ints:
    """Give a random shard or a part of it to a random device, which two times in three returns one of its own."""
    devices, tables = np.nonzero(units)
    one = int(rng.integers(len(devices)))
    target = int(rng.integers(len(units)))
    source = int(devices[one])
    after = units.copy()
    if target == source:
        return after
    transfers = [(source, target, int(tables[one]))]
    others = tables[devices == target]
    if others.size and rng.integers(3):
        transfers.append((target, source, int(rng.choice(others))))
    for giver, taker, table in transfers:
        most = int(units[giver, table])
        given = most if rng.integers(2) else int(rng.integers(1, most + 1))
        after[taker, table] += given
        after[giver, table] -= given
    return after
