"""How the time of the NeuroShard search grows with tables, devices and beam width."""

from __future__ import annotations

import functools
import statistics
from pathlib import Path
from typing import Any

from search_tasks import benchmark_task, peak_mib, timed

from neuroshard import NeuroShard
from shardgym.costs.simulator import SimulatorCost

#: What is varied, and the values of (tables, devices, beam width) it takes.
SWEEPS = {
    "tables": [(tables, 32, 3) for tables in (100, 200, 400, 800, 1600)],
    "devices": [(400, devices, 3) for devices in (4, 8, 16, 32, 64, 128, 256)],
    "beam width": [(100, 8, width) for width in (1, 2, 4, 8, 16, 32)],
}


def growth(cost: SimulatorCost, tasks: int) -> list[dict[str, Any]]:
    """Time the sweeps; medians over tasks. Memory is the most that the process had so far."""
    rows = []
    for varied, settings in SWEEPS.items():
        for tables, devices, width in settings:
            search = NeuroShard(beam_width=width)
            chosen = [benchmark_task(tables, devices, seed) for seed in range(tasks)]
            seconds = [timed(functools.partial(search.solve, task, cost))[1] for task in chosen]
            rows.append({
                "varied": varied, "tables": tables, "devices": devices, "beam width": width,
                "search, s": statistics.median(seconds), "peak memory, MiB": peak_mib(),
            })  # fmt: skip
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw one curve per sweep, both axes logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.5), layout="constrained")
    for axes, varied in zip(figure.subplots(1, len(SWEEPS), sharey=True), SWEEPS, strict=True):
        points = [row for row in rows if row["varied"] == varied]
        axes.loglog([row[varied] for row in points], [row["search, s"] for row in points], "o-")
        axes.set(xlabel=varied, title=", ".join(f"{name} {points[0][name]}" for name in SWEEPS if name != varied))
        axes.grid(visible=True, alpha=0.3)
    figure.supylabel("seconds of one search, one thread")
    figure.savefig(path)
