"""collect, pretrain, fit: measured samples, the simulator that is trained on them, and learned solvers."""

import dataclasses
from pathlib import Path
from typing import Any

import click
from tabulate import tabulate

from shardgym.cli.common import ABOVE_0, NOTATION, answer, aside, json_option, open_solver, parse_spec, say
from shardgym.costs.base import make_cost
from shardgym.errors import InputError
from shardgym.evaluation.solver import takes
from shardgym.progress import progress_bar
from shardgym.tasks.suites import load_suite
from shardgym.tasks.suites.spec import CostChoice

# Collecting and training import torch, which takes seconds: not for --help.


@click.command("collect")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="Folder of the measurements.")
@click.option("--device", default="cpu", type=click.Choice(["cpu", "cuda"]), help="Device to measure.")
@click.option("--samples", type=click.IntRange(0), help="Shard sets, without repeats (default: 15,000).")
@click.option("--steps", type=click.IntRange(0), help="Tasks of complete steps (default: 500; none on cuda).")
@click.option("--space", "space_file", metavar="FILE", help="JSON file of the space of shard sets.")
@click.option("--minutes", type=ABOVE_0, metavar="X", help="Start no new sample after this time.")
@click.option("--repeated", type=click.FloatRange(0, 1), help="Share of samples measured twice (default: 0.15).")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of all draws.")
@json_option
def collect(out: str, space_file: str | None, as_json: bool, **settings: Any) -> int:
    """Measure the training data of simulators.

    Samples are shard sets of one device and, on CPUs, complete steps of all devices of a plan. Every measurement is
    appended to DIRECTORY/measurements.jsonl at once. After an interruption, the same command continues; with higher
    numbers it adds samples. Finally it writes compute.parquet and steps.parquet. `shardgym.training.Space` lists the
    axes of --space.

    The exit code is 1 if a sample could not be measured.
    """
    from shardgym.training import Space, collect

    given = {name: value for name, value in settings.items() if value is not None}
    space = None if space_file is None else Space.load(space_file)
    with aside(as_json):
        summary = collect(out, space=space, progress=not as_json, **given)
    answer(as_json, dataclasses.asdict(summary), "\n".join(summary.lines()))
    return 1 if summary.failed else 0


