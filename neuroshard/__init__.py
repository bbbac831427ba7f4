"""NeuroShard's search: column splits by beam search, placements by greedy grid search (Zha et al., MLSys 2023)."""

from neuroshard.beam import SearchSettings
from neuroshard.solver import NeuroShard

__all__ = ["NeuroShard", "SearchSettings"]
