"""FlexShard: rows of every table in tiers by how likely they are, and where tiers are cut."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from shardgym.arrays import Floats, Ints
from shardgym.costs.base import CostModel
from shardgym.costs.links import part_of, peers_of, reduce_scatter_ms
from shardgym.costs.ties import quantized
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.evaluation.solver import check_solve_arguments
from shardgym.plans.feasibility import check_possible, plan_problems
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.row_tiers import Tiers, node_size, tier_plan
from shardgym.plans.shard import Shard
from shardgym.tables.row_access import access_by_range, distinct_by_range
from shardgym.tables.table import EmbeddingTable, RangeIds, RecordedIds, ZipfIds
from shardgym.tasks.step_memory import ID_BYTES
from shardgym.tasks.task import ELEMENT_BYTES, ShardingTask

#: Numbers of rows at which a table may be cut, evenly spaced by their logarithm.
_GRID = 96
#: Halvings of the interval in which the price of memory lies.
_BISECTIONS = 60
#: Shares of links inside of nodes in the time of an all-to-all that are tried, see `best_tiers`.
_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Of the memory, what is tried where rounding leaves a device with too much.
_BUDGETS = (1.0, 0.99, 0.97, 0.9)


class Choices(NamedTuple):
    """Pairs of cut points of one table, and what each of n pairs takes on every device."""

    tiers: Ints  #: rows of both cut points, shape (n, 2)
    inside_ms: Floats  #: all-to-alls over links inside of a node, shape (n,)
    between_ms: Floats  #: over links between nodes, shape (n,)
    others_ms: Floats  #: exchanges on top: gradients of copies, and partial sums of pooled tables, shape (n,)
    num_bytes: Floats  #: of memory, on average over the devices, shape (n,)


def choices_of(task: ShardingTask, table: EmbeddingTable) -> Choices:
    """Return the pairs of cut points of a table that are looked at, with their expected times and bytes.

    Loads are taken to be spread evenly over the devices of a tier. Latencies are left out: collectives are of all
    tables together. Rows of pooled tables leave their device as partial sums, as wide for few rows as for many.
    """
    topology = dataclasses.replace(task.topology, intra_latency_ms=0.0, inter_latency_ms=0.0)
    devices = task.num_devices
    size = node_size(task)
    rows = table.num_embeddings
    grid = np.unique(np.concatenate([[0, rows], np.geomspace(1, rows, _GRID).astype(np.int64)]))
    first, last = (index.ravel() for index in np.meshgrid(grid, grid, indexing="ij"))
    kept = first <= last if size else first == last
    if table.is_pooled:  # part of a table in a tier saves nothing
        kept &= np.isin(first, [0, rows]) & np.isin(last, [0, rows])
    first = first[kept]
    last = last[kept]
    # How often a device asks for one of the first rows, for each number of them.
    if task.dedup_ids and not table.is_pooled:
        asked = distinct_by_range(table, task.batch_size, grid, 1 / task.num_devices)
    else:
        asked = task.batch_size / task.num_devices * table.pooling_factor * access_by_range(table, grid)
    asked = np.concatenate([[0.0], np.cumsum(asked)])
    of_first, of_last = (asked[np.searchsorted(grid, cut)] for cut in (first, last))
    in_nodes = of_last - of_first
    elsewhere = asked[-1] - of_last

    row_bytes = table.embedding_dim * ELEMENT_BYTES[task.precision]
    bytes_per_id = ID_BYTES + (2 * row_bytes if not table.is_pooled else 0)  # rows go forward, gradients back
    domain = min(topology.fast_domain_size, devices)
    inside = in_nodes * (size - 1) / size if size else np.zeros(len(first))
    inside = inside + elsewhere * (domain - 1) / devices
    between = elsewhere * (devices - domain) / devices
    weights = table.embedding_dim * ELEMENT_BYTES[task.precision_of(table)]
    others = 2 * reduce_scatter_ms(topology, (first * weights).astype(np.float64))
    if size:
        others = others + 2 * reduce_scatter_ms(peers_of(topology, size), (last - first) * weights / size)
    if table.is_pooled:
        outputs = float(task.batch_size * table.num_features * row_bytes)
        others = others + 2 * reduce_scatter_ms(topology, np.where(last < rows, outputs, 0.0))
        if size:
            in_node = np.where(first < last, outputs * size / devices, 0.0)
            others = others + 2 * reduce_scatter_ms(part_of(topology, size), in_node)
    held = first + (last - first) / max(size, 1) + (rows - last) / devices
    return Choices(
        np.stack([first, last], axis=1),
        inside * bytes_per_id / topology.intra_bandwidth * 1e3,
        between * bytes_per_id / topology.inter_bandwidth * 1e3,
        others,
        held * task.block_bytes(table, rows, table.embedding_dim) / rows,
    )


def best_tiers(choices: Sequence[Choices], budget: float, share: float) -> list[Tiers] | None:
    """Return the cut points of every table that take least within a budget of memory; None where none are.

    Bytes of memory get a price, the same for all tables, and every table takes the pair of cut points with the least
    time and price. The lowest price at which all fit is found by bisection. So the last bytes of all tables save as
    much time each. `budget` is of a device, on average. `share` is that of links inside of a node in the time of an
    all-to-all; the rest is that of links between nodes. Both kinds work at the same time, and the slower one counts:
    which one that is shows when all tables are cut.
    """
    times = [c.others_ms + share * c.inside_ms + (1 - share) * c.between_ms for c in choices]

    def chosen(price: float) -> list[int]:
        return [int(quantized(ms + price * c.num_bytes).argmin()) for ms, c in zip(times, choices, strict=True)]

    def needed(found: list[int]) -> float:
        return sum(float(c.num_bytes[n]) for n, c in zip(found, choices, strict=True))

    least = [int(c.num_bytes.argmin()) for c in choices]
    if needed(least) > budget:
        return None
    best = least
    free = chosen(0.0)
    if needed(free) <= budget:
        best = free
    else:
        # Where a byte costs more than all time over one byte, nothing is copied.
        low = 0.0
        high = sum(float(ms.max()) for ms in times) + 1.0
        for _ in range(_BISECTIONS):
            price = (low + high) / 2
            found = chosen(price)
            if needed(found) <= budget:
                high = price
                best = found
            else:
                low = price
    return [Tiers(*c.tiers[n].tolist()) for n, c in zip(best, choices, strict=True)]


def expected_ms(task: ShardingTask, choices: Sequence[Choices], tiers: Sequence[Tiers]) -> float:
    """Return what the exchanges of tables with these cut points take by the times of `choices`, in ms.

    Each kind of copies has an all-reduce, whose latencies are of links between nodes where there are several.
    """
    kinds = any(cut.everywhere for cut in tiers) + any(cut.everywhere < cut.in_nodes for cut in tiers)
    one_node = task.topology.fast_domain_size >= task.num_devices
    latency_ms = task.topology.intra_latency_ms if one_node else task.topology.inter_latency_ms
    total = np.array([0.0, 0.0, 2 * kinds * latency_ms])
    for c, cut in zip(choices, tiers, strict=True):
        at = int(np.flatnonzero((c.tiers == np.array(cut)).all(axis=1))[0])
        total += [c.inside_ms[at], c.between_ms[at], c.others_ms[at]]
    return float(quantized(max(total[0], total[1]) + total[2]))


class FlexShard:
    """Hot rows on every device, warm ones on one device of each node, cold ones on one device of all.

    FlexShard (Sethi et al., arXiv 2301.02959) is for unpooled tables, of which a row travels for every id: rows are
    replicated by how likely they are, within memory, with nodes in mind. Its abstract says so much. How cut points are
    chosen and pieces are placed is ours:

    1. Every table has pairs of cut points, spaced by the logarithm of their rows. Expected times follow from the
       probability of the rows (`shardgym.tables.row_access`), the links of the topology, and dense gradients of copies.
    2. A price of memory, the same for all tables, is lowered by bisection until copies fill the memory: see
       `best_tiers`. The slower of links inside and between nodes counts, so this is done for five weights of the two.
    3. Tiers are cut into stripes, and these over devices, so that all are asked for about as much: see `tier_plan`.
    4. The oracle chooses among the five plans, and the one without copies, if it prices tiers as `replay` does;
       otherwise the expected times do.

    Where even cuts do not fit, as with devices of unlike memory, rows are cut in proportion to memory, without copies.

    Rows have to be in order of frequency (`ZipfIds.row_order="by_frequency"`, or `RangeIds` with falling shares). Where
    nobody knows the order, all rows of a table count as equally likely. Of pooled tables a tier has all rows or none,
    as partial sums are as wide for few rows as for many.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the best plan in tiers, see `Solver`; `seed` makes no difference, as nothing is drawn."""
        check_solve_arguments(task, cost, seed)
        check_possible(task)
        for table in task.tables:
            check_order(table)
        choices = [choices_of(task, table) for table in task.tables]
        plans: dict[tuple[Tiers, ...], ShardingPlan] = {}
        for share in _SHARES:
            _add_plan(plans, task, choices, share)
        without_copies = tuple(Tiers(0, 0) for _ in task.tables)
        if without_copies not in plans:
            plan = tier_plan(task, without_copies)
            if not plan_problems(task, plan.shards):
                plans[without_copies] = plan
        if not plans:
            plan = rows_by_memory(task)
            problems = plan_problems(task, plan.shards)
            if problems:
                raise NoFeasiblePlanError(f"cut by rows over all devices: {problems[0]}")
            return plan
        if cost.row_tiers:
            answers = cost.evaluate(task, list(plans.values()))
            times = [float(quantized(answer.total_ms)) for answer in answers]
        else:
            times = [expected_ms(task, choices, tiers) for tiers in plans]
        return min(zip(times, itertools.count(), plans.values(), strict=False))[2]


def _add_plan(
    plans: dict[tuple[Tiers, ...], ShardingPlan], task: ShardingTask, choices: list[Choices], share: float
) -> None:
    """Add the plan for one weight of the links, with as many copies as fit."""
    budget = task.total_capacity_bytes / task.num_devices
    for part in _BUDGETS:
        tiers = best_tiers(choices, part * budget, share)
        if tiers is None or tuple(tiers) in plans:
            return
        plan = tier_plan(task, tiers)
        if not plan_problems(task, plan.shards):
            plans[tuple(tiers)] = plan
            return


def rows_by_memory(task: ShardingTask) -> ShardingPlan:
    """Return a plan that cuts every table by rows, as many for a device as it has memory."""
    ends = np.cumsum(np.array(task.capacity_bytes, dtype=np.float64))
    shards = []
    for table in task.tables:
        edges = [0, *np.rint(table.num_embeddings * ends / ends[-1]).astype(np.int64).tolist()]
        shards += [
            Shard(table.name, rows, (0, table.embedding_dim), (device,))
            for device, rows in enumerate(itertools.pairwise(edges))
            if rows[0] < rows[1]
        ]
    return ShardingPlan.of(task, shards)


def check_order(table: EmbeddingTable) -> None:
    """Refuse a table whose popular rows are known to lie elsewhere than at its beginning."""
    ids = table.ids
    shares: tuple[float, ...] = ()
    if isinstance(ids, ZipfIds):
        ordered = ids.s == 0 or ids.row_order in (None, "by_frequency")
    else:
        if isinstance(ids, RangeIds | RecordedIds):
            shares = ids.shares if isinstance(ids, RangeIds) else ids.range_shares or ()
        ordered = all(share >= after for share, after in itertools.pairwise(shares))
    if not ordered:
        raise InputError(
            f"table '{table.name}': its popular rows are not its first ones, and tiers are cut by rows in order of "
            "frequency: remap its rows, and say so with row_order='by_frequency'"
        )
