"""import-torchrec, plan export, plan import: tasks from TorchRec models, and plans to TorchRec and back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardgym.cli.common import (
    TASK_AND_PLAN,
    Command,
    OneOf,
    answer,
    check_free,
    count,
    force_option,
    json_option,
    non_negative_number,
    positive,
    print_json,
    read_task,
    say,
)
from shardgym.cli.plan_files import read_plan
from shardgym.cli.tasks import OPTIMIZERS, check_fits, machine_options, make_topology, print_task
from shardgym.errors import InputError, ShardGymError, error_text
from shardgym.files import write_whole
from shardgym.records import parse_json, read_text
from shardgym.registry import find_class
from shardgym.task import Optimizer
from shardgym.topology import GIB

if TYPE_CHECKING:
    from torch import nn

    from shardgym.integrations.torchrec.tasks import SharedTables

#: What `--reserve` takes.
RESERVES = ("none", "torchrec")


@click.command("import-torchrec", cls=Command)
@click.argument("model_name", metavar="MODEL")
@machine_options
@click.option("--batch-size", required=True, type=positive, metavar="B", help="Samples per step over all devices.")
@click.option(
    "--log", type=click.Path(path_type=Path), metavar="FILE",
    help="Parquet file with a row per sample and a column of ids, or of lists of ids, per feature.",
)  # fmt: skip
@click.option("--samples", type=positive, metavar="N", help="Samples of the log that are read (default: all).")
@click.option(
    "--pooling-factors", type=click.Path(path_type=Path), metavar="FILE",
    help='Mean ids per sample: {"TABLE": NUMBER, ...} in .json.',
)  # fmt: skip
@click.option(
    "--optimizer", type=OneOf("optimizer", OPTIMIZERS),
    help=f"{', '.join(OPTIMIZERS)} (default: the one attached to the tables, or exact_sgd).",
)  # fmt: skip
@click.option(
    "--reserve", default="none", type=OneOf("reserve", RESERVES),
    help="Memory for the rest of the model: none, or by TorchRec's heuristic, which takes 15 % and multiples of dense "
    "parameters and input buffers.",
)  # fmt: skip
@click.option(
    "--reserve-gib", default=0.0, type=non_negative_number, metavar="X",
    help="Memory per device for activations and whatever else, besides.",
)  # fmt: skip
@click.option(
    "--shared-tables", default="refuse", type=OneOf("treatment", ("refuse", "add")),
    help="Tables that features share: refuse, or add their bags up, which counts too little communication.",
)  # fmt: skip
@click.option("--materialize", is_flag=True, help="Make the model with its weights, and not on the meta device.")
@click.option("--name", default="", metavar="NAME", help="For display (default: the model and what is assumed).")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the task goes.")
@force_option
@json_option
def import_torchrec(
    model_name: str,
    batch_size: int,
    log: Path | None,
    samples: int | None,
    pooling_factors: Path | None,
    optimizer: Optimizer | None,
    reserve: str,
    reserve_gib: float,
    shared_tables: SharedTables,
    materialize: bool,
    name: str,
    output: Path,
    force: bool,
    as_json: bool,
    **machine: Any,
) -> int:
    """Make a task from the embedding collections of your own TorchRec model.

    MODEL is module:function, a function without arguments that returns the model. It is called under the meta device,
    so that weights take no memory. How often tables are accessed comes from a log of ids or from pooling factors; what
    is assumed without them is said.
    """
    check_free(output, force)
    from shardgym.integrations.torchrec import Reserve, import_model, read_log
    from shardgym.integrations.torchrec.model_tables import model_tables

    topology = make_topology(**machine)
    model = _make_model(model_name, materialize=materialize)
    if log is not None and pooling_factors is not None:
        raise InputError("--log and --pooling-factors were given: leave one out")
    sample = None
    if log is not None:
        features = [feature for table in model_tables(model) for feature in table.config.feature_names]
        sample = read_log(log, features, samples)
    factors = None
    if pooling_factors is not None:
        factors = parse_json(read_text(pooling_factors), str(pooling_factors))
        if not isinstance(factors, dict):
            raise InputError(f'{pooling_factors}: expected {{"TABLE": NUMBER, ...}}, got {type(factors).__name__}')
    extra_bytes = int(reserve_gib * GIB)
    kept = Reserve(extra_bytes=extra_bytes)
    if reserve == "none":
        kept = Reserve(share=0.0, dense_copies=0.0, input_copies=0.0, extra_bytes=extra_bytes)
    imported = import_model(
        model,
        topology,
        batch_size,
        pooling_factors=factors,
        sample=sample,
        optimizer=optimizer,
        reserve=kept if reserve != "none" or extra_bytes else None,
        shared_tables=shared_tables,
        name=name,
    )
    task = imported.task
    check_fits(task)
    write_whole(output, task.to_json(indent=2) + "\n")
    if as_json:
        page = {"task": str(output), "digest": task.digest, "tables": task.num_tables}
        print_json(page | {"assumed": list(imported.assumed), "reserved_bytes": list(imported.reserved_bytes)})
        return 0
    print_task(task, output)
    if max(imported.reserved_bytes):
        print(f"reserved on each device: {max(imported.reserved_bytes) / GIB:.3f} GiB at most")
    for what in imported.assumed:
        print(f"assumed: {what}")
    return 0


def _make_model(name: str, *, materialize: bool) -> nn.Module:
    """Call a function that makes a model; raises `InputError` when there is none, or it fails."""
    import torch

    if ":" not in name:
        raise InputError(f"'{name:.80}': expected module:function, a function that returns your model")
    make = find_class("model", "", name)
    if not callable(make):
        raise InputError(f"'{name:.80}' is an object of {type(make).__name__}: expected a function without arguments")
    try:
        with torch.device("cpu" if materialize else "meta"):
            model = make()
    except ShardGymError:
        raise
    except Exception as error:
        remedy = "" if materialize else "; --materialize makes the model with its weights"
        raise InputError(f"'{name:.80}' made no model: {error_text(error)}{remedy}") from error
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"'{name:.80}' returned {type(model).__name__}: expected a torch.nn.Module")
    return model


@click.command("export", cls=Command, epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_path", metavar="PLAN")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where TorchRec's plan goes.")
@click.option(
    "--model", "model_name", metavar="MODEL", help="module:function that makes the model; the plan is held against it."
)
@click.option("--device-type", type=OneOf("type", ("cuda", "cpu")), help="cuda (the default) or cpu, what runs it.")
@click.option(
    "--ranks-per-host", type=positive, metavar="N", help="Ranks of one machine (default: the task's fast domain)."
)
@force_option
@json_option
def export_plan(
    task_name: str,
    plan_path: str,
    output: Path,
    model_name: str | None,
    device_type: Any,
    ranks_per_host: int | None,
    force: bool,
    as_json: bool,
) -> int:
    """Write a plan as TorchRec's ShardingPlan.

    `shardgym.integrations.torchrec.load` reads the file in a training script. The plan is checked before it leaves:
    cover, memory, widths, ranks, and what TorchRec would get wrong without a word. Exit code 1 when it is infeasible.
    """
    check_free(output, force)
    from shardgym.integrations.torchrec import save, to_torchrec

    task = read_task(task_name)
    plan = read_plan(plan_path, task)
    model = None if model_name is None else _make_model(model_name, materialize=False)
    exported = to_torchrec(plan, task, model, device_type=device_type or "cuda", ranks_per_host=ranks_per_host)
    if device_type is None and task.topology.device.startswith("cpu"):
        say(
            f"shardgym: warning: the task is for '{task.topology.device}', the exported plan for cuda: a job on CPUs "
            "needs --device-type cpu"
        )
    save(exported, output)
    types: dict[str, int] = dict.fromkeys(["table_wise", "column_wise", "row_wise", "table_row_wise"], 0)
    for module in exported.plan.values():
        for sharding in module.values():
            types[sharding.sharding_type] += 1
    found = ", ".join(f"{number} {name}" for name, number in types.items() if number)
    text = f"{output}: {count(task.num_tables, 'table')} ({found}) on {count(task.num_devices, 'rank')}"
    answer(as_json, {"sharding_plan": str(output), "tables": types}, text)
    return 0


@click.command("import", cls=Command, epilog="TASK is a task file, or SUITE/INDEX such as quick-v1/0.")
@click.argument("task_name", metavar="TASK")
@click.argument("sharding_plan", metavar="SHARDING_PLAN")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Where the plan goes.")
@force_option
@json_option
def import_plan(task_name: str, sharding_plan: str, output: Path, force: bool, as_json: bool) -> int:
    """Read TorchRec's ShardingPlan, which `shardgym.integrations.torchrec.save` wrote, as a plan for a task.

    Memory is not checked here: 'shardgym plan show' says whether the plan fits.
    """
    check_free(output, force)
    from shardgym.integrations.torchrec import from_torchrec, load

    task = read_task(task_name)
    plan = from_torchrec(load(sharding_plan), task)
    write_whole(output, plan.to_json(indent=2) + "\n")
    text = f"{output}: {count(len(plan.shards), 'shard')} on {count(task.num_devices, 'device')}"
    answer(as_json, {"plan": str(output), "shards": len(plan.shards)}, text)
    return 0
