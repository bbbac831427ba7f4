"""Options that describe a machine: devices, nodes, memory and links, from a named topology and figures of one's own."""

from __future__ import annotations

import dataclasses
from argparse import Namespace

from shardgym.cli.output import say
from shardgym.cli.parser import Parser, number_from_0, one_of, positive, positive_number
from shardgym.errors import InputError
from shardgym.topology import GIB, PRESETS, Topology

#: Interconnect of links that were given by their figures and not by a name.
OWN_LINKS = "own"

#: Figures of links: fields of `Topology` and of the parsed arguments.
_INTRA = ("intra_bandwidth", "intra_latency_ms")
_INTER = ("inter_bandwidth", "inter_latency_ms")


def add_machine(parser: Parser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--devices", required=True, type=positive, metavar="N", help="number of devices")
    add("--topology", "--preset", default="cpu", type=one_of("topology", PRESETS), metavar="NAME",
        help=f"kind of device, memory and links: {', '.join(PRESETS)} (%(default)s)")  # fmt: skip
    add("--nodes", type=positive, metavar="K", help="nodes, each with N/K devices that share its fast links (default: "
        "as few as the topology's take)")  # fmt: skip
    add("--memory-gib", type=positive_number, metavar="X", help="memory per device (default: the topology's)")
    for where, peers in ("intra", "inside its node"), ("inter", "to other nodes"):
        add(f"--{where}-bandwidth", type=positive_number, metavar="X", help=f"bytes per second that a device can send "
            f"{peers}, e.g. 25e9 (default: the topology's)")  # fmt: skip
        add(f"--{where}-latency-ms", type=number_from_0, metavar="X", help=f"start-up time of an exchange {peers} "
            "(default: the topology's)")  # fmt: skip
    add("--interconnect", metavar="NAME", help="name of the links, for display (default: the topology's, or "
        f"'{OWN_LINKS}' with figures of your own)")  # fmt: skip


def machine_of(arguments: Namespace) -> Topology:
    """Return the topology that the arguments describe, with a warning where its nodes make no difference.

    Raises:
        InputError: devices do not divide into the nodes, a node has more devices than the named topology's, links
            between nodes are given for one node, or a figure is out of range.
    """
    memory = None if arguments.memory_gib is None else _bytes(arguments.memory_gib)
    named = Topology.preset(arguments.topology, arguments.devices, memory)
    domain = named.fast_domain_size if arguments.nodes is None else _domain(arguments, arguments.nodes)
    links = {name: getattr(arguments, name) for name in _INTRA + _INTER if getattr(arguments, name) is not None}
    own = OWN_LINKS if links else named.interconnect
    interconnect = own if arguments.interconnect is None else arguments.interconnect
    topology = dataclasses.replace(named, fast_domain_size=domain, interconnect=interconnect, **links)
    _check_links(topology, [name for name in _INTER if name in links])
    return topology


def count_nodes(topology: Topology) -> int:
    """Return the number of fast domains."""
    return -(-topology.num_devices // topology.fast_domain_size)


def _domain(arguments: Namespace, nodes: int) -> int:
    """Return the devices of each node."""
    devices, largest = arguments.devices, PRESETS[arguments.topology].get("fast_domain_size", arguments.devices)
    possible = [n for n in range(1, devices + 1) if devices % n == 0 and devices <= n * largest]
    if nodes not in possible:
        why = f"'{arguments.topology}' has {largest} on a node" if devices % nodes == 0 else "they do not divide"
        near = [n for n in possible if n < nodes][-1:] + [n for n in possible if n > nodes][:1]
        raise InputError(f"--nodes {nodes} for {devices} devices: {why}; nearest is {' or '.join(map(str, near))}")
    return int(devices // nodes)


def _check_links(topology: Topology, given: list[str]) -> None:
    """Refuse links between nodes where there is one node; say so where nodes have no links of their own."""
    several = count_nodes(topology) > 1
    if given and not several:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(f"{option} is for links between nodes, and all devices are on one node: give --nodes, too")
    intra, inter = ([getattr(topology, name) for name in names] for names in (_INTRA, _INTER))
    if several and not given and intra == inter:
        say("shardgym: warning: links between nodes are as fast as inside of nodes: give --inter-bandwidth and "
            "--inter-latency-ms, or a --topology that has them")  # fmt: skip


def _bytes(gib: float) -> int:
    """Return whole bytes; what no device has is left for the topology to refuse."""
    return max(1, int(min(gib, 2.0**40) * GIB))
