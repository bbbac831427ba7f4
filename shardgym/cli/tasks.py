"""task make: a task from your own tables, and from a machine given by a named topology and figures of your own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from shardgym.cli.common import (
    Command,
    OneOf,
    check_free,
    count,
    force_option,
    json_option,
    non_negative_number,
    positive,
    positive_number,
    print_json,
    say,
)
from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.plan import COLUMN_UNIT
from shardgym.pools import load_pool
from shardgym.pools.load import PLACEHOLDER_DIM, SYNTHETIC_BATCH
from shardgym.task import Optimizer, Precision, ShardingTask, exact_bytes
from shardgym.topology import GIB, PRESETS, Topology

PRECISIONS: tuple[str, ...] = get_args(Precision)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)

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

    None stands for what the topology named `preset` has; `links` are bandwidths and latencies.

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


@click.command("make", cls=Command)
@click.option("--tables", required=True, metavar="FILE", help="Tables in .json or .csv, or the name of a pool.")
@click.option(
    "--embedding-dim", type=positive, metavar="N",
    help=f"Columns of every table, in place of the file's; {PLACEHOLDER_DIM} where the file has none.",
)  # fmt: skip
@machine_options
@click.option("--batch-size", required=True, type=positive, metavar="B", help="Samples per step over all devices.")
@click.option("--precision", default="fp32", type=OneOf("precision", PRECISIONS), help=" or ".join(PRECISIONS))
@click.option("--optimizer", default="exact_sgd", type=OneOf("optimizer", OPTIMIZERS), help=", ".join(OPTIMIZERS))
@click.option("--name", metavar="NAME", help="For display (default: that of the file).")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the task goes.")
@force_option
@json_option
def make(
    tables: str,
    embedding_dim: int | None,
    batch_size: int,
    precision: Precision,
    optimizer: Optimizer,
    name: str | None,
    output: Path,
    force: bool,
    as_json: bool,
    **machine: Any,
) -> int:
    """Make a task from your own tables and machine.

    Tables: a .json or .csv file with name, num_embeddings, embedding_dim and, if known, pooling_factor and the
    distribution of ids; a file of dlrm_datasets, which has no widths; or a pool by name. The machine: how many devices
    on how many nodes, the memory of each device that embeddings may take, and a named topology, which says what kind of
    device they are and how they are linked; --intra-... and --inter-... say otherwise. Links count where communication
    is modelled, as by 'roofline'.
    """
    check_free(output, force)
    pool = load_pool(tables).tables
    if embedding_dim is not None:
        pool = tuple(dataclasses.replace(table, embedding_dim=embedding_dim) for table in pool)
    elif tables in SYNTHETIC_BATCH or tables.endswith((".pt", ".pt.gz")):
        say(
            f"shardgym: warning: '{tables}' has no widths: every table gets {PLACEHOLDER_DIM} columns; give "
            "--embedding-dim N, or tables with widths of their own in .json or .csv"
        )
    task = ShardingTask(
        tables=pool,
        topology=make_topology(**machine),
        batch_size=batch_size,
        precision=precision,
        optimizer=optimizer,
        name=name or Path(tables).stem,
    )
    check_fits(task)
    odd = next((table for table in task.tables if table.embedding_dim % COLUMN_UNIT), None)
    if odd is not None:
        say(
            f"shardgym: warning: table '{odd.name}' has {count(odd.embedding_dim, 'column')}: "
            f"FBGEMM needs multiples of {COLUMN_UNIT}, no plan will be feasible"
        )
    write_whole(output, task.to_json(indent=2) + "\n")
    if as_json:
        print_json({"task": str(output), "digest": task.digest, "tables": task.num_tables})
    else:
        print_task(task, output)
    return 0


def check_fits(task: ShardingTask) -> None:
    """Raise `InputError` when the tables are larger than all devices together."""
    if task.total_bytes > task.topology.total_memory_bytes:
        raise InputError(
            f"the tables take {exact_bytes(task.total_bytes)} with optimiser state, {task.num_devices} devices hold "
            f"{exact_bytes(task.topology.total_memory_bytes)}: no plan can fit; give more devices or memory"
        )


def print_task(task: ShardingTask, path: Path) -> None:
    """Print what a task that was written to a file holds, and its digest."""
    topology = task.topology
    share = task.total_bytes / topology.total_memory_bytes
    nodes = ""
    if num_nodes(topology) > 1:
        intra, inter = (f"{rate / 1e9:g} GB/s" for rate in (topology.intra_bandwidth, topology.inter_bandwidth))
        nodes = f" on {num_nodes(topology)} nodes ({topology.interconnect}: {intra} inside, {inter} between)"
    print(
        f"{path}: {count(task.num_tables, 'table')}, {100 * share:.1f} % of the memory of "
        f"{count(task.num_devices, 'device')}{nodes}"
    )
    print(f"digest, the task_hash of its plans: {task.digest}")
