"""Simple searches: random plans, descent by single changes, simulated annealing, and greedy halving of columns."""

import contextlib
import functools
from collections.abc import Callable

import numpy as np

from baselines.greedy import place_greedily
from baselines.lpt import halved, merged, place_with_cuts, whole_tables
from baselines.placement_prices import Changes, Neighbourhood, PlacementPrices, joined
from baselines.queries import IncumbentSearch, Queries, QuerySearch, SearchRun
from shardgym.arrays import Floats, Ints
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask

#: Changes that local search prices together.
_PRICED_TOGETHER = 64
#: The same where plans are measured.
_MEASURED_TOGETHER = 8
#: A change must save more than this share of the cost.
_LEAST_GAIN = 1e-9
#: Successive cuts that do not help after which `column_greedy` ends.
_CUTS_IN_VAIN = 8
#: Of annealing, as shares of the first plan's cost.
START_TEMPERATURE = 0.005
END_TEMPERATURE = 0.0001
#: Changes that annealing draws and prices together, and the share of them that swaps two shards.
_DRAWN_TOGETHER = 8
_SWAPS = 0.5
#: Successive draws without an allowed change after which the search ends.
_DRAWS_IN_VAIN = 100
#: Plans drawn and priced together.
_PLANS_TOGETHER = 64
#: Successive draws that run out of memory after which the search gives up.
_PLANS_IN_VAIN = 6400


class LocalSearch(QuerySearch):
    """Descent from the plan of `lpt_whole`: a shard moves, two shards swap, or half of a shard's columns moves.

    The search visits devices in descending order of compute and tries changes that take something from the device, in
    random order. It makes the best of 64 changes, or of 8 with a measured cost, if that makes the plan cheaper. It ends
    in a local optimum or without queries left. Any cost works; an additive one prices a change by the two devices that
    it affects. If whole tables do not fit, the search first halves the largest. `neuroshard_plus` starts from better
    plans, cuts anywhere, and escapes local optima.

    Args:
        splits: whether shards may be halved.
        queries: maximum number of plans that the oracle prices. When None: unlimited with a time limit, else 50 per
            table, or 32 with a measured cost.

    Raises:
        InputError: `queries` is neither None nor a positive integer.
    """

    def __init__(self, *, splits: bool = True, queries: int | None = None) -> None:
        super().__init__(queries)
        self.splits = splits

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:
        """See `QuerySearch`; ends in a local optimum if queries last."""
        assert start is not None
        placement = Neighbourhood(run.task, run.cost, start)
        together = _PRICED_TOGETHER if run.cost.deterministic else _MEASURED_TOGETHER
        rng = np.random.default_rng(run.seed)
        while self._improve(run, queries, placement, together, rng):
            pass

    def _improve(
        self, run: SearchRun, queries: Queries, placement: Neighbourhood, together: int, rng: np.random.Generator
    ) -> bool:
        """Make one change that makes the plan cheaper; False if there is none, or no query is left."""
        for device in (-placement.compute_ms).argsort(kind="stable").tolist():
            changes = self._changes_of(placement, device)
            changes = changes.take(rng.permutation(np.flatnonzero(placement.are_allowed(changes))))
            for first in range(0, len(changes.given), together):
                run.budget.check()
                some = changes.take(slice(first, first + together))
                some = some.take(slice(queries.take(len(some.given))))
                if not len(some.given):
                    return False
                costs = placement.costs_ms(some)
                best = int(costs.argmin())
                if costs[best] < run.incumbent.cost_ms * (1 - _LEAST_GAIN):
                    placement.make(some, best)
                    run.incumbent.update(placement.plan_maker(), float(costs[best]))
                    return True
        return False

    def _changes_of(self, placement: Neighbourhood, device: int) -> Changes:
        """Return all changes that take something from a device; some may not be allowed."""
        here = np.flatnonzero(placement.devices == device)
        elsewhere = np.flatnonzero(placement.devices != device)
        others = np.delete(np.arange(len(placement.compute_ms)), device)
        moves = _pairs(here, others)
        swaps = _pairs(here, elsewhere)
        none = np.full(len(moves[0]), -1)
        whole = np.zeros(len(moves[0]), dtype=np.bool_)
        changes = [
            Changes(*moves, none, whole),
            Changes(swaps[0], placement.devices[swaps[1]], swaps[1], np.zeros(len(swaps[0]), dtype=np.bool_)),
        ]
        if self.splits:
            changes.append(Changes(*moves, none, ~whole))
        return joined(changes)


class ColumnGreedy(IncumbentSearch):
    """Halve the costliest shards by columns while that helps, placing everything anew by `lpt_whole` after every cut.

    Each round halves the shard with the longest compute alone on a device, places all shards by LPT, and queries the
    oracle. A cut that does not make the plan cheaper is undone for good. Pieces of a table on one device become one
    shard. If shards do not fit into memory, the search first halves the largest. NeuroShard tries such cuts in a beam
    search (Zha et al., MLSys 2023, section 3).
    """

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """See `IncumbentSearch`; deterministic."""
        del start
        task, cost, incumbent = run.task, run.cost, run.incumbent
        pieces, plan = place_with_cuts(task, cost, whole_tables(task, cost))
        incumbent.offer(merged(task, plan))
        in_vain = 0
        while in_vain < _CUTS_IN_VAIN:
            run.budget.check()
            able = [n for n, shard in enumerate(pieces.shards) if shard.num_columns >= 2 * COLUMN_UNIT]
            if not able:
                break
            pieces = halved(task, cost, pieces, max(able, key=lambda n: pieces.alone_ms[n]))
            best_ms = incumbent.cost_ms
            with contextlib.suppress(NoFeasiblePlanError):
                incumbent.offer(merged(task, place_greedily(task, pieces.alone_ms, pieces.shards)))
            in_vain = 0 if incumbent.cost_ms < best_ms else in_vain + 1


