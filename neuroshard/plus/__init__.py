"""NeuroShardPlus: local search beyond the published search, on the same budget."""

from neuroshard.plus.solver import NeuroShardPlus

__all__ = ["NeuroShardPlus"]
