"""Streams of ids replayed through plans."""

from shardgym.costs.replay.cost import ReplayCost

__all__ = ["ReplayCost"]
