"""Plans as text for terminals of any width, without colour."""

from shardgym.costs.rendering.plan_view import bar, render_diff, render_plan

__all__ = ["bar", "render_diff", "render_plan"]
