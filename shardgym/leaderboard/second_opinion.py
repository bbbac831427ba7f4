"""What another cost than the judge says of the plans of a board. It ranks nothing."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from shardgym.costs.base import CostModel
from shardgym.leaderboard.ranking import Ranking


@dataclass(frozen=True)
class SecondOpinion:
    """Costs of the stored plans of a ranking, by another cost model.

    Attributes:
        cost: its name.
        hardware: its tag.
        reference: the first solver of the ranking.
        ratios: by solver, the geometric mean of its cost over that of the reference, on the tasks that both solved with
            a plan that this cost can score; NaN where there is none.
    """

    cost: str
    hardware: str
    reference: str
    ratios: dict[str, float]


def second_opinion(ranking: Ranking, model: CostModel) -> SecondOpinion | None:
    """Score the plans of a ranking by another cost model; several seeds of a solver count by their geometric mean.

    Args:
        ranking: its tasks must be at hand; others are left out.
        model: scores the plans of each task together.

    Returns:
        None for a ranking without solvers.
    """
    if not ranking.rows:
        return None
    of_task = defaultdict(list)
    for result in ranking.board.results:
        if result.status == "ok" and result.plan is not None:
            of_task[result.task_index].append(result)
    logs: dict[str, dict[int, float]] = {row.solver: {} for row in ranking.rows}
    for index, results in of_task.items():
        task = ranking.board.task(index)
        if task is None:
            continue
        costs = model.evaluate(task, [result.plan for result in results if result.plan is not None])
        own = defaultdict(list)
        for result, cost in zip(results, costs, strict=True):
            own[result.solver].append(math.log(max(cost.total_ms, 1e-9)) if cost.feasible else math.nan)
        for solver, values in own.items():
            if not math.isnan(sum(values)):
                logs[solver][index] = sum(values) / len(values)
    reference = ranking.rows[0].solver
    ratios = {}
    for solver, by_task in logs.items():
        both = [by_task[index] - logs[reference][index] for index in by_task if index in logs[reference]]
        ratios[solver] = math.exp(float(np.mean(both))) if both else math.nan
    return SecondOpinion(model.name, model.hardware, reference, ratios)
