"""Cost models: measured (`fbgemm`), analytic (`roofline`), learned (`simulator`), and whatever else is registered."""

from shardgym.costs.base import CostModel, cost_names, make_cost
from shardgym.costs.plan_cost import PHASES, PlanCost

__all__ = ["PHASES", "CostModel", "PlanCost", "cost_names", "make_cost"]
