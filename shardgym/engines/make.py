"""Engines by name."""

from __future__ import annotations

from shardgym.arguments import check_int
from shardgym.engines.base import Engine, HereEngine
from shardgym.engines.cluster import RayEngine
from shardgym.engines.processes import LokyEngine
from shardgym.errors import InputError, UnknownNameError

#: Names of all engines.
ENGINES = ("here", "loky", "ray")


def make_engine(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """Return an engine by name.

    Args:
        name: "here"; "loky", for processes of this machine; or "ray", for a Ray cluster that is running.
        workers: how many; None for one per core (loky), or one per core or measuring node of the cluster (ray).
        address: of the head of the Ray cluster, HOST:PORT; None for the one of this machine, or of RAY_ADDRESS.

    Raises:
        UnknownNameError: no engine has this name.
        InputError: the engine does not take what is given.
        MissingDependencyError: it needs an extra that is not installed.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    if workers is not None:
        check_int("workers", workers, 1)
    if address is not None and name != "ray":
        raise InputError(f"address: engine '{name}' has no cluster to join: leave it out, or take engine 'ray'")
    if name == "here":
        if workers not in (None, 1):
            raise InputError(f"workers={workers}: engine 'here' has one: take engine 'loky' for several")
        return HereEngine()
    if name == "loky":
        return LokyEngine(workers)
    return RayEngine(workers, address)
