"""What makes a plan infeasible, and whether a task can have a plan at all: one sentence for each problem."""

import operator
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from shardgym.errors import NoFeasiblePlanError
from shardgym.plans.shard import COLUMN_UNIT, Shard, device_memory, format_devices
from shardgym.tables.table import EmbeddingTable
from shardgym.tasks.task import ShardingTask, exact_bytes

#: What to do where devices and hosts have no room for all rows.
ROOM_ADVICE = "give devices or hosts more memory"


def plan_problems(task: ShardingTask, shards: Sequence[Shard], group_size: int | None = None) -> list[str]:
    """Return one sentence per problem of `shards` as a plan for `task`; empty when the plan is feasible."""
    return [*cover_problems(task, shards, group_size), *memory_problems(task, shards)]


def cover_problems(task: ShardingTask, shards: Sequence[Shard], group_size: int | None = None) -> list[str]:
    """Return one sentence per problem of a plan apart from memory.

    These are unknown tables and devices, groups that do not divide the devices or are one device, holders that are not
    one in each group, rows in the memory of a host that several devices hold, cells without exactly one shard, and
    widths that FBGEMM cannot fuse.
    """
    problems = [f"table '{shard.table}' is not in the task" for shard in shards if not task.has_table(shard.table)]
    if group_size is not None and task.num_devices % group_size:
        return [f"group_size {group_size} does not divide the {task.num_devices} devices of the task", *problems]
    if group_size == 1 < task.num_devices:
        return ["group_size 1 is data parallel: leave it out, and put every table on all devices", *problems]
    pieces: dict[str, list[Shard]] = {table.name: [] for table in task.tables}
    known = [shard for shard in shards if shard.table in pieces]  # nothing else can be checked for unknown tables
    for shard in known:
        pieces[shard.table].append(shard)
        if shard.devices[-1] >= task.num_devices:
            last = shard.devices[-1]
            problems.append(
                f"table '{shard.table}' is on device {last}, the task has devices 0 to {task.num_devices - 1}"
            )
        elif len(shard.devices) > 1 or group_size is not None:
            problems += _holder_problems(shard, task.num_devices, group_size)
        if shard.memory != "device" and len(shard.devices) > 1:
            problems.append(
                f"table '{shard.table}' is replicated on {format_devices(shard.devices)} in host memory (kernel "
                f"{shard.compute_kernel}): expected one device, or kernel fused"
            )
        if shard.num_columns % COLUMN_UNIT:
            problems.append(
                f"table '{shard.table}' has a shard of {shard.num_columns} columns on {format_devices(shard.devices)}: "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    cover = (_cover_problem(table, pieces[table.name]) for table in task.tables)
    return problems + [problem for problem in cover if problem is not None]


def _holder_problems(shard: Shard, num_devices: int, group_size: int | None) -> Iterator[str]:
    """Yield a sentence if holders of a shard are not one in each block of consecutive devices, and in each group."""
    copies = len(shard.devices)
    block = num_devices // copies
    group = num_devices if group_size is None else group_size
    one_each = num_devices % copies == 0 and [d // block for d in shard.devices] == list(range(copies))
    if not one_each or group % block:
        expected = f"one device in each of {num_devices // group} groups of {group}, or in each equal part of them"
        if group_size is None:
            expected = "one device, all devices, or the same place in every group (group_size=)"
        area = format_area(shard.rows, shard.columns)
        yield f"{area} of table '{shard.table}' are held by {format_devices(shard.devices)}: expected {expected}"


def check_possible(task: ShardingTask, *, in_host: bool = False) -> None:
    """Refuse tasks that no plan is feasible for, however tables are cut by columns; rows may be `in_host`.

    Raises:
        NoFeasiblePlanError: a width cannot be fused, or the tables are larger than all devices, and hosts,
            together.
    """
    for table in task.tables:
        if table.embedding_dim % COLUMN_UNIT:
            raise NoFeasiblePlanError(
                f"table '{table.name}' has {table.embedding_dim} columns: no plan is feasible, as "
                f"FBGEMM needs widths divisible by {COLUMN_UNIT}"
            )
    needed = {table.name: _least_bytes(task, table) for table in task.tables}
    missing = sum(needed.values()) - task.total_capacity_bytes
    on_hosts = task.topology.num_hosts * task.topology.host_memory_bytes
    if in_host and missing > on_hosts:
        raise NoFeasiblePlanError(
            f"{_what_tables_take(task)} {exact_bytes(sum(needed.values()))}, but all devices have "
            f"{exact_bytes(task.total_capacity_bytes, '')}{_left_by_step(task)} and all hosts "
            f"{exact_bytes(on_hosts, '')}: {exact_bytes(missing - on_hosts)} too few; {ROOM_ADVICE}"
        )
    if missing > 0 and not in_host:
        largest = max(needed, key=needed.__getitem__)
        devices = task.num_devices
        roomiest = max(task.capacity_bytes)
        more = f"{-(-missing // roomiest)} more devices, " if roomiest else ""
        or_hosts = ""
        if task.topology.host_memory_bytes:
            known = f"{exact_bytes(task.topology.host_memory_bytes, '')} of each host"
            or_hosts = f", or a solver that uses the {known}, such as neuroshard_plus with cost gpu or roofline"
        raise NoFeasiblePlanError(
            f"{_what_tables_take(task)} {exact_bytes(sum(needed.values()))}, but all devices have "
            f"{exact_bytes(task.total_capacity_bytes, '')}{_left_by_step(task)}: however tables are cut, one of "
            f"{devices} devices lacks at least {exact_bytes(-(-missing // devices))}; the largest table is '{largest}' "
            f"with {exact_bytes(needed[largest])}; use {more}more memory per device, or fewer rows{or_hosts}"
        )


def exceeds_devices(task: ShardingTask) -> bool:
    """Whether tables are larger than all devices together, and hosts have memory."""
    if not task.topology.host_memory_bytes:
        return False
    return sum(_least_bytes(task, table) for table in task.tables) > task.total_capacity_bytes


def _least_bytes(task: ShardingTask, table: EmbeddingTable) -> int:
    """Return the bytes that a table takes at least on all devices together: whole, or held by all of them."""
    rows, columns = table.num_embeddings, table.embedding_dim
    everywhere = task.num_devices * task.block_bytes(table, rows, columns, num_holders=task.num_devices)
    return min(task.table_bytes(table), everywhere)


def _what_tables_take(task: ShardingTask) -> str:
    return "the tables take" if task.step_memory is None else "in the hottest batch, the tables take"


def _left_by_step(task: ShardingTask) -> str:
    """Say what every plan takes, where the task counts that."""
    if task.step_memory is None:
        return ""
    others = task.topology.total_memory_bytes - task.total_capacity_bytes
    return f" (besides {exact_bytes(others, '')} for their own samples' inputs and outputs and the reserve)"


def _cover_problem(table: EmbeddingTable, shards: Sequence[Shard]) -> str | None:
    """Return a part of a table that no shard or several shards hold, or a shard that is larger than the table."""
    # What ends at a row leaves columns free, and what begins there must take exactly these. So long as that holds,
    # every row is covered once. It takes n log n steps for n shards.
    num_rows = table.num_embeddings
    num_columns = table.embedding_dim
    # Most tables are placed whole: leave early.
    if len(shards) == 1 and shards[0].rows == (0, num_rows) and shards[0].columns == (0, num_columns):
        return None
    beginning: dict[int, list[Shard]] = {}
    free: dict[int, list[tuple[int, int]]] = {0: [(0, num_columns)]}
    for shard in shards:
        if shard.rows[1] > num_rows or shard.columns[1] > num_columns:
            area = format_area(shard.rows, shard.columns)
            return f"table '{table.name}' is {num_rows} x {num_columns}, but a shard covers {area}"
        beginning.setdefault(shard.rows[0], []).append(shard)
        free.setdefault(shard.rows[1], []).append(shard.columns)
    for row in sorted(beginning.keys() | free.keys() - {num_rows}):
        holes = deque(sorted(free.get(row, [])))
        for shard in sorted(beginning.get(row, []), key=operator.attrgetter("columns")):
            first, last = shard.columns
            while holes and first < last:
                start, end = holes[0]
                if start < first:
                    return _wrong_cell(table, shards, row, (start, min(first, end)))
                if first < start:
                    break
                first = min(last, end)
                holes[0] = first, end
                if first == end:
                    holes.popleft()
            if first < last:  # these columns are not free
                return _wrong_cell(table, shards, row, (first, min(last, holes[0][0]) if holes else last))
        if holes:
            return _wrong_cell(table, shards, row, holes[0])
    return None


def _wrong_cell(table: EmbeddingTable, shards: Sequence[Shard], row: int, columns: tuple[int, int]) -> str:
    """Say how many shards hold some columns of a table from a row on; none of them begins between these columns."""
    next_row = min((edge for shard in shards for edge in shard.rows if edge > row), default=table.num_embeddings)
    holding = [s for s in shards if s.rows[0] <= row < s.rows[1] and s.columns[0] <= columns[0] < s.columns[1]]
    last = min([columns[1], *(shard.columns[1] for shard in holding)])
    cell = f"{format_area((row, next_row), (columns[0], last))} of table '{table.name}'"
    if not holding:
        return f"{cell} are missing: no device holds them; add a shard"
    devices = sorted(device for shard in holding for device in shard.devices)
    held = f"held by devices {', '.join(map(str, devices))}"
    return f"{cell} overlap: {held}; keep them in one of the {len(holding)} shards, which may have several devices"


def memory_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    """Yield a sentence for every device and host whose shards of known tables exceed it, largest first."""
    yield from _device_problems(task, shards)
    topology = task.topology
    on_hosts: dict[int, list[tuple[int, str]]] = {}
    for shard in shards:
        if shard.memory == "device" or not task.has_table(shard.table):
            continue
        for device in (device for device in shard.devices if device < topology.num_devices):
            on_hosts.setdefault(topology.host_of(device), []).append((shard.host_bytes(task), shard.table))
    yield from _full("the memory of host", on_hosts, topology.host_memory_bytes, "host_memory_bytes")


def _full(what: str, held: Mapping[int, list[tuple[int, str]]], limit: int, field: str) -> Iterator[str]:
    """Yield a sentence for every memory of a kind that holds more than its limit; `field` of a topology sets that."""
    for number in sorted(held):
        used = sum(size for size, _ in held[number])
        if used > limit:
            largest = ", ".join(f"'{table}' {size}" for size, table in sorted(held[number], reverse=True)[:3])
            give = "" if limit else f": set {field} of the topology, or use kernel fused"
            yield (
                f"{what} {number} holds {exact_bytes(used)}, {exact_bytes(used - limit, '')} more than its "
                f"{limit}{give}; largest of its shards: {largest}"
            )


def _device_problems(task: ShardingTask, shards: Sequence[Shard]) -> Iterator[str]:
    """Yield a sentence for every device whose shards of known tables exceed its memory, largest tables first."""
    held: dict[int, list[tuple[int, Shard]]] = {}
    for shard in shards:
        if task.has_table(shard.table):
            size = shard.bytes(task)
            for device in shard.devices:
                held.setdefault(device, []).append((size, shard))
    for device in sorted(d for d in held if d < task.num_devices):
        used = sum(size for size, _ in held[device])
        limit = task.capacity_bytes[device]
        if used > limit:
            ordered = sorted(held[device], key=lambda sized: (sized[0], sized[1].table), reverse=True)
            largest = ", ".join(f"'{shard.table}' {size}" for size, shard in ordered[:3])
            in_step = "" if task.step_memory is None else _in_step(task, device, [shard for _, shard in ordered])
            yield (
                f"device {device} holds {exact_bytes(used)}, {exact_bytes(used - limit, '')} more than its {limit}"
                f"{in_step}; largest of its shards: {largest}"
            )


def _in_step(task: ShardingTask, device: int, shards: Sequence[Shard]) -> str:
    """Say how much memory a device has, and whether a plan exceeds it in every batch or only in the hottest."""
    assert task.step_memory is not None
    memory = task.topology.memory_bytes[device]
    average = device_memory(task, shards, device, hottest=False).total
    lookups = [task.shard_lookups(task.table(s.table), s.rows, len(s.devices)) for s in shards]
    hottest = device_memory(task, shards, device).total
    figures = (
        f"{sum(of.average for of in lookups):.0f} ids and {exact_bytes(average)} on average, "
        f"{sum(of.hottest for of in lookups):.0f} ids and {exact_bytes(hottest)} in the hottest batch, "
        f"including inputs and outputs of its own samples and {task.step_memory.reserved_on(device)} reserved bytes"
    )
    verdict = "it fits on average but not in the hottest batch" if average <= memory else "it fits in no batch"
    return f" of {memory}: {verdict} ({figures})"


def format_area(rows: tuple[int, int], columns: tuple[int, int]) -> str:
    """Return "rows [0, 5) columns [4, 8)": as in plans, the ends are left out."""
    return f"rows [{rows[0]}, {rows[1]}) columns [{columns[0]}, {columns[1]})"
