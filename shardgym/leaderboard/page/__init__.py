"""The page of boards, one HTML file that needs no network: tables, charts, and the plans behind them.

The file holds the data as JSON, the script that shows them (`page.js`), and plotly's script from the installed package.
Its content security policy forbids any other source. Names come from records: here they are JSON whose angle brackets
are escaped, and the script only ever sets them as text.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from shardgym.arrays import Floats
from shardgym.costs.comparison import NOISY, TIE_ERRORS, Cuts, cuts_of, device_kind, error_of, verdict_text
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.costs.roofline import DEVICES, device_constants, shard_ms
from shardgym.costs.shard_keys import ShardKey, plan_keys
from shardgym.errors import import_extra
from shardgym.evaluation.result import Result
from shardgym.leaderboard.boards import Board
from shardgym.leaderboard.details import Details, pareto_front
from shardgym.leaderboard.notes import footer, notes
from shardgym.leaderboard.ranking import BASE, Ranking
from shardgym.leaderboard.statistics import Interval, performance_profile
from shardgym.leaderboard.tables import columns, title
from shardgym.plans.plan import ShardingPlan
from shardgym.tasks.task import ShardingTask

#: Points of the performance profiles.
FACTORS = np.round(np.linspace(1.0, 2.0, 101), 2)

_HERE = Path(__file__).parent
#: Characters that end a script element, or lines of old JavaScript.
_ESCAPED = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


def render_page(rankings: Sequence[Ranking]) -> str:
    """Return the page of some boards.

    Raises:
        MissingDependencyError: plotly is not installed.
    """
    return page_of([board_data(ranking) for ranking in rankings])


def page_of(boards: Sequence[dict[str, Any]]) -> str:
    """Return the page of what `board_data` returned for some boards; raises `MissingDependencyError`."""
    plotly = import_extra("plotly.offline", "the page of boards", extra="site").get_plotlyjs()
    data = json.dumps(boards, separators=(",", ":"), allow_nan=False)
    # Filled in one pass: what is filled in is not searched for more places.
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    parts = {
        "/*STYLE*/": (_HERE / "page.css").read_text(encoding="utf-8"),
        "/*PLOTLY*/": plotly,
        "/*DATA*/": data.translate(_ESCAPED),
        "/*SCRIPT*/": (_HERE / "page.js").read_text(encoding="utf-8"),
    }
    text = []
    for place, part in parts.items():
        before, page = page.split(place)
        text += [before, part]
    return "".join([*text, page])


def board_data(ranking: Ranking) -> dict[str, Any]:
    """Return all that the page shows of a board.

    Figures are rounded to what can be seen. Plans are those of each solver's first seed.
    """
    board = ranking.board
    details = Details.of(ranking)
    complete = [n for n, row in enumerate(ranking.rows) if row.completeness == 1]
    relative = ranking.relative_costs()
    costs = [relative[n] for n in complete]
    times = [ranking.rows[n].median_s for n in complete]
    front = pareto_front(np.array(times), np.array(costs))
    failing = [ranking.results[n].failing_ms for n in complete]
    profile = performance_profile(failing, FACTORS) if complete else np.zeros((0, FACTORS.size))
    tasks = {index: board.task(index) for index in board.tasks}
    return {
        "title": title(ranking),
        "suite": board.key.suite,
        "track": f"judged by {board.key.judge}",
        "base": BASE if ranking.has_base else "the best plan known",
        "columns": [{"header": column.header, "cells": column.cells} for column in columns(ranking)],
        "footer": footer(ranking),
        "notes": notes(ranking),
        "compared": [
            {
                "solver": ranking.rows[n].solver,
                "cost": _rounded(cost),
                "interval": _ends(ranking.rows[n].relative_interval if ranking.has_base else None),
                "seconds": _rounded(seconds),
                "front": bool(front[number]),
                "ratios": _numbers(np.exp(np.log(ranking.counted_ms[n]).mean(axis=0)) / ranking.reference_ms),
                "profile": _numbers(profile[number]),
            }
            for number, (n, cost, seconds) in enumerate(zip(complete, costs, times, strict=True))
        ],
        "factors": FACTORS.tolist(),
        "groups": [
            {
                "name": group,
                "tasks": count,
                "ratios": [
                    {"solver": solver, "ratio": _rounded(own.ratio), "interval": _ends(own.interval)}
                    for solver, own in zip(details.solvers, details.ratios[group], strict=True)
                ],
            }
            for group, count in details.groups.items()
            if ranking.has_base
        ],
        "pairs": [
            {
                "solver": solver,
                "chances": _numbers(details.improvement[i]),
                "intervals": [_ends(details.improvement_interval(i, j)) for j in range(len(details.solvers))],
            }
            for i, solver in enumerate(details.solvers)
        ],
        "tasks": [_task_data(index, task) for index, task in tasks.items()],
        "plans": _plans(board.results, tasks),
        "differences": _differences(board, tasks),
    }


def _differences(board: Board, tasks: dict[int, ShardingTask | None]) -> dict[str, Any]:
    """Return what is said of the difference of two plans of a task, by what they do with tables."""
    kinds = {
        device_kind(task, result.cost)
        for result in board.results
        if result.cost is not None and (task := tasks[result.task_index]) is not None
    }
    judge = board.key.judge
    told = {}
    for cuts in get_args(Cuts):
        # A board of tasks for CPUs and for GPUs has no one error.
        error = error_of(judge, board.key.judge_version, min(kinds), cuts) if len(kinds) == 1 else None
        told[cuts] = {
            "limit": None if error is None else math.expm1(error.error),
            "above": verdict_text(judge, error, "above"),
            "within": verdict_text(judge, error, "within"),
            "unknown": verdict_text(judge, None, "unknown"),
            "noisy": NOISY,
            "tie_errors": TIE_ERRORS,
        }
    return told


def _task_data(index: int, task: ShardingTask | None) -> dict[str, Any]:
    """Return a task's tables and memory; its number alone where it is not at hand."""
    if task is None:
        return {"index": index}
    return {
        "index": index,
        "memory": list(task.capacity_bytes),
        "tables": [[table.name, table.num_embeddings, table.embedding_dim] for table in task.tables],
        "lookups": [round(task.batch_size * table.pooling_factor) for table in task.tables],
    }


