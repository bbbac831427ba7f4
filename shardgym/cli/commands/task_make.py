"""Make a task from your own tables and machine.

Tables: a .json or .csv file with name, num_embeddings, embedding_dim and, if known, pooling_factor and the
distribution of ids. The machine: how many devices on how many nodes, the memory of each device that embeddings may
take, and a named topology, which says what kind of device they are and how they are linked; --intra-... and
--inter-... say otherwise. Links count where communication is modelled, as by 'roofline'.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import get_args

from shardgym.cli.machine import add_machine, count_nodes, machine_of
from shardgym.cli.output import check_free, count, print_json, say, write_result
from shardgym.cli.parser import Parser, one_of, positive
from shardgym.errors import InputError
from shardgym.plan import COLUMN_UNIT
from shardgym.pools import load_pool
from shardgym.task import Optimizer, Precision, ShardingTask
from shardgym.topology import Topology


def configure(parser: Parser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add("--tables", required=True, metavar="FILE", help="tables in .json or .csv, or the name of a pool")
    add_machine(parser)
    add("--batch-size", required=True, type=positive, metavar="B", help="samples per step over all devices")
    add("--precision", default="fp32", type=one_of("precision", get_args(Precision)), help="fp32 or fp16 (%(default)s)")
    add("--optimizer", default="exact_sgd", type=one_of("optimizer", get_args(Optimizer)),
        help=f"{', '.join(get_args(Optimizer))} (%(default)s)")  # fmt: skip
    add("--name", default="", help="for display")
    add("-o", "--output", required=True, type=Path, metavar="TASK.json", help="where the task goes")
    add("--force", action="store_true", help="overwrite an existing file")


def run(arguments: Namespace) -> int:
    """Make the task and write it."""
    check_free(arguments.output, arguments.force)
    task = ShardingTask(
        tables=load_pool(arguments.tables).tables,
        topology=machine_of(arguments),
        batch_size=arguments.batch_size, precision=arguments.precision, optimizer=arguments.optimizer,
        name=arguments.name or Path(arguments.tables).stem,
    )  # fmt: skip
    if task.total_bytes > task.topology.total_memory_bytes:
        raise InputError(
            f"the tables take {task.total_bytes} bytes with optimiser state, {task.num_devices} devices hold "
            f"{task.topology.total_memory_bytes}: no plan can fit; give more devices or memory"
        )
    _warn_of_widths(task)
    write_result(arguments.output, task.to_json(indent=2) + "\n")
    if arguments.json:
        print_json({"task": str(arguments.output), "digest": task.digest, "tables": task.num_tables})
    else:
        share = task.total_bytes / task.topology.total_memory_bytes
        print(f"{arguments.output}: {count(task.num_tables, 'table')}, {100 * share:.1f} % of the memory of "
              f"{count(task.num_devices, 'device')}{_nodes(task.topology)}")  # fmt: skip
        print(f"digest, the task_hash of its plans: {task.digest}")
    return 0


def _nodes(topology: Topology) -> str:
    """Return what to say of several nodes and their links."""
    nodes = count_nodes(topology)
    intra, inter = (f"{bandwidth / 1e9:g} GB/s" for bandwidth in (topology.intra_bandwidth, topology.inter_bandwidth))
    return "" if nodes == 1 else f" on {nodes} nodes ({topology.interconnect}: {intra} inside, {inter} between)"


def _warn_of_widths(task: ShardingTask) -> None:
    """Say that no plan can be feasible when a table cannot be cut into widths that the kernels take."""
    odd = next((table for table in task.tables if table.embedding_dim % COLUMN_UNIT), None)
    if odd is not None:
        say(f"shardgym: warning: table '{odd.name}' has {count(odd.embedding_dim, 'column')}: "
            f"FBGEMM needs multiples of {COLUMN_UNIT}, no plan will be feasible")  # fmt: skip
