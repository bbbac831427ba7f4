"""What it takes to get from the plan in use to another one: which rows and columns go from which device to which.

A device that holds a part of a shard already keeps it. What it lacks comes from a device that holds it in the old plan:
one that shares its fast links if there is any, and among those the one that has sent least so far. Weights move with
their optimiser state.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from shardgym.arrays import Ints
from shardgym.errors import InputError, check_instance
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask, block_bytes, exact_bytes, format_bytes
from shardgym.tasks.topology import Topology

#: What a move crosses: the links of a fast domain, those between domains, or what is inside of one host.
Link = Literal["intra", "inter", "host"]
LINKS: tuple[Link, ...] = get_args(Link)


class Move(NamedTuple):
    """A rectangle of a table that one device sends to another."""

    table: str
    rows: tuple[int, int]  #: first one, and the one after the last
    columns: tuple[int, int]
    source: int
    destination: int  #: the source itself where it moves between a device and its host
    bytes: int  #: of weights and optimiser state
    link: Link


@dataclass(frozen=True)
class Migration:
    """All moves from one plan to another."""

    moves: tuple[Move, ...]  #: by table, rows, columns and destination of the new plan
    bytes_by_link: Mapping[Link, int]  #: of all moves

    @property
    def bytes(self) -> int:
        """Bytes that move."""
        return sum(self.bytes_by_link.values())

    def transfer_ms(self, topology: Topology) -> float:
        """Return how long the moves take if all devices send and receive at once, in ms.

        That is the time of the busiest direction of the busiest link. Moves to and from the memory of hosts, start-up
        times and what loads or writes checkpoints are left out.
        """
        loads = np.zeros((2, 2, topology.num_devices))
        for move in self.moves:
            if move.link != "host":
                level = LINKS.index(move.link)
                loads[level, 0, move.source] += move.bytes
                loads[level, 1, move.destination] += move.bytes
        bandwidths = np.array([topology.intra_bandwidth, topology.inter_bandwidth])
        return float((loads.max(axis=(1, 2)) / bandwidths).max() * 1e3)

    def sentence(self, topology: Topology) -> str:
        """Say what moves, over which links, and how long that takes at least."""
        if not self.bytes:
            return "nothing moves"
        names = {"intra": "within fast domains", "inter": "between domains", "host": "through the memory of hosts"}
        has_hosts = self.bytes_by_link["host"] or topology.host_memory_bytes
        parts = [f"{format_bytes(size)} {names[link]}" for link, size in self.bytes_by_link.items() if size]
        sentence = f"{exact_bytes(self.bytes)} move: {', '.join(parts)}"
        if ms := self.transfer_ms(topology):
            buses = ", not counting the buses of hosts" if has_hosts else ""
            sentence += f"; at least {ms:.1f} ms on idle links{buses}"
        return sentence


def rebound(plan: ShardingPlan, task: ShardingTask) -> ShardingPlan:
    """Return a plan for another task, as for the same tables with other statistics.

    Call `validate` on the result to check that it is feasible.
    """
    check_instance("plan", plan, ShardingPlan)
    check_instance("task", task, ShardingTask)
    return dataclasses.replace(plan, task_hash=task.digest)


def migration(task: ShardingTask, old: ShardingPlan, new: ShardingPlan) -> Migration:
    """Return what moves between two plans for the tables of a task.

    Args:
        task: has the tables and devices of both plans; statistics, and so `task_hash`, may differ.
        old: plan in use.
        new: plan to move to.

    Raises:
        InputError: a plan names a table or device that the task lacks, or the old plan lacks a part.
    """
    for plan in (old, new):
        _check_known(task, plan)
    domain = task.topology.fast_domain_size
    sent = np.zeros(task.num_devices, dtype=np.int64)
    moves: list[Move] = []
    totals: dict[Link, int] = dict.fromkeys(LINKS, 0)
    held = {table.name: old.of_table(table.name) for table in task.tables}
    bounds = {name: np.array([(*s.rows, *s.columns) for s in shards]).reshape(-1, 4) for name, shards in held.items()}
    for shard in new.shards:
        if shard in held[shard.table]:
            continue
        area = 0
        of_table = bounds[shard.table]
        starts = np.maximum(of_table[:, [0, 2]], [shard.rows[0], shard.columns[0]])
        ends = np.minimum(of_table[:, [1, 3]], [shard.rows[1], shard.columns[1]])
        found: list[int] = np.flatnonzero((starts < ends).all(axis=1)).tolist()
        for n in found:
            part = held[shard.table][n]
            rows = max(shard.rows[0], part.rows[0]), min(shard.rows[1], part.rows[1])
            columns = max(shard.columns[0], part.columns[0]), min(shard.columns[1], part.columns[1])
            area += (rows[1] - rows[0]) * (columns[1] - columns[0])
            for destination in shard.devices:
                if destination in part.devices and shard.memory == part.memory:
                    continue
                source = _nearest(part.devices, destination, domain, sent)
                same_host = task.topology.host_of(source) == task.topology.host_of(destination)
                link: Link = "intra" if source // domain == destination // domain else "inter"
                link = "host" if same_host and "host" in (shard.memory, part.memory) else link
                table = task.table(shard.table)
                size = block_bytes(
                    rows[1] - rows[0], columns[1] - columns[0], task.precision_of(table), task.optimizer_of(table)
                )
                sent[source] += size
                totals[link] += size
                moves.append(Move(shard.table, rows, columns, source, destination, size, link))
        if area < shard.num_rows * shard.num_columns:
            raise InputError(
                f"the old plan lacks part of rows {list(shard.rows)}, columns {list(shard.columns)} of table "
                f"'{shard.table:.60}': expected a plan that covers all tables"
            )
    return Migration(tuple(moves), totals)


def _nearest(holders: Sequence[int], device: int, domain: int, sent: Ints) -> int:
    """Return the holder that sends: the device itself, one of its domain, or any; of several who has sent least."""
    if device in holders:
        return device
    near = [holder for holder in holders if holder // domain == device // domain]
    return min(near or holders, key=lambda holder: (int(sent[holder]), holder))


def _check_known(task: ShardingTask, plan: ShardingPlan) -> None:
    for shard in plan.shards:
        if not task.has_table(shard.table):
            raise InputError(f"table '{shard.table:.60}' is not in the task: expected plans for its tables")
        if shard.devices[-1] >= task.num_devices:
            raise InputError(
                f"table '{shard.table:.60}' is on device {shard.devices[-1]}, the task has {task.num_devices} devices: "
                "expected plans for the same devices"
            )
