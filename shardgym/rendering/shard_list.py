"""Every shard of a plan, one per line."""

from __future__ import annotations

from tabulate import tabulate

from shardgym.plan import ShardingPlan
from shardgym.rendering.bars import mebibytes
from shardgym.task import ShardingTask

_HEADERS = ("table", "rows", "columns", "device", "memory")


def render_shards(task: ShardingTask, plan: ShardingPlan) -> str:
    """List shards by table: their first and last rows and columns, device and memory with optimiser state."""
    rows = [
        (s.table, f"{s.rows[0]}..{s.rows[1] - 1}", f"{s.columns[0]}..{s.columns[1] - 1}", s.device,
         mebibytes(s.bytes(task)))
        for s in plan.shards
    ]  # fmt: skip
    align = ("left", *["right"] * (len(_HEADERS) - 1))
    return tabulate(rows, _HEADERS, "simple", colalign=align, disable_numparse=True)
