"""Cost models: measured (`fbgemm`), analytic (`roofline`), learned (`simulator`), and whatever else is registered."""

from shardgym.costs.base import PHASES, CostModel, PlanCost, cost_names, make_cost

__all__ = ["PHASES", "CostModel", "PlanCost", "cost_names", "make_cost"]
