"""Engines: where jobs of a run are done, in this process, in processes of this machine, or on a Ray cluster."""

from shardgym.engines.base import Engine, HereEngine
from shardgym.engines.make import ENGINES, make_engine

__all__ = ["ENGINES", "Engine", "HereEngine", "make_engine"]
