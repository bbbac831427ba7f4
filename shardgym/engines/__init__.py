"""Engines: where jobs of a run are done, in this process, in processes of this machine, or on a Ray cluster."""

from shardgym.engines.base import ENGINES, Engine, HereEngine, make_engine

__all__ = ["ENGINES", "Engine", "HereEngine", "make_engine"]
