"""task make: a task from your own tables, and from a machine given by a named topology and figures of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import click

from shardgym.cli.machine import machine_options, make_topology, num_nodes
from shardgym.cli.options import Command, OneOf, force_option, json_option, positive
from shardgym.cli.output import check_free, count, print_json, say
from shardgym.errors import InputError
from shardgym.files import write_whole
from shardgym.plan import COLUMN_UNIT
from shardgym.pools import load_pool
from shardgym.task import Optimizer, Precision, ShardingTask
from shardgym.units import exact_bytes

PRECISIONS: tuple[str, ...] = get_args(Precision)
OPTIMIZERS: tuple[str, ...] = get_args(Optimizer)


@click.command("make", cls=Command)
@click.option("--tables", required=True, metavar="FILE", help="Tables in .json or .csv, or the name of a pool.")
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
    distribution of ids. The machine: how many devices on how many nodes, the memory of each device that embeddings may
    take, and a named topology, which says what kind of device they are and how they are linked; --intra-... and
    --inter-... say otherwise. Links count where communication is modelled, as by 'roofline'.
    """
    check_free(output, force)
    task = ShardingTask(
        tables=load_pool(tables).tables,
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