def _pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Return all pairs of members of two arrays, as two arrays."""
    return np.repeat(first, len(second)), np.tile(second, len(first))


class Annealing(QuerySearch):
    """Simulated annealing with random moves and swaps of shards.

    Kirkpatrick, Gelatt and Vecchi (1983), "Optimization by simulated annealing": a change that costs d ms more is
    accepted with probability exp(-d / temperature), and the temperature, a share of the first plan's cost, falls
    geometrically. The search prices a few random changes at a time, and makes the first accepted one. It starts from
    the plan of `lpt_whole`. If tables do not fit, the largest are halved first; nothing else is cut.

    Args:
        queries: maximum number of plans that the oracle prices. When None: unlimited with a time limit, else 50 per
            table, or 32 with a measured cost. Single tables and the first plan count as two.
    """

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:
        """See `QuerySearch`."""
        assert start is not None
        budget = run.budget
        rng = np.random.default_rng(run.seed)
        placement = Neighbourhood(run.task, run.cost, start)
        now_ms = first_ms = run.incumbent.cost_ms
        in_vain = 0
        while queries.left and in_vain < _DRAWS_IN_VAIN:
            budget.check()
            share = max(queries.asked / queries.limit, budget.spent)
            temperature = START_TEMPERATURE ** (1 - share) * END_TEMPERATURE**share * first_ms
            changes = self._draw(placement, run.task.num_devices, rng)
            changes = changes.take(placement.are_allowed(changes))
            changes = changes.take(slice(queries.take(len(changes.given))))
            in_vain = 0 if len(changes.given) else in_vain + 1
            if in_vain:
                continue
            costs = placement.costs_ms(changes)
            accepted = costs - now_ms <= temperature * rng.exponential(size=len(costs))
            if accepted.any():
                first = int(accepted.argmax())
                placement.make(changes, first)
                now_ms = float(costs[first])
                run.incumbent.update(placement.plan_maker(), now_ms)

    def _draw(self, placement: Neighbourhood, devices: int, rng: np.random.Generator) -> Changes:
        """Draw changes; some may not be allowed."""
        count = len(placement.shards)
        given = rng.integers(count, size=_DRAWN_TOGETHER)
        other = rng.integers(count, size=_DRAWN_TOGETHER)
        swaps = rng.random(_DRAWN_TOGETHER) < _SWAPS
        target = np.where(swaps, placement.devices[other], rng.integers(devices, size=_DRAWN_TOGETHER))
        return Changes(given, target, np.where(swaps, other, -1), np.zeros(_DRAWN_TOGETHER, dtype=np.bool_))


class RandomSearch(QuerySearch):
    """Draw table-wise plans as `random` does, and keep the cheapest.

    Every search should be compared with random search at the same number of queries.

    Args:
        queries: maximum number of plans that the oracle prices. When None: unlimited with a time limit, else 50 per
            table, or 32 with a measured cost.

    Raises:
        InputError: `queries` is not a positive integer.
    """

    def first_plan(self, run: SearchRun, queries: Queries) -> ShardingPlan | None:  # noqa: ARG002
        """Return None, so that the search compares only random plans."""
        return None

    def ask(self, run: SearchRun, queries: Queries, start: ShardingPlan | None) -> None:  # noqa: ARG002
        """See `QuerySearch`.

        Raises:
            NoFeasiblePlanError: every plan drawn ran out of memory.
        """
        task = run.task
        rng = np.random.default_rng(run.seed)
        prices = PlacementPrices(task, run.cost, [Shard.whole(table, 0) for table in task.tables])
        together = _PLANS_TOGETHER if run.cost.deterministic else 1
        in_vain = 0
        while queries.left and in_vain < _PLANS_IN_VAIN:
            # The largest of independent uniform numbers is at each of the devices with room with the same probability.
            drawn = draw_placements(task, together, rng.random)
            in_vain = 0 if len(drawn) else in_vain + together
            drawn = drawn[: queries.take(len(drawn))]
            if len(drawn):
                placements = drawn[:, None, :] == np.arange(task.num_devices)[:, None]
                totals = prices.totals(placements)
                best = int(totals.argmin())
                run.incumbent.update(functools.partial(prices.plan, placements[best]), float(totals[best]))
            if not run.budget.left_s:
                break
        if run.incumbent.cost_ms == float("inf"):
            raise NoFeasiblePlanError(f"{_PLANS_IN_VAIN} random placements of whole tables all ran out of memory")


def draw_placements(task: ShardingTask, count: int, scores: Callable[[tuple[int, ...]], Floats]) -> Ints:
    """Draw placements of whole tables, and leave out those that run out of memory.

    Tables are placed in descending order of size, each on the device with room that has the largest score. `scores`
    draws scores of a given shape, (count, D). Returns the device of every table, (P, T) with P up to `count`.
    """
    sizes = np.array([task.table_bytes(table) for table in task.tables])
    room = np.tile(np.array(task.capacity_bytes, dtype=np.int64), (count, 1))
    devices = np.zeros((count, task.num_tables), dtype=np.int64)
    complete = np.ones(count, dtype=np.bool_)
    rows = np.arange(count)
    for table in (-sizes).argsort(kind="stable").tolist():
        fits = room >= sizes[table]
        chosen = np.where(fits, scores(fits.shape), -np.inf).argmax(axis=1)
        complete &= fits[rows, chosen]
        devices[:, table] = chosen
        room[rows, chosen] -= sizes[table]
    return devices[complete]