@click.command("pretrain")
@click.argument("data_folders", type=click.Path(path_type=Path), metavar="DATA...", nargs=-1, required=True)
@click.option(
    "-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of weights and cards."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of weights, split and order.")
@click.option("--epochs", type=click.IntRange(1), help="Passes over the samples (default: 100, or more for few).")
@click.option("--report", "with_report", is_flag=True, help="Draw errors and losses into DIRECTORY/report.")
@click.option("--force", is_flag=True, help="Overwrite weights in DIRECTORY.")
@json_option
def pretrain(
    data_folders: tuple[Path, ...],
    out: Path,
    seed: int,
    epochs: int | None,
    with_report: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Train the simulator on measured samples.

    DATA is a folder that 'shardgym collect' wrote, or several. The command writes weights (safetensors) and a model
    card (JSON) for the oracle, and for the judge if there are samples for it. Use them with make_cost("simulator",
    weights=DIRECTORY). Without complete steps among the samples, as from a GPU, they predict kernels, and
    communication is latency plus bytes over bandwidth. The same samples and seed give the same weights.
    """
    from shardgym.training.data import load_data
    from shardgym.training.fitting import FitSettings
    from shardgym.training.pretrain import draw_report, pretrain

    if not force and any(out.glob("*.safetensors")):
        raise InputError(f"{out} holds weights: give another folder, or --force to overwrite them")
    data = load_data(*data_folders)
    if not len(data.steps):
        say(f"{data_folders[0]} has no complete steps: the simulator will only predict kernels, and model exchanges")
    settings = FitSettings() if epochs is None else FitSettings(epochs=epochs, least_steps=0)
    with progress_bar(shown=not as_json, unit="epoch") as bar:

        def advance(name: str, done: int, total: int) -> None:
            bar.set_description(name)
            bar.total = total
            bar.update(done - bar.n)

        cards = pretrain(data, out, settings, seed, advance)
    if with_report:
        for card in cards:
            draw_report(card, data, out)
        say(f"plots are in {out / 'report'}")
    if len(cards) == 1:
        say("no judge was trained: too few samples of role 'judge'")
    tables = [f"{card.role}, trained for {card.hardware}\n\n{_error_table(card.errors)}\n" for card in cards]
    answer(as_json, [card.to_dict() for card in cards], "\n".join([*tables, f"weights and cards are in {out}"]))
    return 0


def _error_table(errors: dict[str, dict[str, float | None]]) -> str:
    columns = {"mape": "error", "noise_mape": "of repeat", "kendall_tau": "tau", "noise_kendall_tau": "of repeat"}
    rows = [[part.replace("_", " "), *(error[key] for key in columns)] for part, error in errors.items()]
    return tabulate(rows, ["part", *columns.values()], "simple", floatfmt=".3f", missingval="unknown")


@click.command("fit")
@click.argument("solver_name", metavar="SOLVER")
@click.option(
    "--suite", "suite_names", required=True, multiple=True, metavar="NAME",
    help="Draw tasks like those of this suite; repeatable, for equally many tasks of each.",
)  # fmt: skip
@click.option("--oracle", metavar="NAME", help=f"The cost that the solver queries, {NOTATION} (default: the suite's).")
@click.option(
    "--tasks", "num_tasks", type=click.IntRange(1), default=600, help="Number of tasks; every tenth validates."
)
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the draw and of training.")
@click.option("--steps", type=click.IntRange(1), help="Training steps (default: the solver's).")
@click.option("--minutes", type=ABOVE_0, metavar="X", help="Stop after this time of training, resumed parts included.")
@click.option("--out", help="Folder of the weights (default: weights/SOLVER/SUITE/seed-N).")
@click.option("--resume", is_flag=True, default=None, help="Continue from the checkpoint, if there is one.")
@json_option
def fit(
    solver_name: str,
    suite_names: tuple[str, ...],
    oracle: str | None,
    num_tasks: int,
    seed: int,
    out: str | None,
    as_json: bool,
    **settings: Any,
) -> int:
    """Train a learned solver and write its weights.

    SOLVER is NAME[,KEY=VALUE...], a registered name or module:Class; settings are those of its training. The class
    needs fit(tasks, cost, seed) and save(folder).

    Tasks are drawn like those of the suite, but from the train half of its pool, so the tables of the suite stay held
    out. Solvers that ship write weights (safetensors), a card (JSON) with the learning curve, and checkpoints. After an
    interruption, the same command with --resume continues and ends with the same weights.
    """
    from shardgym.envs.tasks import training_tasks

    solver = open_solver(solver_name)
    name, _ = parse_spec(solver_name)
    learn = getattr(solver, "fit", None)
    if not callable(learn) or not callable(getattr(solver, "save", None)):
        raise InputError(f"solver '{name}' cannot learn: it has no fit(tasks, cost, seed) and save(folder)")
    given = {option: value for option, value in settings.items() if value is not None}
    for option in given:
        if not takes(learn, option):
            raise InputError(f"--{option}: fit() of this solver takes no '{option}': leave it out")
    suites = [load_suite(suite_name) for suite_name in suite_names]
    listed = "+".join(suite.name for suite in suites)
    choice = suites[0].track().oracle if oracle is None else CostChoice(*parse_spec(oracle))
    folder = Path(out or f"weights/{name.replace(':', '.')}/{listed}/seed-{seed}")
    source = f"train half of the pool of {listed}, drawn like its tasks with seed {seed}"
    offered = {"checkpoint_dir": folder, "progress": not as_json, "source": source}
    given |= {option: value for option, value in offered.items() if takes(learn, option)}
    with aside(as_json), make_cost(choice.cost, **choice.settings) as cost:
        learn(training_tasks(suite_names, num_tasks, seed), cost, seed=seed, **given)
    solver.save(folder)  # type: ignore[attr-defined]
    card = getattr(solver, "card", None)
    use = "" if card is None else f"; use them with --solver {name},weights={folder}"
    page = {"weights": str(folder), "card": None if card is None else card.to_dict()}
    answer(as_json, page, f"weights are in {folder}{use}")
    return 0