def _plans(results: Sequence[Result], tasks: dict[int, ShardingTask | None]) -> dict[str, dict[int, Any]]:
    """Return plans by solver and task: times of devices, their bytes, and shards; of a failure the reason."""
    first_seed: dict[str, int] = {}
    for result in results:
        first_seed[result.solver] = min(result.seed, first_seed.get(result.solver, result.seed))
    plans: dict[str, dict[int, Any]] = {}
    prices: dict[int, dict[ShardKey, float]] = defaultdict(dict)
    for result in results:
        task = tasks[result.task_index]
        if result.seed != first_seed[result.solver]:
            continue
        if result.status != "ok" or result.plan is None or result.cost is None:
            found: dict[str, Any] = {"failed": result.reason or result.status}
        else:
            found = {
                "total": _rounded(result.cost.total_ms),
                "noise": _rounded(result.cost.noise),
                "cuts": cuts_of(result.plan),
                "devices": [_numbers(row) for row in _counted_phases(result.cost)],
            }
            if task is not None:
                found["bytes"] = result.plan.bytes_per_device(task)
                found["shards"] = _shards(task, result.plan, prices[result.task_index])
        plans.setdefault(result.solver, {})[result.task_index] = found
    return plans


def _shards(task: ShardingTask, plan: ShardingPlan, prices: dict[ShardKey, float]) -> list[list[float]]:
    """Return a shard as table, rows, columns, device, bytes, and its compute in ms by the roofline, -1 if unknown.

    A shard has a row for each device that holds it. `prices` keeps the last of these by what it depends on: plans of a
    task have most shards in common.
    """
    number = {table.name: n for n, table in enumerate(task.tables)}
    constants = device_constants(task.topology.device) if task.topology.device in DEVICES else None
    found = []
    for shard, key in zip(plan.shards, plan_keys(task, plan), strict=True):
        if key not in prices:
            ms = -1.0 if constants is None else sum(shard_ms(constants, task, key))
            prices[key] = float(f"{ms:.3g}")
        for device in shard.devices:
            shown = [number[shard.table], shard.num_rows, shard.num_columns, device, shard.bytes(task)]
            found.append([*shown, prices[key]])
    return found


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _counted_phases(cost: PlanCost) -> Floats:
    """Return the phases of every device, with 0 for ids that are hidden, shape (D, 5)."""
    counted = cost.per_device.copy()
    if cost.ids_hidden:
        counted[:, PHASES.index("ids")] = 0.0
    return counted


def _numbers(values: Iterable[float]) -> list[float | None]:
    return [_rounded(float(value)) for value in values]


def _ends(interval: Interval | None) -> list[float | None] | None:
    return None if interval is None else _numbers(interval)
