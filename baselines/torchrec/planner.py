"""TorchRec's own planner and estimators on a task, configured to plan the same problem.

Importing this module imports TorchRec.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.partitioners import GreedyPerfPartitioner, SortBy
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation
from torchrec.distributed.planner.types import PlannerError, ShardEstimator, Storage

from shardgym.costs.torchrec_rating import PlannerConstants
from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.plan import ShardingPlan
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask
from shardgym.torchrec import from_torchrec, model_from_task
from shardgym.torchrec.model_tables import join_name, split_name
from shardgym.torchrec.tasks import topology_to_torchrec


def plan_with_torchrec(
    task: ShardingTask,
    *,
    sort_by: str = "storage",
    min_partition: int | None = None,
    sharding_types: Sequence[str] | None = None,
    timeout_s: float | None = None,
) -> ShardingPlan:
    """Run `EmbeddingShardingPlanner` with its own proposers, its `GreedyPerfPartitioner` and its own estimates of time.

    Three things differ from TorchRec's defaults. Memory is weights and optimiser state, as the task counts it; TorchRec
    adds buffers for ids and outputs, and reserves 15 %. Kernels keep tables on their devices. Sharding types are tried
    in the given order; TorchRec's constraints take them from a set of strings, so that `PYTHONHASHSEED` would choose
    between plans with equal rating.

    Args:
        task: the task.
        sort_by: order of the partitioner, "storage" or "perf", largest first. TorchRec's default is "storage".
        min_partition: minimum width of a piece. The planner tries one width per table, the smallest divisor of its
            columns that is at least this. TorchRec's default is 128.
        sharding_types: types to try, by TorchRec's names; TorchRec's default, all but "grid_shard", when None.
        timeout_s: the planner's `timeout_seconds`, after which it stops proposing; enumeration is not limited.

    Raises:
        NoFeasiblePlanError: the planner found no plan.
    """
    named = with_module_names(task)
    topology = make_topology(task, PlannerConstants())
    constraints = {
        split_name(table.name)[1]: ParameterConstraints(
            pooling_factors=pooling_factors(table), min_partition=min_partition
        )
        for table in named.tables
    }
    estimators = [EmbeddingPerfEstimator(topology, constraints), TaskMemory(named)]
    batch_size = batch_size_per_device(task)
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=batch_size,
        enumerator=OrderedEnumerator(topology, batch_size, constraints, estimators),
        storage_reservation=FixedPercentageStorageReservation(0.0),
        partitioner=GreedyPerfPartitioner(SortBy(sort_by)),
        constraints=constraints,
        stats=[],
        timeout_seconds=timeout_s,
    )
    try:
        sharders = [OnDeviceBagSharder(sharding_types), OnDeviceSharder(sharding_types)]
        found = planner.plan(model_from_task(named), sharders)
    except PlannerError as error:
        raise NoFeasiblePlanError(f"TorchRec's planner found no plan: {error.error_type.name}") from error
    names = {ours.name: table.name for ours, table in zip(named.tables, task.tables, strict=True)}
    shards = from_torchrec(found, named).shards
    return ShardingPlan.of(task, [dataclasses.replace(shard, table=names[shard.table]) for shard in shards])


def pooling_factors(table: EmbeddingTable) -> list[float]:
    """Return mean ids per sample: of each feature of an unpooled table, of the only feature of a pooled one."""
    features = 1 if table.is_pooled else table.num_features
    return [table.pooling_factor / features] * features


def with_module_names(task: ShardingTask) -> ShardingTask:
    """Return a task with tables renamed to t0, t1, ..., because names are parts of TorchRec's module paths.

    Where tables need several collections, pooled ones are in "bags", or in "weighted" with weighted ids, and unpooled
    ones in one collection per width, such as "rows64".
    """
    places = [
        f"rows{table.embedding_dim}" if not table.is_pooled else "weighted" if table.weighted else "bags"
        for table in task.tables
    ]
    mixed = len(set(places)) > 1
    tables = tuple(
        dataclasses.replace(table, name=f"{place}.t{n}" if mixed else f"t{n}")
        for n, (table, place) in enumerate(zip(task.tables, places, strict=True))
    )
    return dataclasses.replace(task, tables=tables)


def make_topology(task: ShardingTask, constants: PlannerConstants, devices: int | None = None) -> Topology:
    """Return all or the first devices of a task with their room for shards; see `topology_to_torchrec`."""
    count = devices or task.num_devices
    ours = task.topology
    host, domain = min(ours.devices_per_host, count), min(ours.fast_domain_size, count)
    room = task.capacity_bytes[:count]
    first = dataclasses.replace(
        ours, num_devices=count, memory_bytes=room, fast_domain_size=domain, host_size=None if host == domain else host
    )
    return topology_to_torchrec(first, **dataclasses.asdict(constants))


def batch_size_per_device(task: ShardingTask) -> int:
    """Return the samples of one device, rounded up, because TorchRec has the same number on all devices."""
    return math.ceil(task.batch_size / task.num_devices)


class TaskMemory(ShardEstimator):  # type: ignore[misc]
    """Estimates the storage of shards as the task counts it; `task` names tables as the model does."""

    def __init__(self, task: ShardingTask) -> None:
        self._task = task

    def estimate(self, sharding_options: list[Any], sharder_data_map: Any = None) -> None:
        """See `ShardEstimator`."""
        del sharder_data_map
        for option in sharding_options:
            table = self._task.table(join_name(option.path, option.name))
            holders = self._task.num_devices if option.sharding_type == "data_parallel" else 1
            for shard in option.shards:
                size = self._task.block_bytes(table, *shard.size, first_row=shard.offset[0], num_holders=holders)
                shard.storage = Storage(hbm=size, ddr=size)


class _OnDevice:
    """Offers sharding types in the given order, with kernels that keep tables on their devices."""

    def __init__(self, types: Sequence[str] | None) -> None:
        super().__init__()
        self._types = types

    def sharding_types(self, compute_device_type: str) -> list[str]:
        """See `ModuleSharder`."""
        offered: list[str] = super().sharding_types(compute_device_type)  # type: ignore[misc]
        if self._types is None:
            # As `EmbeddingEnumerator` does where no constraints ask for grids.
            return [name for name in offered if name != "grid_shard"]
        return [name for name in self._types if name in offered]

    def compute_kernels(self, sharding_type: str, compute_device_type: str) -> list[str]:
        """See `ModuleSharder`."""
        del compute_device_type
        return ["dense" if sharding_type == "data_parallel" else "fused"]


class OnDeviceBagSharder(_OnDevice, EmbeddingBagCollectionSharder):  # type: ignore[misc]
    """Sharder of pooled tables that stay on their devices."""


class OnDeviceSharder(_OnDevice, EmbeddingCollectionSharder):  # type: ignore[misc]
    """Sharder of unpooled tables that stay on their devices."""


class OrderedEnumerator(EmbeddingEnumerator):  # type: ignore[misc]
    """Tries the sharder's types in their order; TorchRec's enumerator drops grids and puts the others into a set."""

    def _filter_sharding_types(self, name: str, allowed_sharding_types: list[str], sharder_key: str = "") -> list[str]:
        del name, sharder_key
        return allowed_sharding_types
