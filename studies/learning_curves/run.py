"""Learning curves of learned solvers, mean over training seeds, from the cards of their weights.

    python studies/learning_curves/run.py [--weights FOLDER] [--solver NAME ...] [--over SOLVER] [--plot FILE.svg]
        [--json]

FOLDER holds SOLVER/SUITE/seed-K, by default the weights in the package. "at 25 %" is what plans of the validation tasks
cost after a quarter of the training steps, by the oracle: the mean over seeds of the geometric mean over tasks, with
half the width of a 95 % t interval. Every seed draws tasks of its own; so costs are divided by those of `--over` for
the same tasks. Without an interval there is one seed.

A task without a plan counts as ten times the mean, for both; "no plan" is the share of those in the end.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from scipy.stats import t as t_distribution
from tabulate import tabulate
from tqdm import tqdm

from baselines.learning.solver import VALIDATION_SHARE, summarise
from baselines.learning.weights import CARD, SHIPPED, SolverCard
from shardgym import make_cost, make_solver
from shardgym.arrays import Floats
from shardgym.envs.tasks import training_tasks
from shardgym.errors import NO_PLAN, InputError, ShardGymError, import_extra
from shardgym.solver import Solver

#: Where a table shows the curve, as shares of the steps.
SHOWN = (0.0, 0.1, 0.25, 0.5, 1.0)


def main() -> int:
    """Read the cards and print the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--weights", type=Path, default=SHIPPED, help="the package's if not given")
    parser.add_argument("--solver", action="append", metavar="NAME", help="repeatable; all that are there if not given")
    parser.add_argument("--over", default="lpt", help="solver whose costs are the unit (%(default)s)")
    parser.add_argument("--plot", type=Path, help="file for the curves; needs matplotlib")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        reference = make_solver(arguments.over)
        cards = cards_below(arguments.weights, arguments.solver)
        curves = [
            {"solver": solver, "suite": suite, **curve(own, [unit_ms(card, suite, reference) for card in own])}
            for (solver, suite), own in tqdm(cards.items(), disable=None)
        ]
        if arguments.plot is not None:
            plot(curves, arguments.over, arguments.plot)
    except ShardGymError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if arguments.json:
        print(json.dumps(curves, indent=2))
    else:
        print(tabulate([row(found) for found in curves], headers="keys", disable_numparse=True))
    return 0


def cards_below(root: Path, solvers: Sequence[str] | None) -> dict[tuple[str, str], list[SolverCard]]:
    """Return the cards of SOLVER/SUITE/seed-K by solver and suite, in the order of seeds.

    Raises:
        InputError: there are none, or one is damaged.
    """
    found: dict[tuple[str, str], list[SolverCard]] = defaultdict(list)
    for path in sorted(root.glob(f"*/*/seed-*/{CARD}")):
        solver, suite = path.parts[-4:-2]
        if solvers is None or solver in solvers:
            found[solver, suite].append(SolverCard.load(path))
    if not found:
        wanted = "SOLVER" if solvers is None else "/".join(solvers)
        raise InputError(f"no cards in {root}: expected {wanted}/SUITE/seed-K/{CARD}, as 'shardgym fit' writes them")
    return found


def unit_ms(card: SolverCard, suite: str, reference: Solver) -> float:
    """Return what plans of a solver for the validation tasks of a card cost, counted as `validation_ms` is.

    Raises:
        InputError: the tasks that `shardgym fit` validates on are not those of the card.
    """
    tasks = training_tasks(suite.split("+"), card.tasks.count + card.validation.count, card.seed)[::VALIDATION_SHARE]
    if summarise(tasks, card.validation.source) != card.validation:
        raise InputError(
            f"weights of '{card.solver}' for {suite}, seed {card.seed}: not fitted by 'shardgym fit', their validation "
            "tasks cannot be drawn again"
        )
    cost = make_cost(card.oracle["name"], **card.oracle["settings"])
    logs = []
    for task in tasks:
        try:
            plan = reference.solve(task, cost, 0)
        except NO_PLAN:
            continue
        logs.append(math.log(cost.evaluate(task, [plan])[0].total_ms))
    if not logs:
        raise InputError(f"--over: the solver found no plan for any of the {len(tasks)} validation tasks of {suite}")
    return math.exp(statistics.mean(logs)) * 10 ** (1 - len(logs) / len(tasks))


