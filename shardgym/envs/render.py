"""Text rendering of a placement."""

from __future__ import annotations

from tabulate import tabulate

from shardgym.envs.placement import Placement
from shardgym.errors import InputError

_BAR = 20


class RenderModeError(InputError, TypeError):
    """A render mode that there is not. A `TypeError` too: makers of environments try again without one then."""


def render_ansi(placement: Placement) -> str:
    """Draw devices with their tables and memory, and say what is placed next."""
    capacity = placement.figures.capacity
    rows = [
        (d, int(placement.tables[d]), _bar(used / capacity[d]), f"{used / 2**20:.1f} / {capacity[d] / 2**20:.1f}",
         int(placement.dims[d]), f"{placement.lookups[d]:.0f}")
        for d, used in enumerate(placement.used)
    ]  # fmt: skip
    table = tabulate(rows, headers=("device", "tables", "memory", "MiB", "columns", "lookups x columns"))
    return f"{_headline(placement)}\n{table}\n"


def _headline(placement: Placement) -> str:
    figures = placement.figures
    done = f"{placement.placed} of {len(figures.sizes)} tables placed"
    if placement.complete:
        return done
    table = figures.task.table(placement.table_name)
    size = figures.sizes[placement.placed] / 2**20
    return f"{done}; next: '{table.name}', {table.num_embeddings} x {table.embedding_dim}, {size:.1f} MiB"


def _bar(share: float) -> str:
    filled = round(min(share, 1.0) * _BAR)
    return "#" * filled + "." * (_BAR - filled)
