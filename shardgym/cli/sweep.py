"""sweep: step time and memory of a model's embeddings on other GPUs and numbers of GPUs."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from shardgym.cli.common import (
    ABOVE_0,
    GIB_OF_A_DEVICE,
    NOTATION,
    answer,
    aside,
    by_name,
    for_names,
    json_option,
    notes_of,
    parse_spec,
    say,
    takes_engine,
)
from shardgym.cli.plan_files import read_task
from shardgym.cli.torchrec import make_model, unknowns
from shardgym.costs.gpu.cards import CARDS
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation import Resume, SolverSpec, evaluate
from shardgym.evaluation.result import RECORDS
from shardgym.evaluation.runner import TIMEOUT_S
from shardgym.evaluation.sweep import DenseTime, Economics, Machine, Machines, describe_machine, render, task_on
from shardgym.files import read_text
from shardgym.records import parse_json
from shardgym.tables.pools import load_pool
from shardgym.tables.table import tables_in_batches
from shardgym.tasks.suites import suite_names
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import GIB, MAX_DEVICES, Topology


class _DenseTime(click.ParamType):  # type: ignore[type-arg]  # older versions of click are not generic
    """MS[/SAMPLES]."""

    name = "ms"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DenseTime:
        ms, slash, samples = value.partition("/")
        number = click.IntRange(1).convert(samples, param, ctx) if slash else None
        return DenseTime(click.FloatRange(0).convert(ms, param, ctx), number)


def _read_machines(ctx: click.Context, param: click.Parameter, text: Any) -> list[int]:
    """Read "8:64,96" as 8, 16, 32, 64, 96."""
    counts: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition(":")
        number, most = (click.IntRange(1, MAX_DEVICES).convert(n, param, ctx) for n in (first, last or first))
        if most < number:
            raise click.BadParameter(f"{part}: expected FIRST:LAST with FIRST <= LAST", ctx, param)
        while number <= most:
            counts.append(number)
            number *= 2
    return list(dict.fromkeys(counts))


@click.command("sweep")
@click.argument("model_name", metavar="MODEL")
@click.option("--gpus", required=True, metavar="NAME,...", help=f"Some of {', '.join(CARDS)}.")
@click.option(
    "--devices", "counts", required=True, metavar="N,...", callback=_read_machines,
    help="Numbers of devices; 8:1024 is 8, 16, 32 and so on to 1024.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples of a step (default: MODEL's).")
@click.option("--batch-per-device", type=click.IntRange(1), metavar="B", help="Samples per device instead.")
@click.option(
    "--memory-gib", "memory", multiple=True, metavar="[GPU=]X", callback=by_name(GIB_OF_A_DEVICE),
    help="Memory per device (default: 75 % of the card's, or all if the task counts the memory of a step).",
)  # fmt: skip
@click.option(
    "--dense-ms", "dense", multiple=True, metavar="[GPU=]MS[/SAMPLES]", callback=by_name(_DenseTime()),
    help="Time of the rest of the model on one device: 12/4096 is 12 ms for 4,096 samples, and scales "
    "linearly.",
)  # fmt: skip
@click.option(
    "--price", multiple=True, metavar="[GPU=]X", callback=by_name(ABOVE_0),
    help="Price of a GPU per hour; needs --dense-ms.",
)  # fmt: skip
@click.option("--solver", "solver_name", default="neuroshard_plus", metavar="NAME", help=f"The solver, {NOTATION}.")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the solver.")
@click.option("--time-limit", "time_limit_s", type=ABOVE_0, metavar="SECONDS", help="Limit, for solvers that take one.")
@click.option("--timeout", "timeout_s", type=ABOVE_0, default=TIMEOUT_S, metavar="SECONDS", help="Stop the solver.")
@click.option("--out", type=click.Path(file_okay=False), help="Folder of results (default: results/sweep-MODEL).")
@click.option("--resume", type=click.Choice([*map(str, Resume)]), default="missing", help="As for `run`.")
@takes_engine
@json_option
def sweep_machines(
    model_name: str,
    gpus: str,
    counts: list[int],
    batch_size: int | None,
    batch_per_device: int | None,
    memory: Any,
    dense: Any,
    price: Any,
    solver_name: str,
    seed: int,
    out: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Plan a model for other GPUs and numbers of them.

    MODEL is a task file or SUITE/INDEX, whose devices are replaced, without host memory; a file of tables (.json,
    .csv) or the name of a pool; or module:function, which returns your TorchRec model.

    Every combination of a GPU and a number of devices is a machine, with the links of the card's data sheet. The cost
    'gpu' is the solver's oracle and the judge of its plans. The table shows the time of a step of the embeddings, the
    memory left, and what bounds the step: the part of the devices that would save most if it were twice as fast.

    Results are records of a run, with their plans. After an interruption, the same command continues. The exit code is
    1 if the solver failed on a machine, or no machine has a plan; a machine that is too small is an outcome.
    """
    names = list(dict.fromkeys(name.strip() for name in gpus.split(",")))
    for name in names:
        if name not in CARDS:
            raise UnknownNameError("GPU", name, CARDS)
    room = _by_gpu("--memory-gib", memory, names)
    economics = Economics(
        _by_gpu("--dense-ms", dense, names, of_all=True), _by_gpu("--price", price, names, of_all=True)
    )
    if economics.price and not economics.dense:
        raise click.UsageError("--price needs --dense-ms, the rest of the step; give 0 if there is none")
    if batch_size is not None and batch_per_device is not None:
        raise click.UsageError("--batch-size or --batch-per-device, not both")
    model = read_model(model_name, batch_size or batch_per_device)
    if model.step_memory is not None and (reserved := max(model.step_memory.reserved_bytes)):
        say(f"the task reserves {reserved / GIB:.3f} GiB of each device, whatever its size, as where it was made")
    if model.topology.host_memory_bytes:
        say("the memory of hosts is left out: all rows are in the memory of devices")
    tasks = {}
    for machine in (Machine(gpu, devices) for gpu in names for devices in counts):
        memory_bytes = int(room[machine.gpu] * GIB) if machine.gpu in room else None
        tasks[machine] = task_on(model, machine, batch_per_device=batch_per_device, memory_bytes=memory_bytes)
    title = Path(model_name).stem if Path(model_name).exists() else model_name
    name = "sweep-" + re.sub(r"[^A-Za-z0-9.]+", "-", title).strip("-.")
    folder = Path(out or f"results/{name}")
    solvers = [SolverSpec(*parse_spec(solver_name))]
    with aside(as_json):
        results = evaluate(
            Machines(name, tasks), solvers, out=folder, judge="gpu", oracle="gpu", seeds=[seed], progress=not as_json,
            **settings,
        )  # fmt: skip
    found = [describe_machine(m, tasks[m], result, economics) for m, result in zip(tasks, results, strict=True)]
    costs = [(f"{m.devices} x {m.gpu}", r.cost) for m, r in zip(tasks, results, strict=True) if r.cost is not None]
    records = str(folder / RECORDS)
    text = "\n".join([render(found), *notes_of(costs), f"\nrecords: {records}"])
    answer(as_json, {"machines": found, "records": records}, text)
    statuses = {result.status for result in results}
    return 1 if statuses & {"error", "unmeasured"} or "ok" not in statuses else 0