def curve(cards: Sequence[SolverCard], units_ms: Sequence[float]) -> dict[str, Any]:
    """Return the mean curve over seeds.

    Args:
        cards: one per seed.
        units_ms: cost that those of each card are divided by.

    Returns:
        Steps, mean, half width of the interval, share of validation tasks without a plan, and what training took.

    Raises:
        InputError: seeds were evaluated after different steps.
    """
    steps = [entry["step"] for entry in cards[0].curve]
    for card in cards:
        if [entry["step"] for entry in card.curve] != steps:
            raise InputError(
                f"weights of '{card.solver}': seeds {cards[0].seed} and {card.seed} were evaluated after different "
                "steps; fit them with the same options"
            )
    values = np.array([
        [entry["validation_ms"] / unit for entry in card.curve] for card, unit in zip(cards, units_ms, strict=True)
    ])  # fmt: skip
    return {
        "seeds": [card.seed for card in cards],
        "steps": steps,
        "mean": values.mean(axis=0).tolist(),
        "half width": half_width(values).tolist() if len(cards) > 1 else None,
        "best": float(values.min(axis=1).mean()),
        "no plan": float(np.mean([card.curve[-1]["validation_failed"] for card in cards])),
        "minutes": float(np.mean([card.minutes for card in cards])),
        "plans priced": round(float(np.mean([card.oracle_queries for card in cards]))),
    }


def half_width(values: Floats) -> Floats:
    """Return half the width of the 95 % t interval of the mean over rows, of values of shape (seeds, n), shape (n,)."""
    seeds = len(values)
    return np.asarray(t_distribution.ppf(0.975, seeds - 1) * values.std(axis=0, ddof=1) / np.sqrt(seeds))


def row(found: dict[str, Any]) -> dict[str, str]:
    """Return one line of the table: the curve at some shares of the steps."""
    steps = np.array(found["steps"])
    cells = {"solver": found["solver"], "suite": found["suite"], "seeds": str(len(found["seeds"]))}
    for share in SHOWN:
        nearest = int(np.abs(steps - share * steps[-1]).argmin())
        spread = "" if found["half width"] is None else f" ± {found['half width'][nearest]:.3f}"
        cells[f"at {share:.0%}"] = f"{found['mean'][nearest]:.3f}{spread}"
    return cells | {
        "best": f"{found['best']:.3f}", "no plan": f"{found['no plan']:.1%}", "steps": str(steps[-1]),
        "minutes": f"{found['minutes']:.1f}", "plans priced": f"{found['plans priced']:,}",
    }  # fmt: skip


def plot(curves: Sequence[dict[str, Any]], over: str, path: Path) -> None:
    """Draw one panel per suite, from the second evaluation on: untrained networks would set the scale.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure_module = import_extra("matplotlib.figure", "--plot")
    suites = list(dict.fromkeys(found["suite"] for found in curves))
    figure = figure_module.Figure(figsize=(5.5 * len(suites), 4), layout="constrained")
    for axes, suite in zip(figure.subplots(1, len(suites), squeeze=False)[0], suites, strict=True):
        for found in (found for found in curves if found["suite"] == suite):
            share = np.array(found["steps"])[1:] / found["steps"][-1]
            mean = np.array(found["mean"])[1:]
            (line,) = axes.plot(share, mean, label=found["solver"])
            if found["half width"] is not None:
                half = np.array(found["half width"])[1:]
                axes.fill_between(share, mean - half, mean + half, color=line.get_color(), alpha=0.2)
        axes.set(title=suite, xlabel="share of the training steps", ylabel=f"cost over {over}")
        axes.grid(visible=True, alpha=0.3)
        axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
