"""Exhaustive search of tiny tasks, up to the order of interchangeable devices."""

import functools
import itertools
import math

import numpy as np

from baselines.placement_prices import PlacementPrices
from baselines.queries import IncumbentSearch, SearchRun
from shardgym.arrays import Bools, Floats, Ints
from shardgym.errors import InputError, NoFeasiblePlanError, check_int
from shardgym.plans.plan import ShardingPlan
from shardgym.plans.shard import COLUMN_UNIT, Shard
from shardgym.tasks.task import ShardingTask

#: Plans priced together.
_PRICED_TOGETHER = 2048


class Exhaustive(IncumbentSearch):
    """Try every plan of a tiny task, and return the one that the oracle finds cheapest.

    The search places whole tables, or tables cut by columns into up to `parts` equal parts; parts of one table on one
    device form one shard. Devices with equal memory, links and samples are interchangeable: the search tries only one
    of the plans that differ by their order.

    Args:
        parts: maximum number of equal parts per table. Each table is cut into the largest number of parts up to this
            that are multiples of 4 columns wide. 1 keeps tables whole; 4 tries every cut of tables up to 16 columns.
        limit: maximum number of placements of a task, before the search removes infeasible and interchangeable ones.

    Raises:
        InputError: a setting is not a positive integer.
    """

    def __init__(self, parts: int = 1, limit: int = 1_000_000) -> None:
        self.parts = check_int("parts", parts, 1)
        self.limit = check_int("limit", limit, 1)

    def search(self, run: SearchRun, start: ShardingPlan | None) -> None:
        """See `IncumbentSearch`; a time limit may end the search before it has tried all plans.

        Raises:
            InputError: the task has more placements than `limit`.
        """
        task = run.task
        parts = [self._parts_of(table.embedding_dim) for table in task.tables]
        count = math.prod(math.comb(task.num_devices + n - 1, n) for n in parts)
        if count > self.limit:
            number = f"{count:,}" if count < 10**12 else f"about 10^{len(str(count)) - 1}"
            raise InputError(
                f"{task.num_tables} tables on {task.num_devices} devices have {number} placements, more than the limit "
                f"of {self.limit:,}: exhaustive search is for tiny tasks; use another solver, or raise limit"
            )
        shards = [
            Shard(table.name, (0, table.num_embeddings), (0, table.embedding_dim // count * taken), (0,))
            for table, count in zip(task.tables, parts, strict=True)
            for taken in range(1, count + 1)
        ]
        allocations = enumerate_allocations(task, parts)
        if not len(allocations) and start is None:
            pieces = "whole tables" if self.parts == 1 else f"tables in up to {self.parts} parts"
            raise NoFeasiblePlanError(f"no placement of {pieces} fits into the memory of {task.num_devices} devices")
        # Candidate c of a table is c + 1 of its parts.
        table_of = np.repeat(np.arange(task.num_tables), parts)
        taken = np.concatenate([np.arange(1, count + 1) for count in parts])
        prices = PlacementPrices(task, run.cost, shards)
        for first in range(0, len(allocations), _PRICED_TOGETHER):
            held: Bools = allocations[first : first + _PRICED_TOGETHER][:, :, table_of] == taken
            totals: Floats = prices.totals(held)
            best = int(totals.argmin())
            run.incumbent.update(functools.partial(prices.plan, held[best]), float(totals[best]))
            run.budget.check()

    def _parts_of(self, columns: int) -> int:
        """Return into how many parts a table of so many columns may be cut."""
        units = columns // COLUMN_UNIT
        return max(count for count in range(1, min(self.parts, units) + 1) if units % count == 0)


def enumerate_allocations(task: ShardingTask, parts: list[int]) -> Ints:
    """Return parts of each table on each device, (P, D, T), of all allocations that fit, up to equal devices' order."""
    order, same_kind = _interchangeable(task)
    memory = np.array(task.capacity_bytes, dtype=np.int64)[order]
    # Devices are numbered by `order` until the end. An allocation stands for those that arise by swapping neighbours
    # which hold the same parts of all tables so far: the first of them takes no less of the next table than the second.
    allocations = np.zeros((1, len(order), 0), dtype=np.int64)
    room = memory[None]
    equal = same_kind[None]
    for table, count in zip(task.tables, parts, strict=True):
        # All ways to give the parts to devices, shape (O, D).
        ways = list(itertools.combinations_with_replacement(range(len(order)), count))
        options = np.zeros((len(ways), len(order)), dtype=np.int64)
        for taken in np.array(ways, dtype=np.int64).T:
            options[np.arange(len(ways)), taken] += 1
        columns = table.embedding_dim // count
        sizes = [task.block_bytes(table, table.num_embeddings, columns * n) for n in range(1, count + 1)]
        left = room[:, None] - np.array([0, *sizes])[options]
        falling = options[:, :-1] >= options[:, 1:]
        kept, option = np.nonzero((left >= 0).all(axis=2) & (falling | ~equal[:, None]).all(axis=2))
        chosen = options[option]
        allocations = np.concatenate([allocations[kept], chosen[:, :, None]], axis=2)
        room = left[kept, option]
        equal = equal[kept] & (chosen[:, :-1] == chosen[:, 1:])
    in_order = np.empty_like(allocations)
    in_order[:, order] = allocations
    return in_order


def _interchangeable(task: ShardingTask) -> tuple[Ints, Bools]:
    """Return devices with interchangeable ones side by side, shape (D,), and which equal their successor, (D - 1,)."""
    topology = task.topology
    rest = task.batch_size % task.num_devices  # so many devices have one more sample
    kinds = [
        (device // topology.fast_domain_size, memory, device < rest)
        for device, memory in enumerate(task.capacity_bytes)
    ]
    order = sorted(range(task.num_devices), key=lambda device: (kinds[device], device))
    same = [kinds[a] == kinds[b] for a, b in itertools.pairwise(order)]
    return np.array(order, dtype=np.int64), np.array(same, dtype=np.bool_)
