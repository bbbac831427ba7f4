"""RecShard: rows of tables by frequency into the memory of devices and hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import math
from collections.abc import Sequence

from baselines.recshard.program import assign
from neuroshard.row_splits import Split, splits_of
from shardgym.arguments import check_instance, check_int
from shardgym.costs.additive import AdditiveCosts
from shardgym.costs.base import CostModel
from shardgym.errors import InputError, NoFeasiblePlanError
from shardgym.feasibility import check_possible
from shardgym.incumbent import Budget, Incumbent, OutOfTime
from shardgym.plan import ShardingPlan
from shardgym.shard import Shard
from shardgym.solver import Observer, check_solve_arguments
from shardgym.task import ShardingTask

#: Pairs of tables that are tried at most to make the plan cheaper.
_MOST_SWAPS = 2000
#: A change has to bring more than this share of the cost.
_LEAST_GAIN = 1e-9


class RecShard:
    """Puts each table on one device, and of each the popular rows into its memory, the others into the host's.

    Of the paper (Sethi et al., "RecShard: Statistical Feature-Based Memory Optimization for Industry-Scale Neural
    Recommendation", ASPLOS 2022), of which its abstract is known here and no code: rows are split by their frequencies
    over memory tiers, with the bandwidth of each, by one mixed-integer program over all tables and devices, so that the
    slowest device is fastest. The rest is ours:

    - What a split takes, the oracle says; not bytes over bandwidth. Each table has some 30 splits, of which those are
      kept that save the most time per byte (`neuroshard/row_splits.py`).
    - The program mixes splits freely (`program.py`). On each device, memory then goes to where it saves the most time.
    - Tables are moved and swapped between devices as long as that makes the plan cheaper.
    - Where rows are ordered by frequency, a table is cut: popular rows have kernel `fused`, the others `fused_uvm`.
      Elsewhere the paper remaps rows; here the table has kernel `fused_uvm_caching`, with a cache of as many rows.

    With an oracle that prices no memory of hosts, or hosts without memory, all rows are in the memory of devices.

    Example:
        >>> plan = RecShard(row_cuts=False).solve(task, make_cost("gpu"))  # doctest: +SKIP

    Args:
        row_cuts: whether tables may be cut by rows. TorchRec has one kernel for each table: without cuts, plans can be
            exported to it.
        gap: relative gap at which the program may end.
        nodes: of its search tree at most, so that plans do not depend on the machine's speed.

    Raises:
        InputError: a setting is out of range or of another type.
    """

    def __init__(self, *, row_cuts: bool = True, gap: float = 0.02, nodes: int = 200) -> None:
        check_instance("row_cuts", row_cuts, bool)
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < math.inf:
            raise InputError(f"gap must be a number from 0 on, got {gap!r}")
        self.row_cuts = row_cuts
        self.gap = float(gap)
        self.nodes = check_int("nodes", nodes, 1)

    def check_ready(self, cost: CostModel) -> None:
        """Raise `InputError` where the cost does not add up over shards."""
        if cost.additive() is None:
            raise InputError(
                f"recshard needs a cost that adds up over shards, and '{cost.name}' does not: plan with 'gpu' or "
                "'roofline', which price the memory of hosts, and score the plan with it"
            )

    def solve(
        self,
        task: ShardingTask,
        cost: CostModel,
        seed: int = 0,
        *,
        time_limit_s: float | None = None,
        initial_plan: ShardingPlan | None = None,
        observer: Observer | None = None,
    ) -> ShardingPlan:
        """Return the plan; `seed` makes no difference.

        Raises:
            NoFeasiblePlanError: whole tables do not fit, or not on the devices and hosts together.
            InfeasiblePlanError: `initial_plan` is infeasible.
            InputError: `initial_plan` is for another task, or `cost` does not add up or cannot price tasks of this
                kind; or an argument is of another kind.
        """
        check_solve_arguments(task, cost, seed, time_limit_s=time_limit_s, initial_plan=initial_plan, observer=observer)
        self.check_ready(cost)
        in_host = cost.host_memory and task.topology.host_memory_bytes > 0
        check_possible(task, in_host=in_host)
        budget = Budget(time_limit_s)
        incumbent = Incumbent(task, cost, observer)
        if initial_plan is not None:
            initial_plan.validate(task)
            incumbent.offer(initial_plan)
        costs = cost.additive()
        assert costs is not None
        search = _Search(task, costs, splits_of(task, costs, in_host=in_host, row_cuts=self.row_cuts), incumbent)
        search.offer(search.greedy())
        limit_s = budget.left_s if budget.limited else math.inf
        if limit_s > 0:
            search.offer(
                assign(
                    task, search.splits, search.column_ms, gap=self.gap, nodes=self.nodes, time_limit_s=limit_s
                )
            )  # fmt: skip
        with contextlib.suppress(OutOfTime):
            search.improve(budget)
        if incumbent.cost_ms == math.inf:
            raise NoFeasiblePlanError(
                "recshard found no plan: whole tables on single devices, their rows in the memory of the device or the "
                "host, do not fit; what helps: more memory, or a solver that cuts columns"
            )
        return incumbent.plan()


class _Search:
    """Assignments of tables to devices, each with the splits that suit it best.

    Args:
        task: the task.
        costs: of its shards.
        splits: of each table.
        incumbent: that plans are offered to.
    """

    def __init__(
        self, task: ShardingTask, costs: AdditiveCosts, splits: list[list[Split]], incumbent: Incumbent
    ) -> None:
        self._task = task
        self._incumbent = incumbent
        self.splits = splits
        self._best: list[int] | None = None
        links, element_bytes = costs.all_to_all_links(task)
        devices = task.num_devices
        outside = max(0, devices - links.fast_domain_size)
        per_peer = task.batch_size * element_bytes / devices * 1e3
        #: What a device takes to send and receive one column of the whole batch, forward and backward.
        self.column_ms = 2 * per_peer * max(
            (devices - outside - 1) / links.intra_bandwidth, outside / links.inter_bandwidth
        )  # fmt: skip

    def offer(self, devices: list[int] | None) -> bool:
        """Offer the plan of an assignment; returns whether it is the best so far."""
        shards = None if devices is None else self._filled(devices)
        if shards is None:
            return False
        before = self._incumbent.cost_ms
        self._incumbent.offer(ShardingPlan.of(self._task, shards))
        if self._incumbent.cost_ms < before * (1 - _LEAST_GAIN):
            self._best = devices
            return True
        return False

    def greedy(self) -> list[int] | None:
        """Return the longest tables first, each on the device that takes least by then, in its fastest split.

        Only the room that tables need at least is counted. None where that fails.
        """
        task = self._task
        topology = task.topology
        busy = [0.0] * task.num_devices
        room = list(task.capacity_bytes)
        host_room = [topology.host_memory_bytes] * topology.num_hosts
        devices = [0] * task.num_tables
        for n in sorted(range(task.num_tables), key=lambda n: (-self.splits[n][0].ms, n)):
            least, fastest = self.splits[n][0], self.splits[n][-1]
            able = [
                d
                for d in range(task.num_devices)
                if least.device_bytes <= room[d] and least.host_bytes <= host_room[topology.host_of(d)]
            ]
            if not able:
                return None
            device = min(able, key=lambda d: (busy[d], d))
            devices[n] = device
            busy[device] += fastest.ms + self._exchange_ms(n)
            room[device] -= least.device_bytes
            host_room[topology.host_of(device)] -= least.host_bytes
        return devices

    def improve(self, budget: Budget) -> None:
        """Move tables of the slowest device, or swap them with others, as long as that makes the plan cheaper.

        Raises:
            OutOfTime: the budget is spent.
        """
        left = _MOST_SWAPS
        while self._best is not None:
            devices = self._best
            slowest = self._slowest(devices)
            for changed in self._changes(devices, slowest):
                budget.check()
                left -= 1
                if left < 0:
                    return
                if self.offer(changed):
                    break
            else:
                return

    def _changes(self, devices: Sequence[int], slowest: int) -> list[list[int]]:
        """Return assignments in which a table leaves a device, alone or for another, the longest first."""
        found = []
        here = sorted((n for n, d in enumerate(devices) if d == slowest), key=lambda n: -self.splits[n][-1].ms)
        others = [d for d in range(self._task.num_devices) if d != slowest]
        for n in here:
            for device in others:
                moved = list(devices)
                moved[n] = device
                found.append(moved)
        for n in here:
            for other, device in enumerate(devices):
                if device != slowest:
                    swapped = list(devices)
                    swapped[n], swapped[other] = device, slowest
                    found.append(swapped)
        return found

    def _slowest(self, devices: Sequence[int]) -> int:
        """Return the device that takes longest with the splits that it has room for."""
        busy = [0.0] * self._task.num_devices
        for n, step in enumerate(self._steps(devices) or [0] * len(devices)):
            busy[devices[n]] += self.splits[n][step].ms + self._exchange_ms(n)
        return max(range(len(busy)), key=lambda d: (busy[d], -d))

    def _exchange_ms(self, table: int) -> float:
        of = self._task.tables[table]
        return self.column_ms * of.embedding_dim * of.num_features

    def _filled(self, devices: Sequence[int]) -> list[Shard] | None:
        """Return the shards of an assignment; None where memory is exceeded."""
        steps = self._steps(devices)
        if steps is None:
            return None
        return [
            dataclasses.replace(shard, devices=(device,))
            for n, (step, device) in enumerate(zip(steps, devices, strict=True))
            for shard in self.splits[n][step].shards
        ]

    def _steps(self, devices: Sequence[int]) -> list[int] | None:
        """Return the split of each table: memory of a device goes to where it saves the most time; None if it lacks."""
        task = self._task
        steps = [0] * len(devices)
        room = list(task.capacity_bytes)
        host_room = [task.topology.host_memory_bytes] * task.topology.num_hosts
        gains: list[tuple[float, int]] = []
        for n, device in enumerate(devices):
            room[device] -= self.splits[n][0].device_bytes
            host_room[task.topology.host_of(device)] -= self.splits[n][0].host_bytes
            gains.append((-self._saving(n, 0), n))
        if min(room) < 0:
            return None
        heapq.heapify(gains)
        while gains:
            _, n = heapq.heappop(gains)
            device = devices[n]
            if steps[n] + 1 == len(self.splits[n]):
                continue
            now, after = self.splits[n][steps[n] : steps[n] + 2]
            more = after.device_bytes - now.device_bytes
            if more > room[device]:
                continue
            room[device] -= more
            host_room[task.topology.host_of(device)] -= after.host_bytes - now.host_bytes
            steps[n] += 1
            heapq.heappush(gains, (-self._saving(n, steps[n]), n))
        return None if min(host_room) < 0 else steps

    def _saving(self, table: int, step: int) -> float:
        """Return the time that the next split of a table saves per byte; 0 for the last one."""
        if step + 1 == len(self.splits[table]):
            return 0.0
        now, after = self.splits[table][step : step + 2]
        return (now.ms - after.ms) / max(after.device_bytes - now.device_bytes, 1)
