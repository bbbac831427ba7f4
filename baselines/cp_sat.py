"""CpSat: constraint programming (OR-Tools) on a linear estimate of the oracle; and the cheapest linear assignment."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from baselines.greedy import place_greedily
from neuroshard.packing import pack_units
from neuroshard.plus.pricing import EstimatedPricing
from neuroshard.shard_table import ShardTable, plan_of_units, units_of
from neuroshard.solver import ColumnSolver
from shardgym.arguments import check_instance, check_int
from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.links import LinkPrices, link_prices
from shardgym.errors import InputError, NoFeasiblePlanError, import_extra
from shardgym.incumbent import Budget, Incumbent
from shardgym.plan import COLUMN_UNIT, ShardingPlan
from shardgym.task import ELEMENT_BYTES, ShardingTask
from shardgym.ties import quantized

#: CP-SAT counts in integers: what all tables cost together becomes this many.
_RESOLUTION = 10**9
#: Effort of the cheapest assignment, in the units of `CpSat.effort`.
_ASSIGNMENT_EFFORT = 1.0
#: Plans of one round that the oracle evaluates: the last ones that the solver found.
_PLANS_PER_ROUND = 16
#: Tables that cost less than this share of a device's even load are never cut.
_WORTH_CUTTING = 0.1


class CpSat(ColumnSolver):
    """Minimises the slowest device's time under a linear estimate of the oracle, by CP-SAT of OR-Tools.

    The estimate is that of `neuroshard_plus` for costs other than the simulator (`EstimatedPricing`): what each shard
    takes alone, added up and corrected by evaluated plans, and the link model for exchanges. Memory limits are exact.
    Devices that are alike are told apart by the costliest table that they hold, so that no placement is looked at twice
    under other device numbers. The oracle evaluates the plans that the solver finds one after another, and its best one
    is returned. In every further round the estimate is fitted to these plans, too.

    For small tasks the optimum of the estimate is found and proven; on large ones the search ends after a fixed effort.

    Example:
        >>> plan = CpSat(halvings=1).solve(task, cost)                     # doctest: +SKIP

    Args:
        halvings: how often a costly table's columns may be halved at most; 0 keeps tables whole.
        rounds: how often the estimate is fitted and minimised.
        effort: deterministic time of all rounds together where there is no time limit, in CP-SAT's units of one or
            two seconds; the same effort gives the same plan on a machine of any speed.

    Raises:
        InputError: a setting is out of range or of another type.
        MissingDependencyError: OR-Tools is not installed.
    """

    def __init__(self, halvings: int = 0, rounds: int = 4, effort: float = 1.0) -> None:
        self.halvings = check_int("halvings", halvings)
        self.rounds = check_int("rounds", rounds, 1)
        if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0 < effort < float("inf"):
            raise InputError(f"effort must be a number above 0, got {effort!r}")
        self.effort = float(effort)
        _import_cp_model()

    def warm_up(self, task: ShardingTask, cost: CostModel) -> None:
        """Nothing is compiled."""

    def search(self, shards: ShardTable, cost: CostModel, seed: int, budget: Budget, incumbent: Incumbent) -> None:
        """Fit the estimate to evaluated plans, minimise it, have its plans evaluated, and so on.

        Raises:
            NoFeasiblePlanError: no plan with tables whole, or halved as often as allowed, is feasible.
            MeasurementError: `cost` has no time for a shard alone on a device.
        """
        pricing = EstimatedPricing(shards, cost, 0.0, budget)
        evaluated = _Evaluated(pricing, incumbent)
        initial = [incumbent.plan()] if incumbent.cost_ms < math.inf else []
        evaluated.offer(_starts(shards, pricing, initial))
        for rounds_left in range(self.rounds, 0, -1):
            budget.check()
            model = _PlacementModel(shards, pricing, self.halvings)
            # A tenth is for building the model and evaluating the plans.
            limit_s = 0.9 * budget.left_s / rounds_left if budget.limited else None
            if not evaluated.offer(model.solve(evaluated.best, seed, self.effort / self.rounds, limit_s)):
                return

    def pack(self, shards: ShardTable) -> ShardingPlan:
        """Place whole tables by bytes; where they may be cut, pack pieces."""
        if self.halvings:
            return plan_of_units(shards, pack_units(shards))
        return place_greedily(shards.task, shards.bytes[shards.whole].tolist())


class _Evaluated:
    """Placements that the oracle has evaluated, which the estimate learns from.

    Attributes:
        best: the cheapest one as units of each table on each device, shape (D, T); None before the first.
    """

    def __init__(self, pricing: EstimatedPricing, incumbent: Incumbent) -> None:
        self._pricing = pricing
        self._incumbent = incumbent
        self._seen: set[bytes] = set()
        self._best_ms = float("inf")
        self.best: Ints | None = None

    def offer(self, placements: list[Ints]) -> bool:
        """Have placements evaluated that were not before, and say whether there were any."""
        new = list({units.tobytes(): units for units in placements if units.tobytes() not in self._seen}.values())
        if not new:
            return False
        costs = self._incumbent.offer(*(plan_of_units(self._pricing.shards, units) for units in new))
        self._pricing.learn(new, costs)
        self._seen |= {units.tobytes() for units in new}
        for units, answer in zip(new, costs, strict=True):
            total_ms = float(quantized(answer.total_ms))
            if total_ms < self._best_ms:
                self.best = units
                self._best_ms = total_ms
        return True


def _starts(shards: ShardTable, pricing: EstimatedPricing, initial: list[ShardingPlan]) -> list[Ints]:
    """Return placements to learn from: those of given plans, and greedy ones that balance time, width and bytes."""
    plans = list(initial)
    for figure in (pricing.row_ms.sum(axis=1), shards.columns, shards.bytes):
        with contextlib.suppress(NoFeasiblePlanError):
            plans.append(place_greedily(shards.task, figure[shards.whole].tolist()))
    found = [units_of(shards, plan) for plan in plans]
    return [units for units in found if units is not None]


class _PlacementModel:
    """The linear estimate as a CP-SAT model: how many pieces of each table are on each device.

    A table is whole, or in 2, 4, ... equal pieces; each of these ways is a row of the shard table and a number of
    pieces.

    Args:
        shards: of the task.
        pricing: the estimate.
        halvings: how often a table is halved at most.
    """

    def __init__(self, shards: ShardTable, pricing: EstimatedPricing, halvings: int) -> None:
        cp_model = _import_cp_model()
        self._shards = shards
        self._model = cp_model.CpModel()
        task = shards.task
        self._links = link_prices(task.topology, task.batch_size, ELEMENT_BYTES[task.precision])
        self._alike = _alike_devices(task, self._links)
        rank = {device: n for alike in self._alike for n, device in enumerate(alike)}
        passes_ms = np.maximum(pricing.row_ms, 0.0)
        ms = passes_ms.sum(axis=1)
        order = np.argsort(-ms[shards.whole], kind="stable")
        worth_ms = _WORTH_CUTTING * float(ms[shards.whole].sum()) / task.num_devices
        #: Per way to cut a table: row and number of pieces; and the variables, one per device.
        self._ways: list[tuple[int, int]] = []
        self._pieces: list[list[Any]] = []
        reach = 0
        for table in order.tolist():
            rows = [int(shards.whole[table])]
            is_large = int(shards.bytes[rows[0]]) > min(task.capacity_bytes) * _WORTH_CUTTING
            while len(rows) <= halvings and shards.halves[rows[-1]] >= 0 and (is_large or ms[rows[0]] > worth_ms):
                rows.append(int(shards.halves[rows[-1]]))
            reach += 2 ** (len(rows) - 1)
            chosen = [self._model.new_bool_var("") for _ in rows] if len(rows) > 1 else [1]
            if len(rows) > 1:
                self._model.add_exactly_one(chosen)
            for level, row in enumerate(rows):
                count = 2**level
                most = [count if rank[device] < reach else 0 for device in range(task.num_devices)]
                places = [self._model.new_int_var(0, limit, "") for limit in most]
                self._model.add(sum(places) == count * chosen[level])
                self._ways.append((row, count))
                self._pieces.append(places)
        self._add_memory()
        self._minimise(passes_ms, pricing.comm_factor, ids_hidden=pricing.ids_hidden)

    def solve(self, hint: Ints | None, seed: int, effort: float, time_limit_s: float | None) -> list[Ints]:
        """Return the last placements found, each better than those before by the estimate; each of shape (D, T).

        Raises:
            NoFeasiblePlanError: there is none.
        """
        if hint is not None:
            self._hint(hint)
        found: list[list[list[int]]] = []

        def keep(value: Callable[[Any], int]) -> None:
            found.append([[int(value(piece)) for piece in places] for places in self._pieces])

        if _search(self._model, keep, seed, effort, time_limit_s) == "INFEASIBLE":
            cut = "with tables whole" if all(count == 1 for _, count in self._ways) else "with tables halved as allowed"
            raise NoFeasiblePlanError(f"no plan {cut} fits into memory (proven); more halvings may help")
        return [self._units(counts) for counts in found[-_PLANS_PER_ROUND:]]

    def _on(self, device: int, weights: Ints) -> Any:
        """Return the sum of some integer per row over what a device holds."""
        return sum(
            int(weights[row]) * places[device] for (row, _), places in zip(self._ways, self._pieces, strict=True)
        )

    def _add_memory(self) -> None:
        unit = int(np.gcd.reduce(self._shards.bytes[[row for row, _ in self._ways]]))
        for device, memory in enumerate(self._shards.task.capacity_bytes):
            self._model.add(self._on(device, self._shards.bytes // unit) <= min(memory, 2**62) // unit)

    def _minimise(self, passes_ms: Floats, comm_factor: float, *, ids_hidden: bool) -> None:
        """Minimise the time until the last device enters the forward exchange plus the longest time from then on.

        See `EstimatedPricing.totals`. Where ids are hidden, the former is compute and transfer of gradients, the latter
        the transfer of pooled values; else forward compute, and both transfers and backward compute.

        Args:
            passes_ms: forward and backward compute of rows, shape (R, 2).
            comm_factor: by which transfers are multiplied.
            ids_hidden: how a step adds up.
        """
        task = self._shards.task
        scale = _RESOLUTION / max(float(passes_ms[self._shards.whole].sum()), 1e-9)
        most = 64 * _RESOLUTION
        last_ready = self._model.new_int_var(0, most, "")
        longest_rest = self._model.new_int_var(0, most, "")
        features = np.array([table.num_features for table in task.tables])
        units = self._shards.columns // COLUMN_UNIT * features[self._shards.tables]
        links = self._links
        own = [self._model.new_int_var(0, int(units[self._shards.whole].sum()), "") for _ in range(task.num_devices)]
        forward, backward = np.round(passes_ms * scale).astype(np.int64).T
        for device, width in enumerate(own):
            self._model.add(width == self._on(device, units))
        for device, width in enumerate(own):
            domain = links.domains[device]
            others = [
                sum(w for d, w in enumerate(own) if links.domains[d] == domain and d != device),
                sum(w for d, w in enumerate(own) if links.domains[d] != domain),
            ]
            transfer = self._model.new_int_var(0, most, "")
            for kind in range(2):
                latency, sent, received = (
                    round(comm_factor * scale * float(factor * of_kind[kind, device]))
                    for factor, of_kind in (
                        (1, links.latency_ms), (COLUMN_UNIT, links.sent_ms), (COLUMN_UNIT, links.received_ms),
                    )
                )  # fmt: skip
                self._model.add(transfer >= latency + sent * width)
                self._model.add(transfer >= latency + received * others[kind])
            if ids_hidden:
                self._model.add(last_ready >= self._on(device, forward + backward) + transfer)
                self._model.add(longest_rest >= transfer)
            else:
                self._model.add(last_ready >= self._on(device, forward))
                self._model.add(longest_rest >= 2 * transfer + self._on(device, backward))
        self._model.minimize(last_ready + longest_rest)

    def _hint(self, units: Ints) -> None:
        """Suggest a placement, its devices numbered as the model numbers those that are alike."""
        tables = self._shards.tables
        renamed = self._in_order_of_tables(units)
        for (row, count), places in zip(self._ways, self._pieces, strict=True):
            on_device = renamed[:, tables[row]]
            size = int(self._shards.columns[row]) // COLUMN_UNIT
            fits = (on_device % size == 0).all()
            is_first = count == 1 or not (on_device % (2 * size) == 0).all()
            for device, place in enumerate(places):
                self._model.add_hint(place, int(on_device[device]) // size if fits and is_first else 0)

    def _in_order_of_tables(self, units: Ints) -> Ints:
        """Number devices that are alike by the first table, costliest first, that they hold."""
        order = list(dict.fromkeys(int(self._shards.tables[row]) for row, _ in self._ways))
        holds = units[:, order] > 0
        first = np.where(holds.any(axis=1), holds.argmax(axis=1), len(order))
        renamed = units.copy()
        for alike in self._alike:
            renamed[alike] = units[sorted(alike, key=lambda device: (first[device], device))]
        return renamed

    def _units(self, counts: list[list[int]]) -> Ints:
        units = np.zeros((self._shards.task.num_devices, self._shards.task.num_tables), dtype=np.int64)
        for (row, _), on_device in zip(self._ways, counts, strict=True):
            units[:, self._shards.tables[row]] += np.array(on_device) * (int(self._shards.columns[row]) // COLUMN_UNIT)
        return units


def cheapest_assignment(task: ShardingTask, costs: Floats, *, seed: int = 0) -> Ints:
    """Return the devices of whole tables that minimise added costs within the memory of every device.

    This is the assignment that SurCo deploys with. The optimum is proven, unless the effort ends first.

    Args:
        task: the task.
        costs: of every table on every device, any finite numbers, shape (T, D); quantized, see `shardgym.ties`.
        seed: of the search.

    Returns:
        Shape (T,).

    Raises:
        InputError: costs of another shape, or not finite.
        NoFeasiblePlanError: no such assignment exists, or none was found.
        MissingDependencyError: OR-Tools is not installed.
    """
    check_instance("task", task, ShardingTask)
    shape = task.num_tables, task.num_devices
    if np.shape(costs) != shape or not np.isfinite(costs).all():
        raise InputError(f"costs: expected finite numbers of shape {shape}, got shape {np.shape(costs)}")
    cp_model = _import_cp_model()
    costs = quantized(costs)
    sizes = np.array([task.table_bytes(table) for table in task.tables], dtype=np.int64)
    cheapest: Ints = np.argmin(costs, axis=1)
    used = [int(sizes[cheapest == device].sum()) for device in range(task.num_devices)]
    if all(held <= memory for held, memory in zip(used, task.capacity_bytes, strict=True)):
        return cheapest
    model = cp_model.CpModel()
    x = [[model.new_bool_var("") for _ in range(task.num_devices)] for _ in range(task.num_tables)]
    for on_device in x:
        model.add_exactly_one(on_device)
    unit = int(np.gcd.reduce(sizes))
    for device, memory in enumerate(task.capacity_bytes):
        model.add(sum(int(size) // unit * row[device] for size, row in zip(sizes, x, strict=True)) <= memory // unit)
    # Only differences on a table matter.
    excess = costs - costs.min(axis=1, keepdims=True)
    scaled = np.round(excess / (float(excess.max()) or 1.0) * _RESOLUTION).astype(np.int64).tolist()
    model.minimize(sum(c * v for cs, vs in zip(scaled, x, strict=True) for c, v in zip(cs, vs, strict=True)))
    found: list[list[int]] = []

    def keep(value: Callable[[Any], int]) -> None:
        found.append([[bool(value(variable)) for variable in row].index(True) for row in x])

    _search(model, keep, seed, _ASSIGNMENT_EFFORT, None)
    if not found:
        raise NoFeasiblePlanError("no assignment of whole tables that fits into memory was found")
    return np.array(found[-1], dtype=np.int64)


def _alike_devices(task: ShardingTask, links: LinkPrices) -> list[list[int]]:
    """Group devices that may be swapped in any plan: same memory, same links, in one domain or each in its own."""
    sizes = np.bincount(links.domains)
    groups: dict[tuple[Any, ...], list[int]] = {}
    for device, memory in enumerate(task.capacity_bytes):
        domain = int(links.domains[device])
        prices = np.concatenate([links.latency_ms[:, device], links.sent_ms[:, device], links.received_ms[:, device]])
        groups.setdefault((memory, domain if sizes[domain] > 1 else -1, *prices.tolist()), []).append(device)
    return list(groups.values())


def _search(
    model: Any, keep: Callable[[Callable[[Any], int]], None], seed: int, effort: float, time_limit_s: float | None
) -> str:
    """Run CP-SAT on one thread, which is deterministic, and return its status.

    Args:
        model: a `CpModel`.
        keep: called with every improvement; it is given a function from variables to values.
        seed: of the search.
        effort: deterministic time.
        time_limit_s: replaces the effort.
    """
    cp_model = _import_cp_model()

    class Recorder(cp_model.CpSolverSolutionCallback):  # type: ignore[misc, name-defined]
        def on_solution_callback(self) -> None:
            keep(self.value)

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    # An interrupt is Python's to handle: CP-SAT would end this search and go on with the next task.
    solver.parameters.catch_sigint_signal = False
    if time_limit_s is None:
        solver.parameters.max_deterministic_time = effort
    else:
        solver.parameters.max_time_in_seconds = max(time_limit_s, 1e-3)
    return str(solver.status_name(solver.solve(model, Recorder())))


def _import_cp_model() -> Any:
    return import_extra("ortools.sat.python.cp_model", "cp_sat", extra="exact")
