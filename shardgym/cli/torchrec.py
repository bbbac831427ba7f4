"""import-torchrec, plan export, plan import: tasks from TorchRec models, and plans to TorchRec and back."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from shardgym.cli.common import ABOVE_0, answer, by_name, count, for_names, json_option, say, takes_topology, writes
from shardgym.cli.plan_files import TASK_AND_PLAN, read_file_of, read_plan, read_task, write_task
from shardgym.costs.base import make_cost
from shardgym.costs.gpu.cards import CARDS, planning_cost
from shardgym.errors import InputError, error_text
from shardgym.files import write_whole
from shardgym.plans.plan import Kind
from shardgym.registry import find_class
from shardgym.tables.streams.stream import holds_hashes, open_stream
from shardgym.tables.table import Optimizer
from shardgym.tasks.topology import GIB, Topology

if TYPE_CHECKING:
    from torch import nn

    from shardgym.torchrec.tasks import ImportedTask


@click.command("import-torchrec")
@click.argument("model_name", metavar="MODEL")
@takes_topology(required=True)
@click.option(
    "--batch-size", required=True, type=click.IntRange(1), metavar="B",
    help="Samples per step of all devices together, a multiple of their number.",
)  # fmt: skip
@click.option(
    "--log", type=click.Path(path_type=Path), metavar="FILE",
    help="File of ids: Parquet with a row per sample and a column of ids, or of lists of ids, per feature; or text "
    "like Criteo's, with features cat_0 to cat_25 whose hashes are taken modulo the rows of their tables.",
)  # fmt: skip
@click.option(
    "--pooling-factor", "factors", multiple=True, metavar="[NAME=]X", callback=by_name(ABOVE_0),
    help="Without a log: mean ids per sample, of all features of a table together, for all tables or one; repeatable.",
)  # fmt: skip
@click.option(
    "--optimizer", type=click.Choice(get_args(Optimizer)),
    help="Optimiser of all tables (default: what apply_optimizer_in_backward attached).",
)  # fmt: skip
@click.option(
    "--reserve", default="none", type=click.Choice(["none", "torchrec"]),
    help="Memory for the rest of the model: none, or TorchRec's heuristic (15 %, plus multiples of dense parameters "
    "and input buffers), of all memory of a card unless --memory-gib says otherwise.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse a model that embeds something outside its collections.")
@writes("task")
@json_option
def import_torchrec(
    model_name: str,
    topology: Topology,
    batch_size: int,
    log: Path | None,
    factors: dict[str, float],
    optimizer: Optimizer | None,
    reserve: str,
    strict: bool,
    output: Path,
    as_json: bool,
) -> int:
    """Make a task from your TorchRec model.

    MODEL is module:function, which returns the model without arguments. It is called under the meta device, so weights
    take no memory. Collections of embeddings become tables; the output names what else the model embeds. A log of ids
    says how often tables are accessed; without one, the output says what is assumed. From Python,
    `shardgym.torchrec.import_model` takes any topology, TorchRec's constraints and more.
    """
    if log is not None and factors:
        raise InputError("--pooling-factor and --log were given: give one of them")
    from shardgym.torchrec import Reserve, import_model
    from shardgym.torchrec.model_tables import model_tables

    model = make_model(model_name)
    # Names in collections, because names in the task would take precedence over exceptions.
    factors = for_names(factors, [table.config.name for table in model_tables(model)])
    sample = None
    if log is not None:
        rows = {name: t.config.num_embeddings for t in model_tables(model) for name in t.config.feature_names}
        sample = open_stream(log, features=list(rows), hash_size=rows) if holds_hashes(log) else open_stream(log)
    if reserve == "torchrec" and topology.device in CARDS and click.get_current_context().params["memory_gib"] is None:
        # Presets leave out a quarter of a card for what the reserve counts.
        topology = dataclasses.replace(
            topology, memory_bytes=(CARDS[topology.device].memory_bytes,) * topology.num_devices
        )
    imported = import_model(
        model, topology, batch_size, pooling_factors=factors or None, sample=sample, optimizer=optimizer,
        reserve=Reserve() if reserve == "torchrec" else None, strict=strict,
    )  # fmt: skip
    task = imported.task
    texts = [write_task(output, task)]
    page = {
        "task": str(output),
        "digest": task.digest,
        "tables": task.num_tables,
        "assumed": list(imported.assumed),
        "left_out": list(imported.left_out),
        "reserved_bytes": list(imported.reserved_bytes),
    }
    if max(imported.reserved_bytes):
        texts.append(f"reserved on each device: {max(imported.reserved_bytes) / GIB:.3f} GiB at most")
    answer(as_json, page, "\n".join(texts + unknowns(imported)))
    return 0


def unknowns(imported: ImportedTask) -> list[str]:
    """List what was assumed about a model's tables, and which parts of the model were left out."""
    return [f"assumed: {what}" for what in imported.assumed] + [f"left out: {what}" for what in imported.left_out]


