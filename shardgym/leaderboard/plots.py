"""Boards as plots for papers: performance profiles, cost against solving time, and groups of tasks."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.errors import UnknownNameError
from shardgym.files import make_folder
from shardgym.leaderboard.details import Details, pareto_front
from shardgym.leaderboard.figures import PLOT_FORMATS, plain, save_figure
from shardgym.leaderboard.ranking import BASE, Ranking
from shardgym.leaderboard.statistics import performance_profile
from shardgym.leaderboard.tables import title

#: Ends of the axis of performance profiles: a plan may cost so many times the best one.
_PROFILE_END = 2.0


def write_plots(rankings: Sequence[Ranking], folder: Path, file_format: str = "svg") -> list[Path]:
    """Write the plots of rankings; a plot that has nothing to show is left out.

    Args:
        rankings: what to plot.
        folder: where files are written; made if need be.
        file_format: one of `PLOT_FORMATS`.

    Returns:
        The files of each: SUITE-JUDGE-profile, -pareto and -groups. Names of several boards of one suite and judge have
        the hardware as well, and a number where that is the same, too.

    Raises:
        UnknownNameError: no such format.
        MissingDependencyError: matplotlib is not installed.
        InputError: the folder cannot be made.
    """
    if file_format not in PLOT_FORMATS:
        raise UnknownNameError("format", file_format, PLOT_FORMATS)
    make_folder(folder)
    keys = [ranking.board.key for ranking in rankings]
    places = [ranking.board.place or "" for ranking in rankings]
    names = [_file_name(key.suite, key.judge, place) for key, place in zip(keys, places, strict=True)]
    names = [
        name if names.count(name) == 1 else _file_name(name, key.hardware)
        for name, key in zip(names, keys, strict=True)
    ]
    files = []
    for number, (ranking, name) in enumerate(zip(rankings, names, strict=True)):
        stem = name if names.count(name) == 1 else f"{name}-{1 + names[:number].count(name)}"
        files += _write(ranking, folder / stem, file_format)
    return files


def _file_name(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.")


def _write(ranking: Ranking, stem: Path, file_format: str) -> list[Path]:
    """Write the plots of one ranking; returns the files."""
    details = Details.of(ranking)
    drawn: dict[str, tuple[float, Callable[[Any], None]]] = {}
    if details.solvers and any(row.tasks for row in ranking.rows):
        drawn["profile"] = 3.2, lambda figure: _draw_profile(figure, ranking)
        drawn["pareto"] = 3.6, lambda figure: _draw_pareto(figure, ranking)
    if details.groups and ranking.has_base and details.solvers:
        height = math.ceil(len(details.groups) / 3) * (0.7 + 0.13 * len(details.solvers))
        drawn["groups"] = height, lambda figure: _draw_groups(figure, details)
    files = []
    for name, (height, draw) in drawn.items():
        path = stem.with_name(f"{stem.name}-{name}.{file_format}")
        save_figure(path, height, draw, title(ranking))
        files.append(path)
    return files


def _draw_profile(figure: Any, ranking: Ranking) -> None:
    """Draw the share of plans within a factor of the best plan of their task."""
    axes = figure.subplots()
    factors = np.linspace(1.0, _PROFILE_END, 401)
    complete = [results for results in ranking.results if results.is_complete]
    profile = performance_profile([results.failing_ms for results in complete], factors)
    for number, (results, shares) in enumerate(zip(complete, profile, strict=True)):
        style = ("-", "--", ":")[number // 10 % 3]
        axes.step(factors, 100 * shares, style, where="post", linewidth=1, label=plain(results.solver))
    axes.set(
        xlabel="cost / cost of the best plan of the task", ylabel="plans [%]", xlim=(1, _PROFILE_END), ylim=(0, 101)
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=6)


def _draw_pareto(figure: Any, ranking: Ranking) -> None:
    """Draw costs with their intervals against median solving times, and the solvers that no other one dominates."""
    axes = figure.subplots()
    shown = [n for n, row in enumerate(ranking.rows) if row.completeness == 1 and row.tasks]
    rows = [ranking.rows[n] for n in shown]
    costs = np.array(ranking.relative_costs())[shown]
    times = np.array([row.median_s for row in rows])
    for number, (row, cost, seconds) in enumerate(zip(rows, costs, times, strict=True), start=1):
        interval = row.relative_interval if ranking.has_base else None
        ends = None if interval is None else [[cost - interval.low], [interval.high - cost]]
        label = f"{number} {plain(row.solver)}"
        axes.errorbar(seconds, cost, yerr=ends, fmt="o", markersize=3, linewidth=0.7, label=label)
        axes.annotate(str(number), (seconds, cost), (3, 3), textcoords="offset points", fontsize=6)
    front = pareto_front(times, costs)
    order = np.argsort(times[front])
    axes.step(times[front][order], costs[front][order], "k--", where="post", linewidth=0.7, zorder=0)
    axes.set(xscale="log", xlabel="median time per plan [s]")
    axes.set_ylabel(f"cost / cost of {BASE if ranking.has_base else 'the best plan known'}")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=6)


def _draw_groups(figure: Any, details: Details) -> None:
    """Draw a panel for every group of tasks: bars of cost relative to the base, with their intervals."""
    num_rows = math.ceil(len(details.groups) / 3)
    panels = figure.subplots(num_rows, 3, sharex=True, sharey=True, squeeze=False).ravel()
    places = np.arange(len(details.solvers))
    for axes, (group, count) in zip(panels, details.groups.items(), strict=False):
        ratios = np.array([own.ratio for own in details.ratios[group]])
        axes.barh(places, ratios, height=0.7)
        for place, (ratio, interval) in enumerate(details.ratios[group]):
            if interval is not None:
                axes.errorbar(
                    ratio, place, xerr=[[ratio - interval.low], [interval.high - ratio]], color="k", linewidth=0.7
                )
        axes.axvline(1.0, color="k", linewidth=0.5)
        axes.set_title(f"{group} ({count} task{'s' if count > 1 else ''})", fontsize=7)
        axes.set_yticks(places, [plain(solver) for solver in details.solvers], fontsize=6)
    panels[0].invert_yaxis()
    for axes in panels[len(details.groups) :]:
        axes.set_axis_off()
    figure.supxlabel(f"cost / cost of {BASE}", fontsize=8)
