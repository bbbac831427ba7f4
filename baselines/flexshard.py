"""FlexShard: every table's rows in tiers by access frequency, and the choice of cut points."""

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
#: Shares of the memory that are tried if rounding overfills a device.
_BUDGETS = (1.0, 0.99, 0.97, 0.9)


class Choices(NamedTuple):
    """The n candidate pairs of cut points of one table, and the time and memory of each on every device."""

    tiers: Ints  #: rows of both cut points, shape (n, 2)
    inside_ms: Floats  #: all-to-alls over links inside of a node, shape (n,)
    between_ms: Floats  #: all-to-alls over links between nodes, shape (n,)
    others_ms: Floats  #: other exchanges: gradients of copies, and partial sums of pooled tables, shape (n,)
    num_bytes: Floats  #: mean memory over devices, shape (n,)


def choices_of(task: ShardingTask, table: EmbeddingTable) -> Choices:
    """Return candidate pairs of cut points for a table, with their expected times and bytes.

    The estimate spreads a tier's load evenly over its devices, and leaves out latencies, because tables share
    collectives. Rows of pooled tables leave their device as partial sums, which are as wide for few rows as for many.
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
    """Return the fastest cut points of every table within a memory budget, or None if no cut points fit.

    All tables pay the same price per byte, and each takes the pair of cut points with the least time plus price. A
    bisection finds the lowest price at which the tables fit, so that the last byte of every table saves equally much
    time. `budget` is the mean bytes per device. `share` weighs links inside nodes against links between nodes. Both
    work at the same time, and the slower kind decides, which is known only once all tables are cut.
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
    """Return the time of the exchanges with these cut points by the times of `choices`, in ms.

    Each kind of copies adds an all-reduce, with the latency of links between nodes if there are several nodes.
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
    """Hot rows on every device, warm rows on one device of each node, cold rows on a single device.

    FlexShard (Sethi et al., arXiv 2301.02959) replicates rows of unpooled tables by their access frequency, within
    memory, with nodes in mind. We know only the paper's abstract, which says no more. The steps are our own:

    1. Candidate cut points of every table are spaced by the logarithm of their rows. Their expected times follow from
       row probabilities (`shardgym.tables.row_access`), the topology's links, and the dense gradients of copies.
    2. A bisection lowers a common price of memory until copies fill the memory (`best_tiers`). It is repeated for five
       weights of links inside and between nodes, because the slower kind decides.
    3. Tiers are cut into stripes over the devices, so that all devices get about equally many lookups (`tier_plan`).
    4. The oracle chooses among the five plans and one without copies if it prices tiers, as `replay` does. Otherwise
       the expected times choose.

    If even cuts do not fit, as on devices of unequal memory, rows are cut in proportion to memory, without copies.

    Rows must be in order of frequency (`ZipfIds.row_order="by_frequency"`, or `RangeIds` with falling shares). If the
    order is unknown, all rows of a table count as equally likely. A tier has all rows of a pooled table or none.
    """

    def solve(self, task: ShardingTask, cost: CostModel, seed: int = 0) -> ShardingPlan:
        """Return the best plan in tiers, see `Solver`; `seed` is ignored."""
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
    """Return a plan that cuts every table by rows, in proportion to the devices' memory."""
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
    """Raise `InputError` if a table's popular rows are known not to come first."""
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
            f"table '{table.name}': its popular rows do not come first, but tiers cut rows in order of frequency: "
            "remap its rows, and set row_order='by_frequency'"
        )
