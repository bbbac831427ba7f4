"""ShardingPlan: which piece of which table is on which devices."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator
from pydantic.dataclasses import dataclass

from shardgym.errors import InfeasiblePlanError, InputError, check_instance
from shardgym.plans.feasibility import plan_problems
from shardgym.plans.shard import DeviceMemory, Shard, device_memory
from shardgym.records import CONFIG, Digest, Record, Whole
from shardgym.tasks.task import ShardingTask

#: How a plan shards a table, in TorchRec's words; "tiers" where TorchRec has none.
Kind = Literal[
    "table_wise", "column_wise", "row_wise", "table_row_wise", "table_column_wise", "grid_shard", "data_parallel",
    "tiers",
]  # fmt: skip


#: As `Shard` orders them, without a call for every comparison.
_ORDER = operator.attrgetter("table", "rows", "columns", "devices", "compute_kernel", "cache_load_factor")
#: What shards must have in common to be one where the rows of one follow those of the other.
_ALIKE = operator.attrgetter("table", "columns", "devices", "compute_kernel", "cache_load_factor")


@dataclass(frozen=True, config=CONFIG)
class ShardingPlan(Record):
    """A complete plan for one task. Plans with the same shards are equal; their order does not matter.

    Adjacent row ranges with the same columns, holders and kernel are joined into one shard, as no operator runs them
    apart. Adjacent column ranges stay apart, as FBGEMM runs them.

    Attributes:
        task_hash: `digest` of the task that the plan is for.
        shards: sorted by table, rows, columns and devices.
        group_size: consecutive devices that hold all tables together, in 2D parallelism; each group takes its share of
            the samples. None: one group of all devices.
    """

    task_hash: Digest
    shards: tuple[Shard, ...]
    group_size: Annotated[Whole, Field(ge=1)] | None = None
    schema: Literal["shardgym.plan/2"] = "shardgym.plan/2"

    @field_validator("shards")
    @classmethod
    def _sorted(cls, value: tuple[Shard, ...]) -> tuple[Shard, ...]:
        return tuple(sorted(_with_joined_rows(value), key=_ORDER))

    @classmethod
    def of(cls, task: ShardingTask, shards: Iterable[Shard], group_size: int | None = None) -> Self:
        """Make a plan for `task` from shards in any order; raises `InputError`."""
        check_instance("task", task, ShardingTask)
        # One group of all devices is the same plan as without groups.
        group_size = None if group_size == task.num_devices else group_size
        return cls(task_hash=task.digest, shards=tuple(shards), group_size=group_size)

    @classmethod
    def table_wise(cls, task: ShardingTask, devices: Iterable[int] | Mapping[str, int]) -> Self:
        """Place every table whole.

        Args:
            task: the task.
            devices: one device per table in the task's order, or a mapping from table name to device.

        Raises:
            InputError: not exactly one device per table, or arguments of other types.
        """
        check_instance("task", task, ShardingTask)
        names = [table.name for table in task.tables]
        devices = devices if isinstance(devices, Mapping) else list(devices)
        device_of = dict(devices) if isinstance(devices, Mapping) else dict(zip(names, devices, strict=False))
        known = set(names)
        wrong = [f"table '{name}' is not in the task" for name in device_of if name not in known]
        wrong += [f"table '{name}' has no device" for name in names if name not in device_of]
        if wrong or len(devices) != len(names):
            why = f": {wrong[0]}" if isinstance(devices, Mapping) else ""
            remedy = "; to price part of the tables, make a task of them" if len(devices) < len(names) else ""
            raise InputError(f"expected one device for each of {len(names)} tables, got {len(devices)}{why}{remedy}")
        return cls.of(task, (Shard.whole(table, device_of[table.name]) for table in task.tables))

    # Environments and renderings ask for the shards of every device again and again.
    @functools.cached_property
    def _by_device(self) -> dict[int, tuple[Shard, ...]]:
        groups: dict[int, list[Shard]] = {}
        for shard in self.shards:
            for device in shard.devices:
                groups.setdefault(device, []).append(shard)
        return {device: tuple(shards) for device, shards in groups.items()}

    @functools.cached_property
    def _by_table(self) -> dict[str, tuple[Shard, ...]]:
        return {table: tuple(shards) for table, shards in itertools.groupby(self.shards, operator.attrgetter("table"))}

    @functools.cached_property
    def leaves_devices(self) -> bool:
        """Whether rows of a shard are in another memory than that of a device."""
        return any(shard.memory != "device" for shard in self.shards)

    @functools.cached_property
    def has_replicas(self) -> bool:
        """Whether several devices hold a shard."""
        return any(len(shard.devices) > 1 for shard in self.shards)

    def on(self, device: int) -> tuple[Shard, ...]:
        """Shards of one device, sorted."""
        return self._by_device.get(device, ())

    def of_table(self, table: str) -> tuple[Shard, ...]:
        """Shards of one table, sorted."""
        return self._by_table.get(table, ())

    def kind_of(self, table: str, task: ShardingTask) -> Kind:
        """Return how a table is sharded, in TorchRec's words.

        It follows from the rectangles and their holders within a group: a table that happens to be cut by columns
        inside of one fast domain of several is `table_column_wise`. Rectangles that are held otherwise than by all
        devices or by one place of every group, and rectangles that form no grid, are "tiers".

        Args:
            table: name of the table.
            task: the task of the plan.

        Raises:
            UnknownNameError: the task has no such table.
            InputError: the plan holds nothing of it.
        """
        num_embeddings = task.table(table).num_embeddings
        shards = self.of_table(table)
        if self.leaves_devices:  # which memory rows are in makes no other kind
            plain = (dataclasses.replace(s, compute_kernel="fused", cache_load_factor=0.0) for s in shards)
            shards = tuple(_with_joined_rows(tuple(plain)))
        if not shards:
            raise InputError(f"the plan has no shard of table '{table}'")
        devices = task.num_devices
        if devices == 1:
            return "table_wise"
        if all(len(shard.devices) == devices for shard in shards):
            return "data_parallel"
        group = devices if self.group_size is None else self.group_size
        places = [{device % group for device in shard.devices} for shard in shards]
        if any(
            len(place) != 1 or len(shard.devices) * group != devices
            for place, shard in zip(places, shards, strict=True)
        ):
            return "tiers"
        if len(shards) == 1:
            return "table_wise"
        domain = min(task.topology.fast_domain_size, group)
        domains: dict[tuple[int, int], set[int]] = {}
        for (place,), shard in zip(places, shards, strict=True):
            domains.setdefault(shard.columns, set()).add(place // domain)
        in_one_domain = group > domain and len(set.union(*domains.values())) == 1
        if all(shard.num_rows == num_embeddings for shard in shards):
            return "table_column_wise" if in_one_domain else "column_wise"
        if len(domains) == 1:
            return "table_row_wise" if in_one_domain else "row_wise"
        blocks = sorted(domains)
        is_grid = all(left[1] == right[0] for left, right in itertools.pairwise(blocks))
        return "grid_shard" if is_grid and all(len(of) == 1 for of in domains.values()) else "tiers"

    def bytes_per_device(self, task: ShardingTask) -> list[int]:
        """Bytes of shards on each device, at most `task.capacity_bytes`: weights, states, what they have in flight."""
        check_instance("task", task, ShardingTask)
        return [sum(shard.bytes(task) for shard in self.on(d)) for d in range(task.num_devices)]

    def bytes_per_host(self, task: ShardingTask) -> list[int]:
        """Bytes of weights and states in the memory of each host, at most `task.topology.host_memory_bytes`."""
        check_instance("task", task, ShardingTask)
        topology = task.topology
        found = [0] * topology.num_hosts
        for shard in self.shards:
            hosts = {topology.host_of(device) for device in shard.devices if shard.memory == "host"}
            for host in sorted(hosts & set(range(topology.num_hosts))):
                found[host] += shard.host_bytes(task)
        return found

    def memory_per_device(self, task: ShardingTask, *, hottest: bool = True) -> list[DeviceMemory]:
        """Return what each device's memory holds in a step, at most `task.topology.memory_bytes`.

        Args:
            task: task that the plan is for.
            hottest: whether shards receive the ids of their hottest batch, or of an average one.
        """
        check_instance("task", task, ShardingTask)
        return [device_memory(task, self.on(device), device, hottest=hottest) for device in range(task.num_devices)]

    def validate(self, task: ShardingTask) -> None:
        """Check that the plan covers the task exactly and fits.

        Raises:
            InputError: the plan was made for another task, or `task` is not a task.
            InfeasiblePlanError: columns or rows missing or held twice, unknown table or device, holders in some groups
                only, a width that FBGEMM cannot fuse, or a device or host whose memory overflows; `problems` lists all.
        """
        check_instance("task", task, ShardingTask)
        if self.task_hash != task.digest:
            raise InputError(
                f"plan is for task {self.task_hash[:12]}, not for task {task.digest[:12]}: use the task it was made "
                "for, or shardgym.plans.migration.rebound(plan, task) if tables and devices are the same"
            )
        problems = plan_problems(task, self.shards, self.group_size)
        if problems:
            raise InfeasiblePlanError(problems)


def _with_joined_rows(shards: tuple[Shard, ...]) -> Iterable[Shard]:
    """Join shards of the same columns, holders and kernel whose rows follow each other."""
    if not any(shard.rows[0] for shard in shards):  # most plans cut no rows
        return shards
    joined: list[Shard] = []
    for shard in sorted(shards, key=lambda shard: (*_ALIKE(shard), shard.rows)):
        last = joined[-1] if joined else None
        if last is not None and _ALIKE(last) == _ALIKE(shard) and last.rows[1] == shard.rows[0]:
            joined[-1] = dataclasses.replace(last, rows=(last.rows[0], shard.rows[1]))
        else:
            joined.append(shard)
    return joined
