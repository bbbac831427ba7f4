"""fit: train a learned solver on tasks like those of a suite, and write its weights."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from shardgym.cli import INTERRUPTED
from shardgym.cli.common import (
    NOTATION,
    Command,
    folder,
    json_option,
    natural,
    open_solver,
    parse_spec,
    positive,
    positive_number,
    print_json,
    say,
)
from shardgym.costs.base import make_cost
from shardgym.errors import InputError
from shardgym.progress import log_to_stderr
from shardgym.records import Record
from shardgym.solver import Solver
from shardgym.suites import load_suite
from shardgym.suites.spec import CostChoice

#: Training tasks unless the command line says otherwise.
NUM_TASKS = 600


@click.command("fit", cls=Command)
@click.argument("solver_name", metavar="SOLVER")
@click.option("--suite", "suite_name", required=True, metavar="NAME", help="Tasks like those of this suite.")
@click.option("--oracle", metavar="NAME", help=f"The cost to learn from, {NOTATION} (default: the suite's).")
@click.option("--tasks", "num_tasks", type=positive, default=NUM_TASKS, metavar="N", help="Training tasks to draw.")
@click.option("--seed", type=natural, default=0, help="Of the draw and of training.")
@click.option("--steps", type=positive, metavar="N", help="Training steps (default: the solver's).")
@click.option("--minutes", type=positive_number, metavar="X", help="Begin no step after so long.")
@click.option("--out", type=folder, help="Where the weights go (default: weights/SOLVER/SUITE/seed-N).")
@click.option("--resume", is_flag=True, help="Go on from the checkpoint in FOLDER, if there is one.")
@click.option("--tensorboard", type=folder, metavar="FOLDER", help="Write TensorBoard's files there.")
@json_option
def fit(
    solver_name: str,
    suite_name: str,
    oracle: str | None,
    num_tasks: int,
    seed: int,
    steps: int | None,
    minutes: float | None,
    out: Path | None,
    resume: bool,
    tensorboard: Path | None,
    as_json: bool,
) -> int:
    """Train a learned solver and write its weights.

    SOLVER is NAME[,KEY=VALUE...], a registered name or module:Class; settings are those of its training. The class
    needs fit(tasks, cost, seed) and save(folder).

    Tasks are drawn like those of the suite, but from the train half of its pool: no table of the suite is ever seen.
    Costs are asked of the oracle. FOLDER gets the weights (safetensors), a card (JSON), and meanwhile a checkpoint and
    the learning curve. Killed at any moment, the same command with --resume continues and gives the same weights as if
    nothing had happened. Use them with --solver SOLVER,weights=FOLDER.
    """
    from shardgym.envs.tasks import training_tasks

    solver = open_solver(solver_name)
    name = parse_spec(solver_name).name
    if not callable(getattr(solver, "fit", None)) or not callable(getattr(solver, "save", None)):
        raise InputError(f"solver '{name}' learns nothing: it has no fit(tasks, cost, seed) and save(folder)")
    suite = load_suite(suite_name)
    choice = suite.track().oracle if oracle is None else CostChoice(*parse_spec(oracle))
    cost = make_cost(choice.cost, **choice.settings)
    out = out or Path("weights") / name.replace(":", ".") / suite.name / f"seed-{seed}"
    options = _options(
        solver,
        {
            "--steps": ("steps", steps),
            "--minutes": ("minutes", minutes),
            "--resume": ("resume", resume or None),
            "--tensorboard": ("log_dir", tensorboard),
        },
    )
    tasks = training_tasks(suite_name, num_tasks, seed)
    quiet = {
        "checkpoint_dir": out,
        "progress": not as_json,
        "source": f"train half of the pool of {suite.name}, drawn like its tasks with seed {seed}",
    }
    options |= {option: value for option, value in quiet.items() if _takes(solver, option)}
    try:
        with contextlib.redirect_stdout(sys.stderr), log_to_stderr(info=not as_json), cost:
            solver.fit(tasks, cost, seed=seed, **options)  # type: ignore[attr-defined]
    except KeyboardInterrupt:
        say(f"shardgym: interrupted; the same command with --resume continues in {out}")
        return INTERRUPTED
    solver.save(out)  # type: ignore[attr-defined]
    card = getattr(solver, "card", None)
    if as_json:
        print_json({"weights": str(out), "card": None if card is None else card.to_dict()})
    else:
        is_shared = isinstance(card, Record)
        print(f"weights are in {out}" + (f"; use them with --solver {name},weights={out}" if is_shared else ""))
    return 0


def _options(solver: Solver, given: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Return the arguments of `fit` that options of the command line stand for.

    Raises:
        InputError: an option is given that the solver's `fit` does not take.
    """
    options = {}
    for flag, (option, value) in given.items():
        if value is not None:
            if not _takes(solver, option):
                raise InputError(f"{flag}: fit() of this solver takes no '{option}': leave it out")
            options[option] = value
    return options


def _takes(solver: Solver, option: str) -> bool:
    parameters = inspect.signature(solver.fit).parameters  # type: ignore[attr-defined]
    return option in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
