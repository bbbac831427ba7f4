"""Note on costs whose communication is that of one machine, while their task names other links."""

from __future__ import annotations

from shardgym.costs.plan_cost import Source
from shardgym.task import ShardingTask
from shardgym.topology import Topology

#: One machine, and links that nobody described.
_PLAIN = Topology(num_devices=1, memory_bytes=(1,))
_LINKS = ("interconnect", "intra_bandwidth", "inter_bandwidth", "intra_latency_ms", "inter_latency_ms")


def link_notes(task: ShardingTask, communication: Source, hardware: str) -> tuple[str, ...]:
    """Return a note if exchanges were measured or predicted and the task's topology has links that are not the default.

    Args:
        task: its topology's links enter modelled communication alone.
        communication: how it came about.
        hardware: tag of the machine that exchanges were measured on.
    """
    if communication == "modelled" or task.num_devices == 1 or _is_plain(task.topology):
        return ()
    name = task.topology.interconnect
    return (f"{communication} communication is that of {hardware}: the task's links ('{name}') play no part",)


def _is_plain(topology: Topology) -> bool:
    same = all(getattr(topology, name) == getattr(_PLAIN, name) for name in _LINKS)
    return same and topology.fast_domain_size == topology.num_devices