def make_model(name: str) -> nn.Module:
    """Call a function that makes a model; raises `InputError` when there is none, or it fails."""
    import torch

    if ":" not in name:
        raise InputError(f"'{name:.80}': expected module:function, a function that returns your model")
    make = find_class("model", "", name)
    try:
        with torch.device("meta"):
            model = make()
    except Exception as error:
        raise InputError(
            f"'{name:.80}' made no model under torch.device('meta'): {error_text(error)}; "
            "task_from_model also takes a model with weights"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"'{name:.80}' returned {type(model).__name__}: expected a torch.nn.Module")
    return model


@click.command("export", epilog=TASK_AND_PLAN)
@click.argument("task_name", metavar="TASK")
@click.argument("plan_path", metavar="PLAN")
@click.option("--model", "model_name", metavar="MODEL", help="module:function: check the plan against this model.")
@click.option("--device-type", type=click.Choice(["cuda", "cpu"]), help="Devices of the job (default: cuda).")
@writes("plan of TorchRec")
@json_option
def plan_export(
    task_name: str, plan_path: str, model_name: str | None, device_type: Any, output: Path, as_json: bool
) -> int:
    """Write a plan as TorchRec's ShardingPlan.

    `shardgym.torchrec.load` reads the file in a training script. The command checks that the plan covers all tables and
    fits, and refuses what TorchRec would silently get wrong. A plan in groups becomes that of one group, for
    DMPCollection. The exit code is 1 if the plan is infeasible.
    """
    from shardgym.costs.torchrec_steps import permuted_columns
    from shardgym.torchrec import export_plan, save
    from shardgym.torchrec.table_cuts import as_run

    task = read_task(task_name)
    plan = read_plan(plan_path, task)
    model = None if model_name is None else make_model(model_name)
    exported = export_plan(plan, task, model, device_type=device_type or "cuda")
    notes = list(exported.notes)
    run = as_run(plan, task)
    if run != plan:
        with contextlib.suppress(InputError):  # 'solve' says what it cannot price
            name = planning_cost(task.topology.device)
            before, after = (f"{cost.total_ms:.3f} ms" for cost in make_cost(name).evaluate(task, [plan, run]))
            if before != after:
                notes.append(f"the plan that TorchRec runs takes {after} by '{name}', this one {before}")
    for note in notes:
        say(f"shardgym: warning: {note}")
    if device_type is None and task.topology.device.startswith("cpu"):
        say(
            f"shardgym: warning: the task is for '{task.topology.device}', the exported plan for cuda: a job on CPUs "
            "needs --device-type cpu"
        )
    columns = permuted_columns(run, task)
    if columns:
        say(
            f"shardgym: TorchRec will permute {count(columns, 'column')} of each sample's output, because tables are "
            "cut by columns; ShardGymPlanner and 'shardgym compare' price that, other costs do not"
        )
    save(exported.sharding_plan, output, plan.group_size)
    modules = exported.sharding_plan.plan.values()
    types = Counter(sharding.sharding_type for module in modules for sharding in module.values())
    found = ", ".join(f"{types[kind]} {kind}" for kind in get_args(Kind) if types[kind])
    ranks = task.num_devices if plan.group_size is None else plan.group_size
    text = f"{output}: {count(task.num_tables, 'table')} ({found}) on {count(ranks, 'rank')}"
    answer(as_json, {"sharding_plan": str(output), "tables": types, "notes": notes}, text)
    return 0


@click.command("import", epilog="TASK is a task file, or SUITE/INDEX such as quick-v2/0.")
@click.argument("task_name", metavar="TASK")
@click.argument("sharding_plan", metavar="SHARDING_PLAN")
@click.option(
    "--group-size", type=click.IntRange(1), metavar="N",
    help="Ranks of a group, if the plan is for DMPCollection and its file does not say so.",
)  # fmt: skip
@click.option("--strict", is_flag=True, help="Refuse a plan with modules that are not in the task.")
@writes("plan")
@json_option
def plan_import(
    task_name: str, sharding_plan: str, group_size: int | None, strict: bool, output: Path, as_json: bool
) -> int:
    """Read TorchRec's ShardingPlan as a plan.

    SHARDING_PLAN is a file that `shardgym.torchrec.save` wrote. Modules that are not in the task, such as a collection
    that was not imported, are left out and named. 'shardgym plan show' says whether the plan fits into memory.
    """
    from shardgym.torchrec import import_plan, load
    from shardgym.torchrec.plan_file import PlanRecord

    task = read_task(task_name)
    read_file_of(sharding_plan, "shardgym.torchrec_plan")
    groups = PlanRecord.load(sharding_plan).group_size if group_size is None else group_size
    imported = import_plan(load(sharding_plan), task, groups, strict=strict)
    plan = imported.plan
    write_whole(output, plan.to_json(indent=2) + "\n")
    text = f"{output}: {count(len(plan.shards), 'shard')} on {count(task.num_devices, 'device')}"
    text += "".join(f"\nleft out: {what}" for what in imported.left_out)
    answer(as_json, {"plan": str(output), "shards": len(plan.shards), "left_out": list(imported.left_out)}, text)
    return 0
