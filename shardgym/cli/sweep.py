"""sweep: what a model's embeddings would take on other GPUs, and on other numbers of them."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from shardgym.cli import INTERRUPTED
from shardgym.cli.common import (
    NOTATION,
    Command,
    by_name,
    engine_options,
    folder,
    json_option,
    natural,
    parse_spec,
    positive,
    positive_number,
    print_json,
    print_notes,
    read_task,
    say,
)
from shardgym.cli.torchrec import make_model
from shardgym.costs.gpu.cards import CARDS
from shardgym.engines import make_engine
from shardgym.errors import InputError, UnknownNameError
from shardgym.evaluation import SolverSpec, evaluate
from shardgym.evaluation.result import RECORDS
from shardgym.evaluation.runner import TIMEOUT_S
from shardgym.evaluation.sweep import DenseTime, Economics, Machine, Machines, describe_machine, render, task_on
from shardgym.files import read_text
from shardgym.progress import log_to_stderr
from shardgym.records import parse_json
from shardgym.tables.pools import load_pool
from shardgym.tasks.suites import suite_names
from shardgym.tasks.task import ShardingTask
from shardgym.tasks.topology import GIB, MAX_DEVICES, Topology

_Value = TypeVar("_Value")


@click.command("sweep", cls=Command)
@click.argument("model_name", metavar="MODEL")
@click.option("--gpus", required=True, metavar="NAME,...", help=f"Of {', '.join(CARDS)}.")
@click.option(
    "--devices", "devices_text", required=True, metavar="N,...",
    help="Numbers of devices; 8:1024 is 8, 16, 32 and so on to 1024.",
)  # fmt: skip
@click.option("--batch-size", type=positive, metavar="B", help="Samples per step over all devices (default: MODEL's).")
@click.option("--batch-per-device", type=positive, metavar="B", help="Instead: samples per step for each device.")
@click.option(
    "--memory-gib", "memories", multiple=True, metavar="[GPU=]X",
    help="Memory per device (default: three quarters of the card's, or all where the task counts what a step takes).",
)  # fmt: skip
@click.option(
    "--dense-ms", "dense", multiple=True, metavar="[GPU=]MS[/SAMPLES]",
    help="What the rest of the model takes in a step of one device: 12/4096 is 12 ms for 4,096 samples, and in "
    "proportion for others.",
)  # fmt: skip
@click.option("--price", "prices", multiple=True, metavar="[GPU=]X", help="Of one GPU for an hour; needs --dense-ms.")
@click.option(
    "--solver", "solver_name", default="neuroshard_plus", metavar="NAME", help=f"Makes the plans, {NOTATION}."
)
@click.option("--seed", type=natural, default=0, help="Given to the solver.")
@click.option("--time-limit", type=positive_number, metavar="SECONDS", help="Given to a solver that takes one.")
@click.option(
    "--timeout", type=positive_number, default=TIMEOUT_S, metavar="SECONDS",
    help="A solver that takes longer for a machine is stopped.",
)  # fmt: skip
@click.option("--out", type=folder, help="Where results go (default: results/sweep-MODEL).")
@engine_options
@json_option
def sweep_machines(
    model_name: str,
    gpus: str,
    devices_text: str,
    batch_size: int | None,
    batch_per_device: int | None,
    memories: tuple[str, ...],
    dense: tuple[str, ...],
    prices: tuple[str, ...],
    solver_name: str,
    seed: int,
    time_limit: float | None,
    timeout: float,
    out: Path | None,
    engine: str,
    workers: int | None,
    address: str | None,
    as_json: bool,
) -> int:
    """Plan a model for other GPUs and numbers of them.

    Of each machine: a plan, the time of a step of the embeddings, memory left, and what bounds it. MODEL is a task file
    or SUITE/INDEX, whose devices are replaced, without memory of hosts; a file of tables (.json, .csv) or the
    name of a pool; or module:function, which returns your TorchRec model.

    Every number of every GPU is a machine, with links of the card's data sheet. The solver makes a plan for it, asking
    the cost 'gpu', which also says what it takes. "bound by" is the part of the devices that saves most if it is twice
    as fast, and what of the step it saves: memory (its bandwidth), lookups (multiprocessors) or links; start-up is
    what remains of kernels and exchanges however fast devices are.

    Results are records of a run, with their plans. Broken off at any moment, the same command continues.

    --engine plans for several machines at once: 'loky' in processes of this machine, 'ray' on a Ray cluster.

    Exit code 1 when the solver failed on a machine, or none has a plan; a machine that is too small is an outcome.
    """
    names = _gpu_names(gpus)
    machines = [Machine(gpu, devices) for gpu in names for devices in _device_counts(devices_text)]
    memory = _by_gpu("--memory-gib", memories, names, positive_number, complete=False)
    economics = Economics(
        dense=_by_gpu("--dense-ms", dense, names, _dense_time), price=_by_gpu("--price", prices, names, positive_number)
    )
    if economics.price and not economics.dense:
        raise click.UsageError("--price is of whole steps: give --dense-ms, too; 0 says that embeddings are all")
    if batch_size is not None and batch_per_device is not None:
        raise click.UsageError("--batch-size or --batch-per-device, not both")
    model = read_model(model_name, batch_size or batch_per_device)
    tasks = {
        machine: task_on(
            model,
            machine,
            batch_per_device=batch_per_device,
            memory_bytes=int(memory[machine.gpu] * GIB) if machine.gpu in memory else None,
        )
        for machine in machines
    }
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", Path(model_name).stem if Path(model_name).exists() else model_name).strip(
        "-."
    )
    target = out or Path("results") / f"sweep-{stem}"
    machines_of_run = Machines(f"sweep-{stem}", tasks)
    try:
        # What a solver prints is not part of the result.
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json):
            results = evaluate(
                machines_of_run, [SolverSpec(*parse_spec(solver_name))], out=target, judge="gpu", oracle="gpu",
                seeds=[seed], time_limit_s=time_limit, timeout_s=timeout, progress=not as_json,
                engine=make_engine(engine, workers=workers, address=address),
            )  # fmt: skip
    except KeyboardInterrupt:
        say(f"shardgym: interrupted; the same command continues with what is in {target}")
        return INTERRUPTED
    found = [
        describe_machine(machine, tasks[machine], result, economics)
        for machine, result in zip(tasks, results, strict=True)
    ]
    records = str(target / RECORDS)
    if as_json:
        print_json({"machines": found, "records": records})
    else:
        print(render(found))
        print_notes(
            (f"{m.devices} x {m.gpu}", r.cost) for m, r in zip(tasks, results, strict=True) if r.cost is not None
        )
        print(f"\nrecords: {records}")
    statuses = {result.status for result in results}
    return 1 if "error" in statuses or "ok" not in statuses else 0


def read_model(text: str, batch_size: int | None) -> ShardingTask:
    """Return a task with the tables of what `MODEL` names; its devices do not count.

    Args:
        text: see `sweep_machines`.
        batch_size: samples of a step; None for that of the task or the tables.

    Raises:
        InputError: there is no such model, or it says no batch size and none is given.
    """
    path = Path(text)
    room = Topology(num_devices=1, memory_bytes=(1,)).roomy()
    if ":" in text and not path.exists():
        if batch_size is None:
            raise InputError(f"{text:.80}: a model says no batch size; give --batch-size or --batch-per-device")
        from shardgym.torchrec import import_model

        imported = import_model(make_model(text), room, batch_size)
        for what in imported.assumed:
            say(f"assumed: {what}")
        for what in imported.left_out:
            say(f"left out: {what}")
        return imported.task
    in_suite = text.split("/")[0] in suite_names() and not path.exists()
    if in_suite or (path.suffix.lower() == ".json" and _is_task(path)):
        task = read_task(text)
        return task if batch_size is None else dataclasses.replace(task, batch_size=batch_size)
    pool = load_pool(text)
    return ShardingTask(pool.tables, room, batch_size or pool.batch_size, name=pool.name)


def _is_task(path: Path) -> bool:
    data = parse_json(read_text(path), str(path))
    return isinstance(data, dict) and "topology" in data


def _gpu_names(text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in names if name not in CARDS]
    if unknown:
        raise InputError(f"unknown GPU '{unknown[0]:.40}': known: {', '.join(CARDS)}")
    return names


def _device_counts(text: str) -> list[int]:
    """Read "8:64,96" as 8, 16, 32, 64, 96."""
    counts: list[int] = []
    for part in text.split(","):
        first, colon, last = part.strip().partition(":")
        count, most = natural(first, least=1), natural(last if colon else first, least=1)
        if most < count or most > MAX_DEVICES:
            raise InputError(f"--devices {part:.40}: expected FIRST:LAST with FIRST <= LAST <= {MAX_DEVICES}")
        while count <= most:
            counts.append(count)
            count *= 2
    return list(dict.fromkeys(counts))


def _by_gpu(
    option: str, given: Sequence[str], gpus: Sequence[str], parse: Callable[[str], _Value], *, complete: bool = True
) -> dict[str, _Value]:
    """Read [GPU=]VALUE: one for all, or one of each; of nothing, nothing.

    Raises:
        InputError: as `by_name`, a GPU that the sweep has not, or, with `complete`, one that is left out.
    """
    found = by_name(option, tuple(given), parse)
    if not isinstance(found, dict):
        return dict.fromkeys(gpus, found)
    for gpu in found:
        if gpu not in gpus:
            raise UnknownNameError(f"GPU of {option}", gpu, gpus)
    missing = [gpu for gpu in gpus if gpu not in found]
    if found and missing and complete:
        raise InputError(f"{option}: nothing is said of {', '.join(missing)}: give {missing[0]}=VALUE, too")
    return found


def _dense_time(text: str) -> DenseTime:
    ms, slash, samples = text.partition("/")
    return DenseTime(0.0 if ms == "0" else positive_number(ms), positive(samples) if slash else None)
