"""Plans as text for terminals of any width, without colour."""

from shardgym.rendering.plan_diff import render_diff
from shardgym.rendering.plan_view import render_plan
from shardgym.rendering.shard_list import render_shards

__all__ = ["render_diff", "render_plan", "render_shards"]
