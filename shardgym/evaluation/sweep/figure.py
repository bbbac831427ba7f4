"""A figure of a sweep: how the step, memory and, where they are known, prices go with the number of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardgym.evaluation.sweep.results import MachineResult
from shardgym.evaluation.sweep.tables import Economics
from shardgym.leaderboard.figures import plain, save_figure
from shardgym.tasks.topology import GIB

_MARKERS = "os^vD<>Pph*"

#: A panel: what its axis says, and a number of each result or None.
_Panel = tuple[str, Callable[[MachineResult], float | None]]


def draw_sweep(path: Path, results: Sequence[MachineResult], economics: Economics, title: str) -> None:
    """Write a figure with a line for every GPU; machines without a plan are left out.

    Args:
        path: ends in one of `shardgym.leaderboard.figures.PLOT_FORMATS`.
        results: of machines.
        economics: what is known besides.
        title: above it.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    panels: list[_Panel] = [
        ("embeddings, a step [ms]", lambda result: result.embedding_ms),
        ("left on the fullest device [GiB]", _left_gib),
    ]
    if economics.dense:
        panels[1] = "samples per second", economics.samples_per_s
    if economics.price:
        panels.append(("price of $10^9$ samples", economics.per_billion))
    save_figure(path, 2.8, lambda figure: _draw(figure, panels, results), title)


def _left_gib(result: MachineResult) -> float | None:
    return None if result.memory_left_bytes is None else result.memory_left_bytes / GIB


def _draw(figure: Any, panels: Sequence[_Panel], results: Sequence[MachineResult]) -> None:
    gpus = list(dict.fromkeys(result.gpu for result in results))
    counts = sorted({result.devices for result in results})
    for axes, (label, value) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for number, gpu in enumerate(gpus):
            points = [(result.devices, value(result)) for result in results if result.gpu == gpu]
            shown = sorted(point for point in points if point[1] is not None)
            style = "-" + _MARKERS[number % len(_MARKERS)]
            axes.plot(
                *zip(*shown, strict=True) if shown else ((), ()), style, markersize=3, linewidth=1, label=plain(gpu)
            )
        axes.set(xlabel="devices", ylabel=label, xscale="log", yscale="linear" if value is _left_gib else "log")
        axes.set_xticks(counts, [str(count) for count in counts], rotation=45 * (len(counts) > 5))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=6)
