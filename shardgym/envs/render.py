"""Text rendering of a placement."""

from __future__ import annotations

from tabulate import tabulate

from shardgym.arrays import Floats
from shardgym.envs.loads import Loads
from shardgym.envs.placement import Placement
from shardgym.rendering import bar

_BAR = 20


def render_ansi(placement: Placement, phases: Floats | None) -> str:
    """Draw devices with what they hold and what it costs, mark the slowest, and say what is placed next.

    Args:
        placement: what to draw.
        phases: of what is placed, shape (D, 4); None where there are no times.
    """
    loads = Loads.of(placement, phases)
    rows = [
        (f"{d} *" if d == loads.slowest else str(d), int(placement.tables[d]), *_times(loads, d),
         bar(used / capacity, _BAR, ascii_only=True), f"{used / 2**20:.1f} / {capacity / 2**20:.1f}",
         int(placement.dims[d]), f"{placement.lookups[d]:.0f}")
        for d, (used, capacity) in enumerate(zip(loads.used, loads.capacity, strict=True))
    ]  # fmt: skip
    noun = _noun(placement)
    headers = ("device", noun, "compute ms", "comm ms", "memory", "MiB", "columns", "lookups x columns")
    table = tabulate(rows, headers=headers, disable_numparse=True)
    footer = "" if loads.slowest is None else "* the slowest device, which sets the cost\n"
    return f"{_headline(placement, noun)}\n{table}\n{footer}"


def _times(loads: Loads, device: int) -> tuple[str, str]:
    if loads.compute_ms is None or loads.comm_ms is None:
        return "-", "-"
    return f"{loads.compute_ms[device]:.3f}", f"{loads.comm_ms[device]:.3f}"


def _noun(placement: Placement) -> str:
    return "shards" if placement.limits.per_episode else "tables"


def _headline(placement: Placement, noun: str) -> str:
    done = f"{placement.placed} of {placement.shards} {noun} placed"
    if not placement.waiting:
        return done
    shard = placement.waiting[-1]
    rows = placement.figures.task.tables[shard.position].num_embeddings
    return f"{done}; next: '{placement.table_name}', {rows} x {shard.width}, {shard.size / 2**20:.1f} MiB"
