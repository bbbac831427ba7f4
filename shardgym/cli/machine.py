"""The options that describe a machine, and the topology that they stand for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import click

from shardgym.cli.options import OneOf, non_negative_number, positive, positive_number
from shardgym.cli.output import say
from shardgym.errors import InputError
from shardgym.topology import GIB, PRESETS, Topology

#: Interconnect of links that were given by their figures and not by a name.
OWN_LINKS = "own"

#: Options for links, with the types of their values.
LINKS: dict[str, tuple[Callable[[str | float], float], str]] = {
    "--intra-bandwidth": (positive_number, "Bytes per second that a device can send inside its node, e.g. 25e9"),
    "--inter-bandwidth": (positive_number, "Bytes per second that a device can send to other nodes"),
    "--intra-latency-ms": (non_negative_number, "Start-up time of an exchange inside a node"),
    "--inter-latency-ms": (non_negative_number, "Start-up time of an exchange between nodes"),
}

#: In the order of the help text.
_OPTIONS = [
    click.option("--devices", required=True, type=positive, metavar="N", help="Number of devices."),
    click.option(
        "--topology", "--preset", "preset", default="cpu", type=OneOf("topology", PRESETS),
        help=f"Kind of device, memory and links: {', '.join(PRESETS)}.",
    ),
    click.option(
        "--nodes", type=positive, metavar="K",
        help="Nodes, each with N/K devices that share its fast links (default: as few as the topology's take).",
    ),
    click.option(
        "--memory-gib", type=positive_number, metavar="X", help="Memory per device (default: the topology's)."
    ),
    *(
        click.option(option, type=value_type, metavar="X", help=f"{text} (default: the topology's).")
        for option, (value_type, text) in LINKS.items()
    ),
    click.option(
        "--interconnect", metavar="NAME",
        help=f"Name of the links, for display (default: the topology's, or '{OWN_LINKS}' with figures of your own).",
    ),
]  # fmt: skip


def machine_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options that `make_topology` takes."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def make_topology(
    devices: int,
    preset: str,
    nodes: int | None,
    memory_gib: float | None,
    interconnect: str | None,
    **links: float | None,
) -> Topology:
    """Return the topology that the options describe, with a warning where its nodes make no difference.

    Args:
        devices: number of devices.
        preset: the named topology.
        nodes: number of nodes; None for as few as the named topology's take.
        memory_gib: per device; None for the named topology's.
        interconnect: name of the links, for display.
        **links: bandwidths and latencies by their names in `Topology`; None for the named topology's.

    Raises:
        InputError: devices do not divide into the nodes, a node has more devices than the named topology's, links
            between nodes are given and nodes are not, or a figure is out of range.
    """
    # What no device has is left for the topology to refuse.
    memory = None if memory_gib is None else max(1, int(min(memory_gib, 2.0**40) * GIB))
    named = Topology.preset(preset, devices, memory)
    domain = named.fast_domain_size
    if nodes is not None:
        _check_nodes(preset, devices, nodes)
        domain = devices // nodes
    own_links: dict[str, Any] = {field: value for field, value in links.items() if value is not None}
    if interconnect is None:
        interconnect = OWN_LINKS if own_links else named.interconnect
    topology = dataclasses.replace(named, fast_domain_size=domain, interconnect=interconnect, **own_links)

    between = [field for field in own_links if field.startswith("inter_")]
    if between and num_nodes(topology) == 1:
        option = f"--{between[0].replace('_', '-')}"
        text = f"{option} is for links between nodes, and all devices are on one node"
        if nodes is None:
            raise InputError(f"{text}: give --nodes, too")
        say(f"shardgym: warning: {text}: it plays no part")  # so that one command line does for 1 node and for 8
    intra = (topology.intra_bandwidth, topology.intra_latency_ms)
    inter = (topology.inter_bandwidth, topology.inter_latency_ms)
    if num_nodes(topology) > 1 and not between and intra == inter:
        say(
            "shardgym: warning: links between nodes are as fast as inside of nodes: give --inter-bandwidth and "
            "--inter-latency-ms, or a --topology that has them"
        )
    return topology


def _check_nodes(preset: str, devices: int, nodes: int) -> None:
    """Refuse nodes that the devices do not divide into, or that are larger than the named topology's."""
    largest = PRESETS[preset].get("fast_domain_size", devices)
    possible = [n for n in range(1, devices + 1) if devices % n == 0 and devices <= n * largest]
    if nodes not in possible:
        why = f"'{preset}' has {largest} on a node" if devices % nodes == 0 else "they do not divide"
        nearest = [n for n in possible if n < nodes][-1:] + [n for n in possible if n > nodes][:1]
        raise InputError(f"--nodes {nodes} for {devices} devices: {why}; nearest is {' or '.join(map(str, nearest))}")


def num_nodes(topology: Topology) -> int:
    """Return how many groups of devices share fast links."""
    return -(-topology.num_devices // topology.fast_domain_size)