def read_model(text: str, batch_size: int | None) -> ShardingTask:
    """Return a task with the tables of what MODEL names; its devices do not count."""
    path = Path(text)
    room = Topology(num_devices=1, memory_bytes=(1,)).roomy()
    if ":" in text and not path.exists():
        if batch_size is None:
            raise InputError(f"{text:.80}: a model has no batch size; give --batch-size or --batch-per-device")
        from shardgym.torchrec import import_model

        imported = import_model(make_model(text), room, batch_size)
        say("\n".join(unknowns(imported)))
        return imported.task
    is_task = text.split("/")[0] in suite_names() and not path.exists()
    if not is_task and path.suffix.lower() == ".json":
        content = parse_json(read_text(path), text)
        is_task = isinstance(content, dict) and "topology" in content
    if is_task:
        task = read_task(text)
        batch_size = batch_size or task.batch_size
        tables = tables_in_batches(task.tables, task.batch_size, batch_size)
        return dataclasses.replace(task, tables=tables, batch_size=batch_size)
    pool = load_pool(text)
    batch_size = batch_size or pool.batch_size
    return ShardingTask(tables_in_batches(pool.tables, pool.batch_size, batch_size), room, batch_size, name=pool.name)


def _by_gpu(option: str, given: Mapping[str, Any], gpus: Sequence[str], *, of_all: bool = False) -> dict[str, Any]:
    """Return the values given, by GPU; `of_all`: of each GPU, if of any."""
    values = for_names(given, gpus)
    for gpu in values:
        if gpu not in gpus:
            raise UnknownNameError(f"GPU of {option}", gpu, gpus)
    lacking = [gpu for gpu in gpus if gpu not in values]
    if of_all and values and lacking:
        raise InputError(f"{option} has no value for {', '.join(lacking)}: give one for each of --gpus, or one for all")
    return values
