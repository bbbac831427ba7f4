"""ReplayCost: streams of ids replayed through plans, the bytes on every link counted, and their time modelled."""

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from cachetools import LRUCache

from shardgym.arrays import Floats
from shardgym.costs.additive import join_phases
from shardgym.costs.base import CostModel
from shardgym.costs.devices import device_constants
from shardgym.costs.links import exchange_times
from shardgym.costs.mixed_tables import operator_notes
from shardgym.costs.plan_cost import PlanCost, plan_costs
from shardgym.costs.replay.row_counts import ExpectedCounts, RowCounts, StreamCounts
from shardgym.costs.replay.tally import Counted, Tally, counted_bytes, tally
from shardgym.costs.replay.traffic import Traffic, exchanges, traffic
from shardgym.costs.roofline import untested
from shardgym.errors import InputError, check_instance, check_int
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Where the ids of a batch come from: drawn or recorded, id by id, or as expected from the laws of tables.
Ids = Literal["stream", "expected"]
#: Tasks whose ids are kept: a pair of a row and a device takes 16 bytes, and 8 in each way to make blocks of devices.
_TASKS_KEPT = 2
#: Arrays that are kept of shards that were counted.
_COUNTED_BYTES = 256 * 2**20


class ReplayCost(CostModel):
    """Replay streams of ids through a plan; nothing is measured.

    Every id is looked up by the nearest device that holds its row. The bytes that devices send each other are counted
    pair by pair: ids; a row for each id of unpooled tables, and pooled rows or partial sums of others; gradients; and
    what copies of rows exchange, densely, as other costs have it. So plans whose rows are in tiers have a price, and
    rows that are hot where they lie make a device slow. Times follow from the links of the topology
    (`shardgym.costs.links`) and from `roofline`'s constants of the device. Ids are not hidden behind compute.

    Args:
        ids: "stream" counts drawn or recorded ids. "expected" takes numbers of ids and of different rows as they are
            expected of the tables' laws: for searches, when the judge replays streams.
        seed: seed of the streams.
        batches: number of batches to replay; times and bytes are their means.

    Raises:
        InputError: arguments out of range, or a seed or batches where nothing is drawn.
    """

    name = "replay"
    version = "2"
    deterministic = True
    replicas = True
    unpooled = True
    row_tiers = True

    def __init__(self, ids: Ids = "stream", *, seed: int = 0, batches: int = 1) -> None:
        if ids not in get_args(Ids):
            raise InputError(f"ids: expected 'stream' or 'expected', got {ids!r:.40}")
        self._ids: Ids = ids
        self._seed = check_int("seed", seed)
        self._batches = check_int("batches", batches, 1)
        if ids == "expected" and (self._seed or self._batches > 1):
            raise InputError(f"ids='expected' draws nothing, got seed={seed}, batches={batches}: leave them out")
        self._known: LRUCache[str, list[Mapping[str, RowCounts]]] = LRUCache(_TASKS_KEPT)
        #: By the name of the device.
        self._counted: dict[str, LRUCache[Hashable, Counted]] = {}

    @property
    def hardware(self) -> str:
        """Return "replay", with its other settings appended: ids of other streams make another judge."""
        set_besides = {name: value for name, value in self.settings().items() if name != "ids"}
        names = ["replay", *(["expected"] if self._ids == "expected" else [])]
        return "-".join([*names, *(f"{name}={value}" for name, value in set_besides.items())])

    def settings(self) -> dict[str, Any]:
        """Return the keyword arguments that make this cost model again."""
        given = {"ids": self._ids, "seed": self._seed, "batches": self._batches}
        usual = {"ids": "stream", "seed": 0, "batches": 1}
        return {name: value for name, value in given.items() if value != usual[name]}

    def score(self, task: ShardingTask, plans: Sequence[ShardingPlan]) -> list[PlanCost]:
        """See `CostModel`; recorded ids that cannot be read are an `InputError`."""
        per_device = np.array([self._plan_ms(task, plan) for plan in plans])
        return plan_costs(
            per_device, [self.notes(task)] * len(plans), np.zeros(len(plans), dtype=np.bool_),
            cost=self.name, version=self.version, hardware=self.hardware,
        )  # fmt: skip

    def traffic(self, task: ShardingTask, plan: ShardingPlan) -> Traffic:
        """Return the bytes that devices send in a step of a plan, by what and over which links."""
        check_instance("task", task, ShardingTask)
        check_instance("plan", plan, ShardingPlan)
        plan.validate(task)
        reason = self._why_not(task, plan)
        if reason:
            raise InputError(reason)
        found = [traffic(task, one) for one in self._tallies(task, plan)]
        return Traffic(*(np.mean(parts, axis=0) for parts in zip(*found, strict=True)))

    def notes(self, task: ShardingTask) -> tuple[str, ...]:
        """See `CostModel`."""
        return untested(task, task.topology.device) + operator_notes(task)

    def _plan_ms(self, task: ShardingTask, plan: ShardingPlan) -> Floats:
        """Return all phases of a plan, shape (D, 5)."""
        device = device_constants(task.topology.device)
        fixed_ms = np.array([device.forward_ms, device.backward_ms])
        found = []
        for one in self._tallies(task, plan):
            compute_ms = one.work_ms + one.num_operators[:, None] * fixed_ms
            took = exchanges(task, one)
            times = exchange_times(compute_ms, took.outputs_ms, ids_hidden=False, ids_ms=took.ids_ms)
            times = times._replace(backward_ms=times.backward_ms + took.replicas_ms)
            found.append(join_phases(compute_ms, times))
        return np.asarray(np.mean(found, axis=0))

    def _tallies(self, task: ShardingTask, plan: ShardingPlan) -> list[Tally]:
        """Return the tally of each batch."""
        name = task.topology.device
        known = self._counted.setdefault(name, LRUCache(_COUNTED_BYTES, counted_bytes))
        device = device_constants(name)
        return [
            tally(task, plan, functools.partial(self._counts_of, task, batch), device, known, batch)
            for batch in range(self._batches)
        ]

    def _counts_of(self, task: ShardingTask, batch: int, table: str) -> RowCounts:
        """Return the ids of a table in a batch."""
        return self._counts(task)[batch][table]

    def _counts(self, task: ShardingTask) -> list[Mapping[str, RowCounts]]:
        """Return the ids of every batch, by table; those of the last tasks are kept."""
        known = self._known.get(task.digest)
        if known is None:
            if self._ids == "expected":
                known = [{t.name: ExpectedCounts(t, task.batch_size, task.num_devices) for t in task.tables}]
            else:
                known = [
                    {t.name: StreamCounts(t, task.batch_size, task.num_devices, self._seed, batch) for t in task.tables}
                    for batch in range(self._batches)
                ]
            self._known[task.digest] = known
        return known
