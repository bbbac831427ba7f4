"""The cost model of an environment, and what it says of plans and of what is placed so far."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardgym.arguments import check_dict, describe
from shardgym.arrays import Floats
from shardgym.costs.base import CostModel, make_cost
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.envs.episode import Episode
from shardgym.envs.partial_cost import partial_cost
from shardgym.errors import InputError, MeasurementError
from shardgym.plan import ShardingPlan
from shardgym.task import ShardingTask


def cost_model(cost: str | CostModel, settings: dict[str, Any] | None) -> tuple[CostModel, bool]:
    """Return the cost model, and whether it was made here.

    Raises:
        InputError: neither a name nor a cost model, settings that are no dictionary, or settings for a ready-made one.
        UnknownNameError: no cost of this name.
    """
    settings = check_dict("cost_settings", settings)
    if isinstance(cost, str):
        return make_cost(cost, **settings), True
    if not isinstance(cost, CostModel):
        raise InputError(f"cost: expected a cost model or its name, got {describe(cost)}")
    if settings:
        raise InputError("cost_settings are for a cost given by name, a ready-made cost model was given")
    return cost, False


def plan_cost(cost: CostModel, task: ShardingTask, plan: ShardingPlan) -> PlanCost:
    """Return the cost of a plan; one that says why where the measurement failed."""
    try:
        return cost.evaluate(task, [plan])[0]
    except MeasurementError as error:
        return cost.no_cost(task, str(error))


def placed_ms(cost: CostModel, episode: Episode) -> Floats | None:
    """Return the phases of every device as far as shards are placed, shape (D, 4); None where there are no times."""
    placement = episode.placement
    if episode.cost is not None:
        return episode.cost.per_device if episode.cost.feasible else None
    if not placement.done:
        return np.zeros((len(placement.used), len(PHASES)))
    try:
        return (episode.partial or partial_cost(cost, placement)).per_device()
    except MeasurementError:
        return None
