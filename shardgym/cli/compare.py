"""compare: measures plans against each other in real training steps, on the ranks that torchrun started."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import click
from tabulate import tabulate

from shardgym.cli.common import ABOVE_0, answer, aside, count, json_option, writes
from shardgym.cli.plan_files import read_plan, read_task
from shardgym.cli.torchrec import make_model, unknowns
from shardgym.errors import InputError
from shardgym.files import read_text, write_whole
from shardgym.progress import progress_bar
from shardgym.records import parse_json
from shardgym.registry import find_class
from shardgym.tasks.task import ShardingTask, format_bytes
from shardgym.tasks.topology import PRESETS

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from shardgym.torchrec.comparing import Comparison
    from shardgym.torchrec.contenders import Contender, Given


class OfRanks(click.Command):
    """A command that all ranks run; only the first rank prints."""

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """See `click.Command`; only the first rank reports wrong arguments, too."""
        if os.environ.get("RANK", "0") != "0":
            sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
        return super().make_context(*arguments, **options)


@click.command(cls=OfRanks, epilog="PLAN is a file that shardgym.torchrec.save wrote, or a plan file of ShardGym.")
@click.argument("source", metavar="MODEL")
@click.option(
    "--plan", "names", multiple=True, required=True, metavar="torchrec|shardgym|PLAN",
    help="Plan by TorchRec's planner, by ShardGymPlanner, or from a file; repeatable. Ratios are to the first.",
)  # fmt: skip
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Samples of one rank, if no task is given.")
@click.option("--topology", "preset", type=click.Choice([*PRESETS]), help="Kind of GPUs, if no task is given.")
@click.option("--task", "task_name", metavar="TASK", help="Task of the model: its ids and devices, for planners.")
@click.option(
    "--batches", "batches_name", metavar="MODULE:FUNCTION",
    help="Function of rank and number of ranks that yields batches; model(batch) returns the loss, or a tuple that "
    "begins with it. Without --batches, only the embedding collections train, on ids drawn from the task.",
)  # fmt: skip
@click.option("--rows", default=1.0, type=click.FloatRange(0, 1, min_open=True), help="Share of rows to keep, 1 / N.")
@click.option("--within", default=0.02, type=ABOVE_0, help="Stop when half the interval of each ratio is below this.")
@click.option("--minutes", default=10.0, type=ABOVE_0, help="Stop after this time, without planning.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of ids, gradients and order.")
@writes("result")
@json_option
def compare(
    source: str,
    names: tuple[str, ...],
    batch_size: int | None,
    preset: str | None,
    task_name: str | None,
    batches_name: str | None,
    rows: float,
    within: float,
    minutes: float,
    seed: int,
    output: Path,
    as_json: bool,
) -> int:
    """Measure which plan is faster, in real steps on your ranks.

    Start it with torchrun. It uses NCCL if each rank has a GPU, else gloo. MODEL is module:function, which returns the
    model, or a task file. Every round runs each plan as steps of DistributedModelParallel, with forward pass, loss,
    backward pass and optimisers, on the same batches, until it is clear which plan is faster. The result is written
    after each round.
    """
    is_model = ":" in source and not Path(source).exists()
    wrong = {
        "--plan: expected two or more, each once": len(set(names)) < max(2, len(names)),
        "a model needs --batch-size (samples per rank) or --task": is_model and not (batch_size or task_name),
        "a task has batch size and devices of its own: leave out --batch-size and --topology": (
            (task_name or not is_model) and (batch_size or preset)
        ),
        "--batches needs a model, got a task: give module:function as MODEL": batches_name and not is_model,
        "--task needs --batches: without batches, give the task as MODEL": task_name and not batches_name,
        "give --rows or --batches, not both: ids of batches refer to all rows": batches_name and rows != 1,
    }
    for message, is_so in wrong.items():
        if is_so:
            raise InputError(message)
    factor = round(1 / rows)
    if abs(factor * rows - 1) > 0.01:  # 0.33 is 1 / 3
        raise InputError(f"--rows {rows:g}: expected 1 / N, such as {1 / factor:.3g} or {1 / (factor + 1):.3g}")

    import torch.distributed as dist

    from shardgym.torchrec import import_model, model_from_task
    from shardgym.torchrec.comparing import measure
    from shardgym.torchrec.contenders import find_contenders, plan_with_fewer_rows, with_fewer_rows
    from shardgym.torchrec.ranks import World, from_first_rank
    from shardgym.torchrec.real_steps import job_of_collections, job_of_model

    if batches_name is not None:  # looked up before planners work
        make = find_class("model", "", source)
        make_batches = find_class("batches", "", batches_name)
    world = World.of_environment()
    with world.joined() as store, _said_once(store), aside(as_json), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries to their developers
        logging.getLogger("shardgym").propagate = False  # TorchRec gives the root a handler, too
        devices = None if batch_size is None else world.topology(preset)

        def prepare() -> tuple[ShardingTask, dict[str, Contender], list[str]]:
            notes = []
            if devices is None or batch_size is None:
                task = read_task(task_name or source)
            else:
                imported = import_model(make_model(source), devices, batch_size * world.size)
                task, notes = imported.task, unknowns(imported)
            if task.num_devices != world.size:
                devices_of = count(task.num_devices, "device")
                raise InputError(f"the task has {devices_of}, but torchrun started {count(world.size, 'rank')}")
            fewer = with_fewer_rows(task, factor)
            given = {name: plan_with_fewer_rows(_given(name, task), task, fewer) for name in names}
            model = model_from_task(fewer) if batches_name is None else make()
            contenders, left_out = find_contenders(given, fewer, model, world)
            return fewer, contenders, [*notes, *left_out]

        everybody = dist.group.WORLD
        assert everybody is not None
        task, contenders, notes = from_first_rank(prepare, everybody)
        if batches_name is None:
            job = job_of_collections(task, world, seed)
        else:
            job = job_of_model(task, world, make, make_batches)
        with progress_bar(shown=not as_json, unit=" rounds") as bar:

            def keep(found: Comparison) -> None:
                if world.rank == 0:
                    write_whole(output, found.to_json(indent=2) + "\n")
                bar.set_postfix_str(", ".join(f"{plan.name} {plan.ratio:.3f}" for plan in found.plans[1:]))
                bar.update()

            result = measure(
                job, contenders, world, notes, keep, trained="model" if batches_name else "collections",
                rows=1 / factor, within=within, minutes=minutes, seed=seed,
            )  # fmt: skip
    answer(as_json, result.to_dict(), _text(result, output))
    return 0


def _given(name: str, task: ShardingTask) -> Given:
    """Return what a name given to --plan stands for: a planner, or the plan in a file."""
    from shardgym.torchrec import load
    from shardgym.torchrec.contenders import PLANNERS

    if name in PLANNERS:
        return PLANNERS[name]
    if not Path(name).exists():
        raise InputError(f"--plan {name}: expected {' or '.join(PLANNERS)}, or a plan file")
    data = {} if Path(name).suffix.lower() == ".csv" else parse_json(read_text(name), name)
    if isinstance(data, dict) and str(data.get("schema")).startswith("shardgym.torchrec_plan/"):
        plan: Given = load(name)
        return plan
    return read_plan(name, task, same_tables=True)


@contextmanager
def _said_once(store: Store) -> Iterator[None]:
    """Let the rank that fails first say why: the others fail because it is gone, or are ended by torchrun."""
    try:
        yield
    except BaseException:
        if store.add("failures", 1) > 1:
            raise click.exceptions.Exit(1) from None
        sys.stderr = sys.__stderr__
        raise


def _text(result: Comparison, output: Path) -> str:
    ranks = count(result.task.num_devices, "rank")
    rounds = count(len(result.plans[0].round_ms), "round")
    half = max(plan.half_width for plan in result.plans[1:])
    why = f"half-width {half:.3f}" if result.ended == "within" else f"the {result.minutes:g} min are over"
    base = max(result.plans[0].predicted_rank_ms, default=0.0)
    plans, of_ranks = [], []
    for plan in result.plans:
        predicted = ["-"] * len(plan.rank_ms)
        ratio = "-"
        if plan.predicted_rank_ms:
            predicted = [f"{ms:.3f}" for ms in plan.predicted_rank_ms]
            ratio = f"{max(plan.predicted_rank_ms) / base:.3f}" if base else "-"
        interval = "-" if plan.low is None or plan.high is None else f"{plan.low:.3f} .. {plan.high:.3f}"
        plans.append([plan.name, f"{geometric_mean(plan.round_ms):.3f}", f"{plan.ratio:.3f}", interval, ratio])
        for rank, ms in enumerate(plan.rank_ms):
            memory = [format_bytes(plan.peak_bytes[rank]), format_bytes(plan.predicted_bytes[rank])]
            of_ranks.append([plan.name, str(rank), f"{ms:.3f}", predicted[rank], *memory])
    titles = ["plan", "ms", "ratio", "95 % interval", f"{result.cost} ratio"]
    of_rank = ["plan", "rank", "ms", f"{result.cost} ms", "peak memory", "predicted"]
    tables = [
        tabulate(lines, headers, "simple", colalign=("left", *["right"] * (len(headers) - 1)), disable_numparse=True)
        for lines, headers in ((plans, titles), (of_ranks, of_rank))
    ]
    remarks = list(result.notes)
    if result.trained == "collections":
        remarks.append("the embedding collections were trained alone: ids drawn from the task, random gradients")
    else:
        remarks.append("planners and predictions know the ids of the task, not those of --batches")
    if result.calibration is not None:
        levels = result.calibration
        remarks.append(
            f"level of {result.cost}: compute {levels.compute:.2f}, exchanges {levels.exchange:.2f}, and "
            f"{levels.fixed_ms:.3f} ms per step that it leaves out; ids took {result.ids_ms:.3f} ms"
        )
    if result.rows != 1:
        remarks.append(f"tables kept {result.rows:.4g} of their rows, also for planners and predictions")
    head = f"{output}: {ranks} on {result.hardware} with {result.backend}, {rounds}; {why}"
    return "\n".join([head, "", tables[0], "", tables[1], "", *remarks, result.sentence()])
