"""The tasks that solvers are checked on: small, built from formulas, and each with something that trips a solver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardgym.table import EmbeddingTable, ZipfIds
from shardgym.task import ShardingTask
from shardgym.topology import Topology

#: Bytes of one table of `_equal_tables` in FP32 without optimiser state.
_UNIT = 64_000


@dataclass(frozen=True)
class Case:
    """A task with what is known about it.

    Attributes:
        name: for messages.
        task: the task.
        feasible: whether any plan is feasible; placing whole tables in any order on devices with room then succeeds.
    """

    name: str
    task: ShardingTask
    feasible: bool = True


def feasible_cases() -> list[Case]:
    """Return tasks that every solver must find a plan for."""
    return [
        Case("room to spare", _task(_varied_tables(6), [2**30] * 2)),
        Case("memory filled exactly", _task(_equal_tables(8), [2 * _UNIT] * 4)),
        Case("uneven memory filled exactly", _task(_equal_tables(8), [_UNIT, 2 * _UNIT, 5 * _UNIT])),
        Case("one device", _task(_equal_tables(3), [3 * _UNIT])),
        Case("one table", _task(_equal_tables(1), [_UNIT] * 4)),
        Case("unused and tiny tables", _task(_tiny_tables(), [2**20] * 2)),
        # FP16 weights and FP32 Adam state: 2 + 8 bytes per value instead of 4.
        Case(
            "optimiser state fills memory",
            _task(_equal_tables(4), [2 * _UNIT // 4 * 10] * 2, precision="fp16", optimizer="adam"),
        ),
        Case("state per row", _task(_varied_tables(6), [2**30] * 3, optimizer="rowwise_adagrad")),
    ]


def infeasible_cases() -> list[Case]:
    """Return tasks that no plan is feasible for, however tables are cut."""
    return [
        Case("one byte too few", _task(_equal_tables(4), [2 * _UNIT, 2 * _UNIT - 1]), feasible=False),
        Case("far too large", _task(_equal_tables(6), [_UNIT, _UNIT]), feasible=False),
        Case("width of 6", _task([EmbeddingTable("odd", 100, 6, 1.0)], [2**20] * 2), feasible=False),
    ]


def long_case() -> Case:
    """Return a task on which a thorough search takes long; for time limits."""
    return Case("60 tables on 4 devices", _task(_varied_tables(60), [2**30] * 4))


def _task(tables: Sequence[EmbeddingTable], memory_bytes: Sequence[int], **options: Any) -> ShardingTask:
    topology = Topology(num_devices=len(memory_bytes), memory_bytes=tuple(memory_bytes))
    return ShardingTask(tables=tuple(tables), topology=topology, batch_size=256, **options)


def _equal_tables(count: int) -> list[EmbeddingTable]:
    """Equal bytes in two shapes and very different loads, so that balance and memory pull apart."""
    shapes = [(1000, 16), (2000, 8)]
    return [EmbeddingTable(f"t{i}", *shapes[i % 2], 50.0 if i == 0 else 1.0) for i in range(count)]


def _varied_tables(count: int) -> list[EmbeddingTable]:
    return [
        EmbeddingTable(f"t{i}", 100 * (1 + i * i), 4 * 2 ** (i % 4), 1.0 + 3.7 * (i % 5), ids=ZipfIds(1.05))
        for i in range(count)
    ]


def _tiny_tables() -> list[EmbeddingTable]:
    return [
        EmbeddingTable("unused", 1000, 8, 0.0, reuse_histogram=(0.0,) * 17),
        EmbeddingTable("one row", 1, 4, 3.0),
        EmbeddingTable("usual", 1000, 16, 2.5),
    ]
