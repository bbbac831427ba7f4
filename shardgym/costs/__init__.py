"""Cost models: measured (`fbgemm`), analytic (`roofline`), and whatever else is registered."""

from shardgym.costs.base import CostModel
from shardgym.costs.plan_cost import PHASES, PlanCost
from shardgym.costs.registry import cost_names, make_cost

__all__ = ["PHASES", "CostModel", "PlanCost", "cost_names", "make_cost"]
